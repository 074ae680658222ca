import { describe, expect, it } from 'vitest';
import type { Parameter, Trial } from './api';
import {
  along,
  configured,
  ended,
  goesOn,
  marks,
  marksOf,
  place,
  ranked,
  scaleOf,
  shadesOf,
  short,
  told,
} from './tuning';

const job = (rung: number, objective?: number | null) => ({
  rung,
  from: 0,
  to: 3 ** rung,
  task: 'train-1',
  spent_picodollars: 1,
  ...(objective === undefined ? {} : { objective }),
});
const trial = (number: number, ...jobs: Trial['jobs'] & object): Trial => ({
  number,
  configuration: {},
  state: 'stopped',
  jobs,
});

describe('trials', () => {
  const trials = [
    trial(0),
    trial(1, job(0, 0.5)),
    trial(2, job(0, 0.3), job(1)),
    trial(3, job(0, 0.4), job(1, 0.45)),
    trial(4, job(0, 0.5)),
    { ...trial(5), jobs: null },
    { ...trial(6, job(0, 0.1), job(1, null)), state: 'diverged' as const },
  ];
  const numbers = (of: Trial[]) => of.map((t) => t.number);
  it('tell what they told last, whatever runs since', () => {
    expect(told(trials[2]!)).toEqual({ objective: 0.3, rung: 0 });
    expect(told(trials[3]!)).toEqual({ objective: 0.45, rung: 1 });
    expect(told(trial(7, job(0, null)))).toBeUndefined();
    expect(told(trials[5]!)).toBeUndefined();
  });
  it('are ranked as the engine does', () => {
    expect(numbers(ranked({ trials, options: { trials: 6, most: 3 } }))).toEqual([3, 2, 1, 4, 0, 5, 6]);
    expect(numbers(ranked({ trials, options: { trials: 6, most: 3, maximise: true } }))).toEqual([3, 1, 4, 2, 0, 5, 6]);
    expect(ranked({ trials: null, options: { trials: 6, most: 3 } })).toEqual([]);
  });
  it('are shaded by their place, and not where they told nothing', () => {
    const shaded = shadesOf(ranked({ trials, options: { trials: 6, most: 3 } }));
    expect([3, 2, 1, 4].map((n) => shaded.get(n))).toEqual([0, 1, 2, 3]);
    expect(shaded.has(0)).toBe(false);
  });
});

describe('axes', () => {
  const lr: Parameter = { name: 'lr', kind: 'float', low: 1e-4, high: 1e-2, log: true };
  const layers: Parameter = { name: 'layers', kind: 'int', low: 2, high: 6 };
  const optimizer: Parameter = {
    name: 'optimizer',
    kind: 'choice',
    choices: ['adam', 'sgd', 'a very long name of one'],
  };
  it('place values by differences, factors and choices', () => {
    expect(place(lr, 1e-3)).toBeCloseTo(0.5, 12);
    expect(place(layers, 3)).toBe(0.25);
    expect(place(optimizer, 'sgd')).toBe(0.5);
    expect(place({ name: 'one', kind: 'choice', choices: ['only'] }, 'only')).toBe(0.5);
    expect(place({ name: 'one', kind: 'int', low: 3, high: 3 }, 3)).toBe(0.5);
  });
  it('leave out what a trial does not have', () => {
    expect(place(lr, undefined)).toBeUndefined();
    expect(place(optimizer, 'lion')).toBeUndefined();
  });
  it('stay between their ends', () => expect([along(0, 1, -1, false), along(0, 1, 2, false)]).toEqual([0, 1]));
  it('have marks', () => {
    expect(marksOf(lr).map((m) => m.text)).toEqual(['1e-4', '1e-3', '0.01']);
    expect(marksOf(layers).map((m) => m.text)).toEqual(['2', '4', '6']);
    expect(marksOf(optimizer).map((m) => m.text)).toEqual(['adam', 'sgd', 'a very long…']);
    expect(marksOf({ name: 'one', kind: 'int', low: 3, high: 3 })).toEqual([{ at: 0.5, text: '3' }]);
  });
  it('of objectives go by factors where they differ by much', () => {
    expect(scaleOf([0.01, 3, 0.5])).toEqual({ low: 0.01, high: 3, log: true });
    expect(scaleOf([-1, 3])).toEqual({ low: -1, high: 3, log: false });
    expect(scaleOf([2, 2])).toEqual({ low: 1, high: 3, log: false });
    expect(scaleOf([1e20])).toEqual({ low: 5e19, high: 1.5e20, log: false });
    expect(scaleOf([])).toEqual({ low: 0, high: 1, log: false });
    expect(marks({ low: 1, high: 16, log: true })).toEqual([1, 2, 4, 8, 16]);
    expect(marks({ low: 0, high: 1, log: false }, 2)).toEqual([0, 0.5, 1]);
  });
  it('are marked with two digits', () =>
    expect([0, 0.25, 1234, 123456, -0.00123].map(short)).toEqual(['0', '0.25', '1200', '1.2e5', '-1.2e-3']));
});

it('a configuration is written in the order of the space', () =>
  expect(
    configured(
      [
        { name: 'lr', kind: 'float' },
        { name: 'momentum', kind: 'float' },
        { name: 'optimizer', kind: 'choice' },
      ],
      { optimizer: 'adam', lr: 0.00123456 },
    ),
  ).toBe('lr 0.001235, optimizer adam'));

it('says what goes on', () => {
  expect(goesOn({ trials: 27, most: 27, least: 1, eta: 3 })).toBe('of each rung the best 1 in 3 goes on');
  expect(goesOn({ algorithm: 'asha', trials: 27, most: 4, least: 1, eta: 4 })).toBe(
    'of each rung the best 1 in 4 goes on',
  );
  expect(goesOn({ algorithm: 'asha', trials: 27, most: 2, least: 1, eta: 3 })).toBe('each trial gets all');
  expect(goesOn({ algorithm: 'random', trials: 27, most: 27, least: 1 })).toBe('each trial gets all');
});

it('says why a tuning has ended', () => {
  expect(ended(undefined)).toBe('');
  expect(ended('time')).toBe('its time was over');
  expect(ended('failed')).toBe('failed');
});
