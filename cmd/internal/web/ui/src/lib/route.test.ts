import { expect, it } from 'vitest';
import { parse, runPath } from './route';

it('the address of a run names it, whatever its letters', () => {
  for (const run of ['digits-1', 'a/b', 'ü %?#&']) {
    expect(parse(runPath(run))).toEqual({ view: 'run', run });
  }
  expect(['/', '/decisions', '/capacity', '/nowhere', '/runs/', '/runs/%zz'].map((path) => parse(path).view)).toEqual([
    'runs',
    'decisions',
    'capacity',
    'missing',
    'missing',
    'missing',
  ]);
});
