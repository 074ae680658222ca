import { describe, expect, it } from 'vitest';
import type { ListedHost } from './api';
import { colour, known, machines, matching, stages, standing, summary } from './hosts';

const host = (name: string, more: Partial<ListedHost> = {}): ListedHost => ({
  name,
  state: 'up',
  capacity: { cpu_milli: 4000, memory_bytes: 2 ** 30 },
  used: { cpu_milli: 0, memory_bytes: 0 },
  stages: [],
  ...more,
});

describe('hosts', () => {
  it('stand as the command line says', () => {
    expect(standing(host('a'))).toBe('up');
    expect(standing(host('a', { drained: true }))).toBe('drained');
    expect(standing(host('a', { state: 'lost', drained: true }))).toBe('lost, drained');
    expect(colour(host('a'))).toBe('succeeded');
    expect(colour(host('a', { drained: true }))).toBe('cancelled');
    expect(standing(host('a', { disk_full: true }))).toBe('disk full');
    expect(standing(host('a', { drained: true, disk_full: true }))).toBe('drained, disk full');
    expect(colour(host('a', { disk_full: true }))).toBe('failed');
    expect(colour(host('a', { state: 'lost' }))).toBe('failed');
    expect(colour(host('a', { state: 'joined' }))).toBe('cancelled');
  });

  it('are counted by state, the most first', () => {
    const all = [host('a'), host('b', { state: 'lost' }), host('c'), host('d', { drained: true })];
    expect(summary(all)).toBe('4 hosts: 2 up, 1 drained, 1 lost');
    expect(summary([host('a')])).toBe('1 host: 1 up');
  });

  it('are found by all words', () => {
    const all = machines(
      [host('gpu-1', { stages: ['digits/train'] }), host('gpu-2', { state: 'lost' }), host('cpu-1')],
      [],
    );
    const names = (text: string) => matching(all, text).map((one) => one.name);
    expect(names('')).toEqual(['gpu-1', 'gpu-2', 'cpu-1']);
    expect(names('GPU')).toEqual(['gpu-1', 'gpu-2']);
    expect(names('gpu lost')).toEqual(['gpu-2']);
    expect(names('train')).toEqual(['gpu-1']);
  });

  it('have the lease of their name', () => {
    const lease = { id: 'b', at: '' } as never;
    expect(machines([host('a'), host('b')], [lease]).map((one) => one.lease)).toEqual([undefined, lease]);
  });

  it('tell of their first stages', () => {
    expect(stages(host('a', { stages: ['a', 'b', 'c', 'd'] }))).toEqual({ first: ['a', 'b'], more: 2 });
    expect(stages(host('a', { stages: ['a', 'b', 'c'] }))).toEqual({ first: ['a', 'b', 'c'], more: 0 });
    expect(stages({ stages: null })).toEqual({ first: [], more: 0 });
  });

  it('were seen or were not', () => {
    expect(known('2026-11-27T20:00:00Z')).toBe(true);
    expect(known('0001-01-01T00:00:00Z')).toBe(false);
    expect(known(undefined)).toBe(false);
  });
});
