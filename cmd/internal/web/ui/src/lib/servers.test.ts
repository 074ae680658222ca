import { describe, expect, it } from 'vitest';
import { colour, headless, standing } from './servers';

describe('servers', () => {
  it('stand as the command line says', () => {
    expect(standing({ leads: true })).toBe('leads');
    expect(standing({ own: true })).toBe('stands by');
    expect(standing({ gone: true })).toBe('gone');
    expect(colour({ leads: true })).toBe('succeeded');
    expect(colour({})).toBe('cancelled');
    expect(colour({ gone: true })).toBe('failed');
  });

  it('are headless while none leads', () => {
    expect(headless([{ own: true }, { gone: true }])).toBe(true);
    expect(headless([{ own: true }, { leads: true }])).toBe(false);
  });
});
