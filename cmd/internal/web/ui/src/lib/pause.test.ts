import { expect, it } from 'vitest';
import { pause } from './pause';

it('pauses grow up to 15 s and are never shorter than a quarter of a second', () => {
  expect([0, 1, 4, 20].map((n) => pause(n, 1))).toEqual([500, 1000, 8000, 15_000]);
  expect([0, 20].map((n) => pause(n, 0))).toEqual([250, 7500]);
});
