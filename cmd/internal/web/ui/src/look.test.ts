/// <reference types="vite/client" />
import { describe, expect, it } from 'vitest';
import css from './app.css?raw';

const sources = import.meta.glob<string>(['./**/*.{svelte,ts,css}', '!./**/*.test.ts'], {
  query: '?raw',
  import: 'default',
  eager: true,
});

/** The colours of a scheme: those of the dark one replace those of the light one. */
function tokens(scheme: 'light' | 'dark'): Record<string, string> {
  const blocks = [...css.matchAll(/:root \{([^}]*)\}/g)].map((match) => match[1]!);
  const found: Record<string, string> = {};
  for (const block of scheme === 'light' ? blocks.slice(0, 1) : blocks) {
    for (const [, name, value] of block.matchAll(/--([a-z-]+): (#[0-9a-f]{3,6});/g)) found[name!] = value!;
  }
  return found;
}

/** Relative luminance: https://www.w3.org/TR/WCAG22/#dfn-relative-luminance */
function luminance(color: string): number {
  const digits = color.length === 4 ? [...color.slice(1)].map((d) => d + d) : color.slice(1).match(/../g)!;
  const [r, g, b] = digits
    .map((d) => parseInt(d, 16) / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
}
const contrast = (a: string, b: string) => {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (light! + 0.05) / (dark! + 0.05);
};

it('contrast is computed as the guidelines do', () => {
  expect(contrast('#000', '#ffffff')).toBe(21);
  expect(contrast('#767676', '#fff')).toBeCloseTo(4.54, 2);
});

describe.each(['light', 'dark'] as const)('in the %s scheme', (scheme) => {
  const of = tokens(scheme);
  it.each(['text', 'quiet', 'accent', 'good', 'bad', 'busy', 'pool', 'function'])(
    'text in %s can be read on every ground (WCAG 2.2 AA, 4.5:1)',
    (name) => {
      for (const ground of ['ground', 'raised', ...(['text', 'quiet', 'bad'].includes(name) ? ['bad-ground'] : [])]) {
        expect(contrast(of[name]!, of[ground]!), `${name} on ${ground}`).toBeGreaterThanOrEqual(4.5);
      }
    },
  );
  it.each(['pool', 'function', 'queue', 'start', 'good', 'bad', 'accent', 'text'])(
    'marks in %s stand out from the ground (WCAG 2.2 AA, 3:1)',
    (name) => {
      expect(contrast(of[name]!, of['ground']!)).toBeGreaterThanOrEqual(3);
    },
  );
});

it('what a program printed never becomes markup, and nothing is loaded from elsewhere', () => {
  expect(Object.keys(sources).length).toBeGreaterThan(20);
  for (const [name, text] of Object.entries(sources)) {
    expect(text, name).not.toMatch(/\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(/);
    expect(text, name).not.toMatch(/(src|href|url\(|fetch\()[=\s'"(]*https?:/);
  }
});
