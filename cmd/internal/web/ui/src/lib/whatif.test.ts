import { expect, test } from 'vitest';
import type { WhatIf } from './api';
import { asOutlook } from './whatif';

const point = (seconds: number, gets: string) => ({ seconds, cost_usd: 1 / seconds, gets });

test('a frontier is what the plane draws, and nothing where it is not known', () => {
  const answer: WhatIf = {
    goal: { deadline_ns: 5e9 },
    at: '2026-11-27T09:00:00Z',
    elapsed_seconds: 1,
    spent_usd: 0,
    known: true,
    present: point(10, '1 slot'),
    points: [point(4, '8 functions'), point(8, '2 slots')],
    promise: { met: true, plan: point(4, '8 functions'), probability: 0.95 },
    sentences: [],
  };
  const drawn = asOutlook(answer)!;
  expect(drawn.alternatives?.map((a) => [a.name, a.finish_seconds.mid])).toEqual([
    ['8 functions', 4],
    ['2 slots', 8],
  ]);
  expect([drawn.present.finish_seconds.mid, drawn.chosen.finish_seconds.mid, drawn.feasible]).toEqual([10, 4, true]);
  const { promise, ...aimless } = answer;
  expect(promise?.met).toBe(true);
  expect(asOutlook(aimless)?.chosen.finish_seconds.mid).toBe(0);
  expect(asOutlook({ ...answer, known: false })).toBeUndefined();
});
