import { expect, it } from 'vitest';
import type { Alert } from './api';
import { standing } from './standing';

it('an alert holds until its run has recovered or ended', () => {
  const alert = (id: string, run: string, kind: Alert['kind']) => ({ id, run, kind }) as Alert;
  const newestFirst = [
    alert('5', 'a', 'recovered'),
    alert('4', 'b', 'budget_at_risk'),
    alert('3', 'a', 'deadline_at_risk'),
    alert('2', 'ended', 'deadline_at_risk'),
    alert('1', 'b', 'deadline_at_risk'),
  ];
  expect(standing(newestFirst, new Set(['a', 'b'])).map((a) => a.id)).toEqual(['4']);
});
