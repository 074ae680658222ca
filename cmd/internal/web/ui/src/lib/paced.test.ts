import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { Paced } from './paced';

beforeEach(() => vi.useFakeTimers());
afterEach(() => vi.useRealTimers());

it('does it at once, and what is asked for meanwhile once more when the gap is over', () => {
  const act = vi.fn();
  const paced = new Paced(1000, act);
  for (let i = 0; i < 50; i++) paced.ask();
  expect(act).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(999);
  expect(act).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(1);
  expect(act).toHaveBeenCalledTimes(2);
  vi.advanceTimersByTime(5000);
  expect(act).toHaveBeenCalledTimes(2);
  paced.ask();
  expect(act).toHaveBeenCalledTimes(3);
});

it('does nothing after it was stopped', () => {
  const act = vi.fn();
  const paced = new Paced(1000, act);
  paced.ask();
  paced.ask();
  paced.stop();
  vi.advanceTimersByTime(5000);
  expect(act).toHaveBeenCalledTimes(1);
});
