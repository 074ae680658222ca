import { describe, expect, it } from 'vitest';
import type { Goal, Run, RunTotals } from './api';
import {
  against,
  basis,
  progressOf,
  between,
  bytes,
  clean,
  clock,
  cores,
  deviation,
  dollars,
  duration,
  goal,
  input,
  memoryByVenue,
  missed,
  missing,
  money,
  peakOfGrant,
  ranges,
  seconds,
  size,
  sums,
  peakAt,
  readable,
  unknown,
} from './format';

// What is expected is what the Go code writes: the tests and golden files of predictor/quantity and
// cmd/internal/cli/display have the same.
describe('numbers are written as the command line writes them', () => {
  it.each([
    [0, '0.000 s'],
    [0.084, '0.084 s'],
    [0.0994, '0.099 s'],
    [0.0995, '0.10 s'],
    [0.25, '0.25 s'],
    [0.994, '0.99 s'],
    [0.995, '1.0 s'],
    [9.8, '9.8 s'],
    [99.94, '99.9 s'],
    [99.95, '1m40s'],
    [130, '2m10s'],
    [3599, '59m59s'],
    [11_220, '3h07m'],
    [-1, unknown],
    [NaN, unknown],
    [1e9, unknown],
  ])('%d seconds', (value, want) => expect(seconds(value)).toBe(want));

  it.each([
    [512, '512 B'],
    [-2048, '-2 KiB'],
    [96 * 2 ** 20, '96 MiB'],
    [1.5 * 2 ** 30, '1.5 GiB'],
    [1.25 * 2 ** 30, '1.2 GiB'],
    [1.75 * 2 ** 30, '1.8 GiB'],
    [100.5 * 2 ** 20, '100 MiB'],
    [2 ** 40, '1 TiB'],
  ])('%d bytes', (value, want) => expect(bytes(value)).toBe(want));

  it.each([
    [0, '$0'],
    [12.5e12, '$12.50'],
    [0.5e12, '$0.5000'],
    [0.995e12, '$0.99'],
    [210_000_000, '$0.0002100'],
    [214_655_678, '$0.0002147'],
    [2_310_000, '$0.000002310'],
    [-4_400_000_000, '$-0.004400'],
  ])('%d picodollars', (value, want) => expect(money(value)).toBe(want));

  it('sizes, goals and durations', () => {
    expect(size({ cpu_milli: 1000, memory_bytes: 96 * 2 ** 20 })).toBe('1 core, 96 MiB');
    expect(
      size({ cpu_milli: 2000, memory_bytes: 0, gpu_milli: 500, gpu_memory_bytes: 2 ** 30, device_class: 'h200' }),
    ).toBe('2 cores, 0 B, 0.5 GPU with 1 GiB on h200');
    expect(cores(250)).toBe('0.25 cores');
    expect(goal({ deadline_ns: 60e9, budget_picodollars: 0.5e12, minimise: 'cost' })).toBe(
      'deadline 1m, budget $0.5000, minimise cost',
    );
    expect(goal({})).toBe('no goal');
    expect([200e6, 1.5e9, 90e9, 900e9, 7200e9].map(duration)).toEqual(['200ms', '1.5s', '1m30s', '15m', '2h']);
    expect(peakOfGrant(190 * 2 ** 20, 256 * 2 ** 20)).toBe('190/256 MiB');
    expect(peakOfGrant(11 * 2 ** 30, 12 * 2 ** 30)).toBe('11/12 GiB');
    expect(peakOfGrant(0, 0)).toBe(unknown);
    const mib = 2 ** 20;
    expect(
      memoryByVenue({
        pool: { peak_bytes: 24 * mib, grant_bytes: 27 * mib },
        function: { peak_bytes: 49 * mib, grant_bytes: 128 * mib },
      }),
    ).toBe('pool 24/27 MiB, function 49/128 MiB');
    expect(memoryByVenue({ pool: { peak_bytes: 24 * mib, grant_bytes: 27 * mib } })).toBe('24/27 MiB');
    expect(memoryByVenue(undefined)).toBe(unknown);
    expect(between({ low: 6, mid: 8, high: 11 }, seconds)).toBe('8.0 s (6.0 s to 11.0 s)');
    expect(between({ low: 8, mid: 8, high: 8 }, seconds)).toBe('8.0 s');
    expect(dollars(Infinity)).toBe(unknown);
  });
});

it('inputs of decisions carry their units', () => {
  expect(input('pool_wait_seconds', 24)).toEqual(['pool wait', '24.0 s']);
  expect(input('largest_peak_bytes', 24 * 2 ** 20)).toEqual(['largest peak', '24 MiB']);
  expect(input('wall_error_ratio', 0.1791)).toEqual(['wall error', '17.91%']);
  expect(input('backlog_tasks', 240)).toEqual(['backlog tasks', '240']);
  expect(input('value_of_time_usd_per_hour', 1)).toEqual(['value of time', '$1.00/h']);
  expect(input('seconds', 2)).toEqual(['seconds', '2']);
});

it('a deviation has its sign', () => {
  expect([deviation(25, 23.4), deviation(10, 15), deviation(10, 10), deviation(0, 3)]).toEqual([
    '\u22126%',
    '+50%',
    '0%',
    unknown,
  ]);
});

it('CPU numbers are drawn together', () => {
  expect([ranges([]), ranges([3]), ranges([11, 0, 1, 2, 3, 8, 10])]).toEqual(['', '3', '0-3, 8, 10-11']);
});

