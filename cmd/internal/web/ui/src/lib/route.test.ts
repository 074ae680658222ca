import { expect, it } from 'vitest';
import { comparePath, parse, runPath } from './route';

it('the address of a run names it, whatever its letters', () => {
  for (const run of ['digits-1', 'a/b', 'ü %?#&']) {
    expect(parse(runPath(run))).toEqual({ view: 'run', run });
  }
  expect(
    ['/', '/decisions', '/capacity', '/compare', '/costs', '/nowhere', '/runs/', '/runs/%zz'].map(
      (path) => parse(path).view,
    ),
  ).toEqual(['runs', 'decisions', 'capacity', 'compare', 'costs', 'missing', 'missing', 'missing']);
});

it('the address of a comparison names both runs', () => {
  const address = new URL(comparePath('a&b', 'c/d'), 'http://127.0.0.1');
  expect([address.pathname, address.searchParams.get('a'), address.searchParams.get('b')]).toEqual([
    '/compare',
    'a&b',
    'c/d',
  ]);
});
