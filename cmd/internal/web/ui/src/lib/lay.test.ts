import { expect, it } from 'vitest';
import type { Attempt, TimelineView } from './api';
import { lay, spansOf } from './lay';

const start = Date.parse('2026-11-20T09:00:00Z');
const at = (s: number) => new Date(start + s * 1000).toISOString();

const attempt = (
  task: string,
  from: number,
  admitted: number,
  to?: number,
  more: { [name in keyof Attempt]?: Attempt[name] | undefined } = {},
) =>
  ({
    stage: 'score',
    task,
    attempt: 1,
    venue: 'pool',
    grant: { cpu_milli: 1000, memory_bytes: 100 },
    scheduled_at: at(from),
    admitted_at: at(admitted),
    started_at: at(admitted + 0.5),
    ended_at: to === undefined ? undefined : at(to),
    ...more,
  }) as Attempt;
const nothing = { started_at: undefined, admitted_at: undefined, scheduled_at: undefined };

const view = (attempts: Attempt[], until = 100): TimelineView => ({
  from: at(0),
  to: at(until),
  lanes: [{ stage: 'score', count: attempts.length, attempts }],
});

it('an attempt queues, starts and runs without gaps', () => {
  expect(
    spansOf(attempt('a', 1, 3, 10), start).map((s) => [s.what, (s.from - start) / 1000, (s.to - start) / 1000]),
  ).toEqual([
    ['queue', 1, 3],
    ['start', 3, 3.5],
    ['pool', 3.5, 10],
  ]);
});

it('what is not known yet goes on until now', () => {
  const waiting = attempt('a', 1, 0, undefined, { admitted_at: undefined, started_at: '0001-01-01T00:00:00Z' });
  expect(spansOf(waiting, start + 5000).map((s) => [s.what, (s.to - s.from) / 1000])).toEqual([['queue', 4]]);
});

it('an attempt of which only the end was told, and for how long it ran, began so long before', () => {
  expect(spansOf(attempt('a', 1, 1, 4, { ...nothing, venue: 'function', wall_ns: 2e9 }), start)).toEqual([
    { what: 'function', from: start + 2000, to: start + 4000 },
  ]);
  expect(spansOf(attempt('a', 1, 1, 4, nothing), start)).toEqual([
    { what: 'pool', from: start + 4000, to: start + 4000 },
  ]);
});

it('in a large lane no two attempts lie on each other', () => {
  let seed = 7;
  const random = (below: number) => (seed = (seed * 48_271) % 2_147_483_647) % below;
  const attempts = Array.from({ length: 300 }, (_, i) => {
    const from = random(80);
    const admitted = from + random(10);
    return attempt(`t${i}`, from, admitted, admitted + 1 + random(9));
  });
  const [row] = lay(view(attempts), 0).rows;
  const by = new Map<number, { from: number; to: number }[]>();
  for (const bar of row!.bars) by.set(bar.row, [...(by.get(bar.row) ?? []), ...bar.spans]);
  for (const spans of by.values()) {
    spans.sort((a, b) => a.from - b.from);
    spans.forEach((span, i) => i > 0 && expect(span.from).toBeGreaterThanOrEqual(spans[i - 1]!.to));
  }
  expect(row!.bars).toHaveLength(300);
  expect(row!.height).toBeLessThan(300);
});

it('lanes lie below each other', () => {
  const bins = Array.from({ length: 4 }, () => ({
    queued: 5,
    starting: 0,
    pool: 2,
    function: 1,
    ended: 3,
    failed: 0,
    out_of_memory: 0,
  }));
  const laid = lay(
    {
      from: at(0),
      to: at(8),
      lanes: [...(view([attempt('a', 0, 1, 2)]).lanes ?? []), { stage: 'big', count: 9000, bins }],
    },
    20,
  );
  expect(laid.rows[0]!.y).toBe(20);
  expect(laid.rows[1]!.y).toBeGreaterThanOrEqual(laid.rows[0]!.y + laid.rows[0]!.height);
  expect(laid.height).toBeGreaterThanOrEqual(laid.rows[1]!.y + laid.rows[1]!.height);
  expect(laid.rows[1]!.most).toBe(8);
  expect(laid.rows[1]!.columns.map((c) => (c.from - start) / 1000)).toEqual([0, 2, 4, 6]);
});

it('a larger grant after an attempt ran out of memory is marked', () => {
  const attempts = [
    attempt('a', 0, 1, 2, { outcome: 'out_of_memory' }),
    attempt('a', 2, 3, 4, { attempt: 2, grant: { cpu_milli: 1000, memory_bytes: 200 } }),
    attempt('b', 0, 1, 2),
  ];
  expect(lay(view(attempts), 0).rows[0]!.bars.map((bar) => bar.grown)).toEqual([false, true, false]);
});
