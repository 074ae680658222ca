import { expect, it } from 'vitest';
import type { LogLine } from './api';
import { Seen } from './seen';

const line = (sequence: number, index: number, resume: number) => ({ sequence, index, resume }) as LogLine;

it('a log that goes on after a break has each line once', () => {
  const seen = new Seen();
  expect(seen.resume).toBe(0);
  expect([line(1, 0, 1), line(1, 1, 2), line(2, 0, 2)].map((l) => seen.again(l))).toEqual([false, false, false]);
  expect(seen.resume).toBe(2);
  // From there the stream tells message 2 again.
  expect([line(1, 1, 2), line(2, 0, 2), line(2, 1, 3), line(3, 0, 3)].map((l) => seen.again(l))).toEqual([
    true,
    true,
    false,
    false,
  ]);
});
