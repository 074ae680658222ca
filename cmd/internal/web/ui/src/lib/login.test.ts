import { expect, test } from 'vitest';
import { codeOf } from './login';

test('the code of a link', () => {
  expect(codeOf('#login=2UF3T7NQZKE')).toBe('2UF3T7NQZKE');
  for (const hash of ['', '#', '#main', '#login=', '#login=a b', '#login=a&b', 'login=a', '#xlogin=a']) {
    expect(codeOf(hash), hash).toBeUndefined();
  }
});
