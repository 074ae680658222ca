import { expect, test } from 'vitest';
import type { WhatIf } from './api';
import { asOutlook, gets } from './whatif';

const point = (seconds: number, functions: number) => ({
  seconds,
  cost_usd: 1 / seconds,
  stages: [
    { stage: 'load', tasks: 1, pool_slots: 1, slot_size: { cpu_milli: 1000 }, seconds: 1, cost_usd: 0 },
    { stage: 'train', tasks: 1, pool_slots: 1, slot_size: { cpu_milli: 1000 }, seconds: 1, cost_usd: 0 },
    { stage: 'score', tasks: 9, pool_slots: 2, slot_size: { cpu_milli: 500 }, functions, seconds: 1, cost_usd: 0 },
    { stage: 'idle', tasks: 0, seconds: 0, cost_usd: 0 },
  ],
});

test('a point says what its stages get, those that get the same together', () => {
  expect(gets(point(4, 3))).toBe('1 slot of 1 core for load, train; 2 slots of 0.5 cores and 3 functions for score');
  expect(gets({ seconds: 1, cost_usd: 1, stages: null })).toBe('');
});

test('a frontier is what the plane draws, and nothing where it is not known', () => {
  const answer: WhatIf = {
    goal: { deadline_ns: 5e9 },
    at: '2026-11-27T09:00:00Z',
    elapsed_seconds: 1,
    spent_usd: 0,
    known: true,
    present: point(10, 0),
    points: [point(4, 8), point(8, 1)],
    promise: { met: true, plan: point(4, 8), probability: 0.95 },
    sentences: [],
  };
  const drawn = asOutlook(answer)!;
  expect(drawn.alternatives?.map((a) => a.finish_seconds.mid)).toEqual([4, 8]);
  expect([drawn.present.finish_seconds.mid, drawn.chosen.finish_seconds.mid, drawn.feasible]).toEqual([10, 4, true]);
  const { promise, ...aimless } = answer;
  expect(promise?.met).toBe(true);
  expect(asOutlook(aimless)?.chosen.finish_seconds.mid).toBe(0);
  expect(asOutlook({ ...answer, known: false })).toBeUndefined();
});
