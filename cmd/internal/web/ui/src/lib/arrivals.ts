// Where the picture of what comes at a stage has its marks: bars of what came, a band of what was predicted.

import type { Arriving, Interval } from './api';

export interface Bar {
  at: number;
  tasks: number;
  /** What was predicted of it a minute before. */
  predicted?: Interval | undefined;
}

export interface Fan {
  /** Minutes that are over, and the one that goes on, which is the last. */
  bars: Bar[];
  /** Runs of minutes that follow each other without a gap, of which something was predicted; the last is to come. */
  bands: { at: number; predicted: Interval }[][];
  /** The first minute and the end of the last, in milliseconds since the epoch. */
  from: number;
  to: number;
  /** The highest of all, at least 1. */
  most: number;
  /** How many of the minutes that are over came as predicted, and of how many something was. */
  within: number;
  told: number;
}

const minute = 60_000;

/** What was said includes a count that is as near as half a task: counts are whole, what is predicted is not. */
export const within = (tasks: number, said: Interval) => tasks >= said.low - 0.5 && tasks <= said.high + 0.5;

export function fan(of: Arriving): Fan {
  const now = Date.parse(of.now);
  const came = (of.came ?? []).map((m) => ({ at: Date.parse(m.at), tasks: m.tasks, predicted: m.predicted_tasks }));
  const next = (of.next ?? []).map((m) => ({ at: Date.parse(m.at), predicted: m.predicted_tasks }));
  const said = [...came.flatMap(({ at, predicted }) => (predicted ? [{ at, predicted }] : [])), ...next];
  const bands: Fan['bands'] = [];
  for (const point of said) {
    const last = bands.at(-1);
    if (last && last.at(-1)!.at + minute === point.at) last.push(point);
    else bands.push([point]);
  }
  const told = came.filter((m) => m.predicted);
  return {
    bars: [...came, { at: now, tasks: of.count }],
    bands,
    from: Math.min(now, came[0]?.at ?? now),
    to: Math.max(now, next.at(-1)?.at ?? now) + minute,
    most: Math.max(1, of.count, ...came.map((m) => m.tasks), ...said.map((m) => m.predicted.high)),
    told: told.length,
    within: told.filter((m) => within(m.tasks, m.predicted!)).length,
  };
}

/** The outline of a band: along the upper ends of its minutes and back along the lower ones. */
export function outline(band: Fan['bands'][number], x: (at: number) => number, y: (tasks: number) => number): string {
  const point = (at: number, tasks: number) => `${x(at).toFixed(1)} ${y(tasks).toFixed(1)}`;
  const upper = band.flatMap((m) => [point(m.at, m.predicted.high), point(m.at + minute, m.predicted.high)]);
  const lower = band.flatMap((m) => [point(m.at, m.predicted.low), point(m.at + minute, m.predicted.low)]);
  return `M${[...upper, ...lower.reverse()].join('L')}Z`;
}

/** The line through the middle of a band. */
export function middle(band: Fan['bands'][number], x: (at: number) => number, y: (tasks: number) => number): string {
  return `M${band
    .flatMap((m) => [m.at, m.at + minute].map((at) => `${x(at).toFixed(1)} ${y(m.predicted.mid).toFixed(1)}`))
    .join('L')}`;
}

/** The chance that anything comes in the minutes to come, and by when, in milliseconds since the epoch. */
export function soon(of: Arriving): { chance: number; by: number } | undefined {
  const next = of.next ?? [];
  if (next.length === 0) return undefined;
  const none = next.reduce((left, m) => left * (1 - m.chance), 1);
  return { chance: 1 - none, by: Date.parse(next.at(-1)!.at) + minute };
}
