// Slots over time, read from decisions: each says what a stage held before and holds from then on.
import type { Decision, Stage, Venue } from './api';
import { instant } from './format';

/** From `at` (seconds since the run's start) on there are so many slots. */
export interface Step {
  at: number;
  slots: number;
}

export interface Lane {
  stage: string;
  venue: Venue;
  /** Ascending, the first at 0. */
  steps: Step[];
  most: number;
}

const venues: readonly Venue[] = ['pool', 'function'];

/** The number that "12 slots" begins with; NaN without one. */
const slotsOf = (text: string) => (/^\d+/.test(text) ? parseInt(text, 10) : NaN);

/**
 * The slots of each stage and venue between 0 and `until` seconds after `started` (milliseconds since the epoch). A
 * lane whose slots never changed meanwhile holds what the stage has now. Lanes that held nothing are left out.
 */
export function lanes(
  stages: readonly Stage[],
  decisions: readonly Decision[],
  started: number,
  until: number,
): Lane[] {
  const found: Lane[] = [];
  for (const stage of stages) {
    for (const venue of venues) {
      const changes = decisions
        .filter((d) => d.what === 'slots' && d.stage.name === stage.name && d.venue === venue)
        .map((d) => ({ at: (instant(d.at) - started) / 1000, from: slotsOf(d.from), to: slotsOf(d.to) }))
        .filter((c) => Number.isFinite(c.at) && Number.isFinite(c.to))
        .sort((a, b) => a.at - b.at);
      const steps: Step[] = [{ at: 0, slots: changes.length > 0 ? changes[0]!.from || 0 : (stage.slots[venue] ?? 0) }];
      for (const change of changes) {
        if (change.at > until) break;
        if (change.at <= 0) steps[0] = { at: 0, slots: change.to };
        else steps.push({ at: change.at, slots: change.to });
      }
      const most = Math.max(...steps.map((step) => step.slots));
      if (most > 0) found.push({ stage: stage.name, venue, steps, most });
    }
  }
  return found;
}

/** Spans of a lane in which it holds slots. */
export function spans(lane: Lane, until: number): { from: number; to: number; slots: number }[] {
  return lane.steps
    .map((step, i) => ({ from: step.at, to: lane.steps[i + 1]?.at ?? until, slots: step.slots }))
    .filter((span) => span.slots > 0 && span.to > span.from);
}

/**
 * The sums of all lanes of each venue at every time at which one changes, ending at `until`: columns for a chart of
 * steps.
 */
export function totals(of: readonly Lane[], until: number): { at: number[]; pool: number[]; function: number[] } {
  const times = new Set<number>([0, until]);
  for (const lane of of) for (const step of lane.steps) times.add(step.at);
  const at = [...times].sort((a, b) => a - b);
  const sum = (venue: Venue) =>
    at.map((t) =>
      of
        .filter((lane) => lane.venue === venue)
        .reduce((total, lane) => total + (lane.steps.findLast((step) => step.at <= t)?.slots ?? 0), 0),
    );
  return { at, pool: sum('pool'), function: sum('function') };
}

/** Between marks of an axis of seconds: steps that are round as they are written, from a millisecond to a day. */
export const secondSteps = [
  0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200,
  21_600, 43_200, 86_400,
];

/** Between marks of an axis of whole numbers. */
export const wholeSteps = [1, 2, 5]
  .flatMap((n) => [0, 1, 2, 3, 4, 5, 6, 7, 8].map((power) => n * 10 ** power))
  .sort((a, b) => a - b);

/** Round marks of an axis from 0 to `most` seconds, about `wanted` of them. */
export function marks(most: number, wanted: number): number[] {
  const step = secondSteps.find((s) => most / s <= wanted) ?? Math.ceil(most / wanted / 86_400) * 86_400;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => i * step);
}
