import { expect, it } from 'vitest';
import type { Training, TrainingPart } from './api';
import { bar, busyBars, memoryBars, operations, step } from './training';

const part = (of: Partial<TrainingPart> = {}): TrainingPart => ({
  device: 'cpu:0',
  kind: 'cpu',
  ops: 4,
  predicted_peak_bytes: 50,
  predicted_busy_seconds: 1,
  ...of,
});

it('parts share one scale of memory, and what there is shows where it is less than the whole', () => {
  const [small, large] = memoryBars([
    part({ peak_bytes: 60, capacity_bytes: 100 }),
    part({ predicted_peak_bytes: 150, peak_bytes: 180, capacity_bytes: 200 }),
  ]);
  expect(small).toEqual({ predicted: 0.25, measured: 0.3, capacity: 0.5, over: false });
  expect(large).toEqual({ predicted: 0.75, measured: 0.9, over: false });
});

it('a part that holds more than there is says so, predicted or measured', () => {
  expect(memoryBars([part({ peak_bytes: 120, capacity_bytes: 100 })])[0]).toEqual({
    predicted: 50 / 120,
    measured: 1,
    capacity: 100 / 120,
    over: true,
  });
  expect(memoryBars([part({ predicted_peak_bytes: 200, capacity_bytes: 100 })])[0]?.over).toBe(true);
});

it('what was not measured has no bar, and nothing at all is no division by zero', () => {
  expect(memoryBars([part()])).toEqual([{ predicted: 1, over: false }]);
  expect(bar(0, undefined, undefined, 0)).toEqual({ over: false });
  expect(memoryBars([])).toEqual([]);
});

it('a part is busy for a share of the longer step', () => {
  const training = {
    predicted_step_seconds: 2,
    step_seconds: 4,
    parts: [part({ busy_seconds: 3 }), part()],
  } as Training;
  expect(busyBars(training)).toEqual([
    { predicted: 0.25, measured: 0.75, over: false },
    { predicted: 0.25, over: false },
  ]);
  expect(busyBars({ predicted_step_seconds: 1, parts: null } as unknown as Training)).toEqual([]);
});

it('operations are counted and named by their ends', () => {
  expect(operations(part({ ops: 1200, first: 'embed', last: 'head' }))).toBe('1,200, embed to head');
  expect(operations(part({ ops: 1, first: 'embed', last: 'embed' }))).toBe('1, embed');
  expect(operations(part())).toBe('4');
});

it('the time of a step keeps three digits', () => {
  expect([0, 0.0082512, 0.09999, 0.82, 1.2345, 9.999, 12.34, 75, 240].map(step)).toEqual([
    '0.000 s',
    '8.25 ms',
    '100 ms',
    '0.82 s',
    '1.23 s',
    '10 s',
    '12.3 s',
    '75.0 s',
    '4m00s',
  ]);
});
