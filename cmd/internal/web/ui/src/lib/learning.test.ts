import { expect, it } from 'vitest';
import type { Learning } from './api';
import { chart, ending, leading, now, warnings } from './learning';

const training = (of: Partial<Learning> = {}): Learning => ({
  stage: 'train',
  task: 'train-0',
  attempt: 1,
  metric: 'loss',
  better: 'lower',
  step: 1312,
  value: 0.25,
  best: 0.24,
  phase: 'learning',
  ...of,
});

it('a training says where it is and where it goes', () => {
  expect(now(training())).toBe('loss 0.25 at step 1,312, best 0.24');
  expect(now(training({ value: null }))).toBe('loss is not finite at step 1,312, its best was 0.24');
  const final = { low: 0.09, mid: 0.1, high: 0.125 };
  expect(ending(training({ final, planned: 5000, earlier: 1 }))).toBe(
    '0.1 (0.09 to 0.125) at step 5,000 by its curve and 1 earlier task',
  );
  expect(ending(training({ final }))).toBe('0.1 (0.09 to 0.125) when it ends by its curve');
  expect(ending(training())).toBe('');
});

it('trainings that diverge or stay are to be looked at, once for each stage', () => {
  const lost = training({ phase: 'diverged', value: null });
  expect(warnings([lost, lost, training({ phase: 'plateaued', best: 0.25 }), training()])).toEqual([
    {
      stage: 'train',
      bad: true,
      text: 'has diverged: loss is not finite at step 1,312, its best was 0.24, and 1 other',
    },
    {
      stage: 'train',
      bad: false,
      text: 'has plateaued, hardly better since half of its steps: loss 0.25 at step 1,312',
    },
  ]);
  expect(warnings(undefined)).toEqual([]);
});

it('of a stage the best training is drawn that goes on', () => {
  const lost = training({ phase: 'diverged', task: 'a', best: 0.1 });
  const all = [lost, training({ task: 'b', best: 0.3 }), training({ task: 'c', best: 0.2 }), training({ stage: 'x' })];
  expect(leading(all, 'train')?.task).toBe('c');
  expect(leading([lost], 'train')?.task).toBe('a');
  expect(leading(all, 'y')).toBeUndefined();
  const accuracies = all.map((one) => ({ ...one, better: 'higher' as const }));
  expect(leading(accuracies, 'train')?.task).toBe('b');
});

it('what is expected begins where the values end', () => {
  const points = [
    { step: 1, value: 0.9, at: '' },
    { step: 2, value: 0.5, at: '' },
  ];
  const of = training({
    step: 2,
    value: 0.5,
    best: 0.5,
    ahead: [{ step: 4, value: { low: 0.2, mid: 0.3, high: 0.4 } }],
  });
  expect(chart(of, [{ stage: 'train', task: 'train-0', metric: 'loss', points }])).toEqual([
    [1, 2, 4],
    [0.9, 0.5, null],
    [null, 0.5, 0.2],
    [null, 0.5, 0.3],
    [null, 0.5, 0.4],
  ]);
  expect(chart(training(), [])).toEqual([[], [], [], [], []]);
});