it('control characters and terminal sequences of programs are left out', () => {
  expect(clean('\x1b[31mred\x1b[0m\ttab\x07 bell')).toBe('red\ttab  bell');
});

it('a time of another day has its date, and no time has none', () => {
  const now = new Date(2026, 10, 21, 12).getTime();
  expect(clock(new Date(2026, 10, 21, 9, 5, 7).toISOString(), now)).toBe('09:05:07');
  expect(clock(new Date(2026, 10, 20, 9, 5, 7).toISOString(), now)).toBe('20 Nov 09:05:07');
  expect(clock(new Date(2025, 10, 20, 9, 5, 7).toISOString(), now)).toBe('20 Nov 2025 09:05:07');
  expect([clock('0001-01-01T00:00:00Z', now), clock(undefined, now)]).toEqual([unknown, unknown]);
});

it('says both sides of a trade', () => {
  expect(against(58, 100, 'as much')).toBe('42% less');
  expect(against(112, 100, 'as much')).toBe('12% more');
  expect(against(220, 100, 'as long')).toBe('2.2 times as long');
  expect(against(100.4, 100, 'as long')).toBe('as long');
  expect(against(0, 100, 'as long')).toBe('');
});

it('says what a forecast rests on, and whether a goal will probably be missed', () => {
  const none = { finish_seconds: { low: 0, mid: 0, high: 0 }, cost_usd: { low: 0, mid: 0, high: 0 } };
  expect(basis({ ...none, runs: 1, basis: 'one earlier run, so it is wide' })).toBe(
    'rests on one earlier run, so it is wide',
  );
  expect([basis({ ...none, runs: 4 }), basis(none)]).toEqual(['rests on 4 earlier runs', '']);
  expect([missing(0.83), missing(0.5), missing(undefined)]).toEqual(['83% likely to be missed', '', '']);
});

it('adds up runs in words', () => {
  const totals = (states: Partial<RunTotals['states']>, rest: Partial<RunTotals> = {}): RunTotals => ({
    runs: Object.values(states).reduce((sum, n) => sum + n, 0),
    states: { running: 0, succeeded: 0, failed: 0, cancelled: 0, ...states },
    cost_picodollars: 12.5e12,
    missed_deadlines: 0,
    missed_budgets: 0,
    ...rest,
  });
  expect(sums(totals({ succeeded: 1 }))).toBe('1 run: 1 succeeded; $12.50');
  expect(
    sums(totals({ running: 3, succeeded: 19_990, cancelled: 7 }, { missed_deadlines: 1200, missed_budgets: 1 })),
  ).toBe(
    '20,000 runs: 3 running, 19,990 succeeded, 7 cancelled; $12.50; 1,200 missed their deadline; 1 passed their budget',
  );
});

it('says which limit of a goal was missed', () => {
  const run = (goal: Goal, cost: number) => ({ goal, totals: { cost_picodollars: cost } as Run['totals'] });
  expect(missed(run({ deadline_ns: 20e9, budget_picodollars: 5 }, 7), 23.5)).toEqual({ late: 3.5, dear: 2 });
  expect(missed(run({ deadline_ns: 20e9, budget_picodollars: 5 }, 5), 20)).toEqual({ late: 0, dear: 0 });
  expect(missed(run({}, 5), 20)).toEqual({ late: 0, dear: 0 });
});

it('a size that was decided for one venue is compared with what attempts took there', () => {
  const stage = {
    memory: { pool: { peak_bytes: 24, grant_bytes: 29 }, function: { peak_bytes: 47, grant_bytes: 512 } },
  };
  expect(peakAt(stage, 'pool')).toBe(24);
  expect(peakAt(stage, 'function')).toBe(47);
  expect(peakAt({ memory: { pool: stage.memory.pool } }, 'function')).toBe(0);
  expect(peakAt(undefined, 'pool')).toBe(0);
});

it('lists of numbers take a line each, and all else of a result a level a line', () => {
  expect(
    readable({
      confusion: [
        [13, 0],
        [-1.5e-7, 2],
      ],
      names: ['[ 1, 2 ]'],
      none: [],
    }),
  ).toBe(
    '{\n  "confusion": [\n    [13, 0],\n    [-1.5e-7, 2]\n  ],\n  "names": [\n    "[ 1, 2 ]"\n  ],\n  "none": []\n}',
  );
  expect(readable('text')).toBe('"text"');
});

it('progress of running attempts says how far the last is and when it ends', () => {
  const left_seconds = { low: 190, mid: 245, high: 320 };
  const train = { stage: 'train', task: 'train-0', attempt: 1, step: 312, of: 1000, left_seconds };
  expect(progressOf([train, { ...train, task: 'train-1' }], 'train')).toBe(
    '312 of 1,000 (31%), 4m05s left (3m10s to 5m20s), and 1 other',
  );
  expect(progressOf([{ stage: 'train', task: 'train-0', attempt: 1, step: 1234 }], 'train')).toBe('step 1,234');
  expect(progressOf([{ ...train, per_second: { tokens: 4096.4, samples: 127.6, a_b: 0.01234 } }], 'train')).toBe(
    '312 of 1,000 (31%), 0.0123 a b/s, 128 samples/s, 4,096 tokens/s, 4m05s left (3m10s to 5m20s)',
  );
  expect([progressOf([train], 'score'), progressOf(undefined, 'train')]).toEqual(['', '']);
});
