import { expect, it } from 'vitest';
import type { Arriving } from './api';
import { fan, middle, outline, soon, within } from './arrivals';

const start = Date.parse('2026-11-26T09:00:00Z');
const at = (minute: number) => new Date(start + minute * 60_000).toISOString();
const said = (low: number, mid: number, high: number) => ({ low, mid, high });

const stage: Arriving = {
  stage: 'score',
  known_minutes: 40,
  enough_minutes: 30,
  now: at(5),
  count: 3,
  came: [
    { at: at(0), tasks: 7 },
    { at: at(1), tasks: 2, predicted_tasks: said(0, 1, 2) },
    { at: at(2), tasks: 9, predicted_tasks: said(0, 1, 2) },
    { at: at(4), tasks: 0, predicted_tasks: said(0, 1, 4) },
  ],
  next: [
    { at: at(5), predicted_tasks: said(0, 2, 5), chance: 0.5 },
    { at: at(6), predicted_tasks: said(1, 3, 12), chance: 0.8 },
  ],
};

it('minutes that nobody saw break a band, and what is to come goes on from what was', () => {
  const drawn = fan(stage);
  expect(drawn.bands.map((band) => band.map((m) => (m.at - start) / 60_000))).toEqual([
    [1, 2],
    [4, 5, 6],
  ]);
  expect(drawn.bars.map((bar) => bar.tasks)).toEqual([7, 2, 9, 0, 3]);
  expect([(drawn.from - start) / 60_000, (drawn.to - start) / 60_000, drawn.most]).toEqual([0, 7, 12]);
  expect([drawn.within, drawn.told]).toEqual([2, 3]);
});

it('a stage of which nothing is known yet has one empty minute', () => {
  const empty = fan({ ...stage, came: null, next: null, count: 0 });
  expect(empty).toEqual({
    bars: [{ at: start + 300_000, tasks: 0 }],
    bands: [],
    from: start + 300_000,
    to: start + 360_000,
    most: 1,
    told: 0,
    within: 0,
  });
  expect(soon({ ...stage, next: null })).toBeUndefined();
});

it('a whole count is within what is predicted when it is half a task away', () => {
  expect([within(3, said(0, 1, 2.5)), within(3, said(0, 1, 2.4)), within(0, said(0.5, 1, 2))]).toEqual([
    true,
    false,
    true,
  ]);
});

it('a band is outlined along its upper ends and back along the lower ones', () => {
  const band = fan(stage).bands[0]!;
  const x = (time: number) => (time - start) / 60_000;
  expect(outline(band, x, (tasks) => 10 - tasks)).toBe(
    'M1.0 8.0L2.0 8.0L2.0 8.0L3.0 8.0L3.0 10.0L2.0 10.0L2.0 10.0L1.0 10.0Z',
  );
  expect(middle(band, x, (tasks) => 10 - tasks)).toBe('M1.0 9.0L2.0 9.0L2.0 9.0L3.0 9.0');
});

it('the chance that anything comes is that not every minute stays empty', () => {
  expect(soon(stage)).toEqual({ chance: 0.9, by: start + 420_000 });
});
