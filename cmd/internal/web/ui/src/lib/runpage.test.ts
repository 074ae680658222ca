import { expect, it } from 'vitest';
import type { Run, RunPage } from './api';
import { added, readAsFar, told } from './runpage';

const run = (name: string, second: number, state = 'running') =>
  ({ run: name, state, started_at: `2026-11-23T09:00:${String(second).padStart(2, '0')}Z` }) as unknown as Run;
const names = (page: RunPage) => page.runs.map((r) => r.run + ' ' + r.state);
const all = () => true;

it('what is told takes its place', () => {
  const page = { runs: [run('c', 5), run('a', 3)], next: 'x' };
  expect(names(told(page, [run('d', 9), run('b', 4), run('a', 3, 'failed')], all))).toEqual([
    'd running',
    'c running',
    'b running',
    'a failed',
  ]);
});

it('a run behind what was read waits until it is read, unless all was', () => {
  const page: RunPage = { runs: [run('c', 5)], next: 'x' };
  expect(names(told(page, [run('old', 1)], all))).toEqual(['c running']);
  expect(names(told({ runs: page.runs }, [run('old', 1)], all))).toEqual(['c running', 'old running']);
});

it('a run that is not selected any more goes', () => {
  const page = { runs: [run('c', 5), run('a', 3)] };
  expect(names(told(page, [run('a', 3, 'failed')], (r) => r.state === 'running'))).toEqual(['c running']);
});

it('an older page comes behind, and what was told of it meanwhile stays', () => {
  const page = { runs: [run('c', 5), run('b', 4, 'failed')], next: 'x' };
  const joined = added(page, { runs: [run('b', 4), run('a', 4), run('z', 3)], next: 'y' });
  expect(names(joined)).toEqual(['c running', 'b failed', 'a running', 'z running']);
  expect(joined.next).toBe('y');
});

it('what is read anew is read as far as was asked, also by who asks meanwhile', async () => {
  const left = ['e', 'd', 'c', 'b', 'a'].map((name, i) => run(name, 9 - i));
  let asked = 2;
  const read = (after = '0') => {
    const end = Number(after) + 1;
    if (end === 2) asked += 2; // somebody presses for older ones while the second is read
    return Promise.resolve({ runs: left.slice(end - 1, end), ...(end < left.length && { next: String(end) }) });
  };
  const page = await readAsFar(read, () => asked);
  expect(page.runs.map((r) => r.run)).toEqual(['e', 'd', 'c', 'b']);
  expect(page.next).toBe('4');
  expect((await readAsFar(read, () => 9)).next).toBeUndefined();
});
