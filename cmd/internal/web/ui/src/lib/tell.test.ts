import { expect, it } from 'vitest';
import type { Attempt } from './api';
import { isBad, outcomeName, tellAttempt, tellColumn } from './tell';

const start = Date.parse('2026-11-20T09:00:00Z');
const at = (s: number) => new Date(start + s * 1000).toISOString();
const attempt = {
  stage: 'score',
  task: 'score-3',
  attempt: 2,
  venue: 'pool',
  host: 'workstation',
  outcome: 'out_of_memory',
  error: 'killed at its limit\nstack',
  scheduled_at: at(0),
  admitted_at: at(2),
  started_at: at(2.5),
  ended_at: at(10),
  grant: { cpu_milli: 1000, memory_bytes: 256 * 2 ** 20 },
  peak_memory_bytes: 190 * 2 ** 20,
  cost_picodollars: 2_000_000,
} as Attempt;

it('an attempt says what it waited for, did and took', () => {
  expect(tellAttempt(attempt, start)).toBe(
    'score, task score-3, attempt 2 on workstation: out of memory, queued 2.0 s, starting 0.50 s, ran 7.5 s; ' +
      'peak 190 MiB of 256 MiB; $0.000002000; killed at its limit',
  );
  expect(isBad(attempt)).toBe(true);
});

it('what is not over is running or queued', () => {
  expect(outcomeName({ ...attempt, outcome: undefined } as unknown as Attempt)).toBe('running');
  expect(outcomeName({ ...attempt, outcome: undefined, admitted_at: undefined } as unknown as Attempt)).toBe('queued');
});

it('a column says means and counts', () => {
  const bin = { queued: 120.4, starting: 0.25, pool: 4, function: 2.04, ended: 14, failed: 3, out_of_memory: 1 };
  expect(tellColumn('score', { bin, from: start + 1000, to: start + 1500 }, start)).toBe(
    'score, 1.0 s to 1.5 s, on average: 4.0 running at the pool, 2.0 at functions, 0.3 starting, ' +
      '120 queued; 14 ended, 3 of them failed (1 out of memory)',
  );
});
