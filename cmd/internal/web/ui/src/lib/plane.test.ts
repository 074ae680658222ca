import { expect, it } from 'vitest';
import type { Alternative } from './api';
import { draftOf, extent, goalOf, rounded, sameGoal, ticks } from './plane';

it('a goal that was edited to and fro is the same, to the nanosecond and the picodollar', () => {
  for (const goal of [
    {},
    { deadline_ns: 90_000_000_001 },
    { budget_picodollars: 12_345_678_901 },
    { deadline_ns: 1, budget_picodollars: 3, minimise: 'latency' },
  ]) {
    expect(goalOf(draftOf(goal))).toEqual(goal);
    expect(sameGoal(goalOf(draftOf(goal)), goal)).toBe(true);
  }
  expect(sameGoal({ deadline_ns: 0 }, {})).toBe(true);
  expect(sameGoal({ deadline_ns: 1 }, {})).toBe(false);
});

it('an axis has round marks from 0 to its end', () => {
  expect(ticks(0.0047, 5)).toEqual([0, 0.001, 0.002, 0.003, 0.004]);
  expect(ticks(10, 5)).toEqual([0, 2, 4, 6, 8, 10]);
  expect(ticks(0, 5)).toEqual([0]);
  for (const most of [1e-7, 0.03, 3, 999, 1e6]) {
    expect(ticks(most, 5).length).toBeLessThanOrEqual(6);
    expect(ticks(most, 5).at(-1)).toBeLessThanOrEqual(most);
  }
});

it('the plane has room for every alternative, and a far goal does not press them into a corner', () => {
  const alternative = (time: number, cost: number) =>
    ({
      name: '',
      finish_seconds: { low: time, mid: time, high: time },
      cost_usd: { low: cost, mid: cost, high: cost },
    }) as Alternative;
  const near = extent(
    [alternative(50, 0.002), alternative(80, 0.001)],
    { at: 10, cost: 0.0001 },
    { deadline_ns: 100e9 },
  );
  expect(near.time).toBeGreaterThan(100);
  expect(near.cost).toBeGreaterThan(0.002);
  expect(
    extent([alternative(50, 0.002)], { at: 10, cost: 0 }, { deadline_ns: 3600e9, budget_picodollars: 5e12 }).time,
  ).toBeLessThan(60);
  expect(extent([], { at: 0, cost: 0 }, {})).toEqual({ time: 1.12, cost: 1.12 });
});

it('what a hand drags has three digits', () => {
  expect([rounded(71.23456), rounded(0.00123456)]).toEqual([71.2, 0.00123]);
});
