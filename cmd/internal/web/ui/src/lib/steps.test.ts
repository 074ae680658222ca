import { expect, it } from 'vitest';
import type { Decision, Stage, Venue } from './api';
import { lanes, marks, spans, totals } from './steps';

const start = Date.parse('2026-11-20T09:00:00Z');

const stage = (name: string, pool = 0) => ({ name, slots: { pool, function: 0 } }) as Stage;

const decided = (name: string, venue: Venue, at: number, from: number, to: number) =>
  ({
    id: `${name}${venue}${at}`,
    at: new Date(start + at * 1000).toISOString(),
    stage: { app: 'a', build: 'b', name },
    venue,
    what: 'slots',
    from: `${from} slots`,
    to: `${to} slots`,
  }) as Decision;

it('a lane begins with what the stage held before the first change', () => {
  const [lane] = lanes([stage('train')], [decided('train', 'pool', 5, 2, 3)], start, 10);
  expect(lane).toEqual({
    stage: 'train',
    venue: 'pool',
    most: 3,
    steps: [
      { at: 0, slots: 2 },
      { at: 5, slots: 3 },
    ],
  });
});

it('decisions before the run count, and those after its end do not', () => {
  const [lane] = lanes(
    [stage('train')],
    [decided('train', 'pool', -3, 0, 4), decided('train', 'pool', 20, 4, 9)],
    start,
    10,
  );
  expect(lane?.steps).toEqual([{ at: 0, slots: 4 }]);
});

it('a stage without decisions holds what it has now, and one that held nothing has no lane', () => {
  expect(lanes([stage('train', 2), stage('load')], [], start, 10)).toEqual([
    { stage: 'train', venue: 'pool', most: 2, steps: [{ at: 0, slots: 2 }] },
  ]);
});

it('totals are the sums at every instant', () => {
  // A small generator (Park and Miller's minimal standard) makes the same cases every time.
  let seed = 42;
  const random = (below: number) => (seed = (seed * 48_271) % 2_147_483_647) % below;
  for (let round = 0; round < 50; round++) {
    const held = new Map<string, number>();
    const changes: Decision[] = [];
    for (let at = 1; at < 40; at += 1 + random(4)) {
      const name = ['load', 'train', 'score'][random(3)]!;
      const venue = (['pool', 'function'] as const)[random(2)]!;
      const to = random(6);
      changes.push(decided(name, venue, at, held.get(name + venue) ?? 0, to));
      held.set(name + venue, to);
    }
    const columns = totals(
      lanes(
        ['load', 'train', 'score'].map((name) => stage(name)),
        changes,
        start,
        40,
      ),
      40,
    );
    // The oracle plays the decisions one after the other.
    for (let t = 0.5; t < 40; t++) {
      const now = new Map<string, number>();
      for (const change of changes)
        if ((Date.parse(change.at) - start) / 1000 <= t)
          now.set(`${change.stage.name} ${change.venue}`, parseInt(change.to, 10));
      const column = columns.at.findLastIndex((at) => at <= t);
      for (const venue of ['pool', 'function'] as const) {
        const want = [...now].filter(([key]) => key.endsWith(' ' + venue)).reduce((sum, [, slots]) => sum + slots, 0);
        expect(columns[venue][column]).toBe(want);
      }
    }
  }
});

it('spans leave out the times without slots', () => {
  const [lane] = lanes(
    [stage('train')],
    [decided('train', 'pool', 2, 0, 1), decided('train', 'pool', 4, 1, 0), decided('train', 'pool', 6, 0, 2)],
    start,
    10,
  );
  expect(spans(lane!, 10)).toEqual([
    { from: 2, to: 4, slots: 1 },
    { from: 6, to: 10, slots: 2 },
  ]);
});

it('an axis has about as many marks as wanted, from 0 to its end', () => {
  for (const most of [0.058, 0.1, 1, 7, 59, 61, 3600, 90_000, 5e6]) {
    const at = marks(most, 8);
    expect(at[0]).toBe(0);
    expect(at.length).toBeGreaterThan(2);
    expect(at.length).toBeLessThanOrEqual(9);
    expect(at.at(-1)).toBeLessThanOrEqual(most);
  }
});
