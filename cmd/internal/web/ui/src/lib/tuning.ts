// The trials of a tuning, ranked and laid out: pure arithmetic.
import type { Parameter, Trial, Tuning } from './api';
import { plain } from './format';

/** What a trial told last, and of which rung; undefined where no job of it told a number. */
export function told(trial: Trial): { objective: number; rung: number } | undefined {
  const job = trial.jobs?.findLast((j) => typeof j.objective === 'number');
  return job && { objective: job.objective!, rung: job.rung };
}

/** The same where the trial has neither failed nor diverged since: else it is no longer one that may be the best. */
const standing = (trial: Trial) => (trial.state === 'failed' || trial.state === 'diverged' ? undefined : told(trial));

/**
 * The trials, the best first, as the engine chooses the best: those of a higher rung before those of a lower one, of
 * one rung the better objective first; then those that told nothing, failed or diverged, as they were begun.
 */
export function ranked(tuning: Pick<Tuning, 'trials' | 'options'>): Trial[] {
  const sign = tuning.options.maximise ? -1 : 1;
  return [...(tuning.trials ?? [])].sort((a, b) => {
    const [x, y] = [standing(a), standing(b)];
    if (x && y) return y.rung - x.rung || sign * (x.objective - y.objective) || a.number - b.number;
    return x ? -1 : y ? 1 : a.number - b.number;
  });
}

/** How many shades the trials are drawn in, by their place; those that told nothing have none. */
export const shades = 5;

/** The shade of each trial by its number: 0 for the best part of those that told an objective. */
export function shadesOf(order: readonly Trial[]): Map<number, number> {
  const with_ = order.filter((trial) => told(trial));
  return new Map(
    with_.map((trial, i) => [trial.number, Math.min(shades - 1, Math.floor((i * shades) / with_.length))]),
  );
}

/** Where a value lies on its axis, from 0 to 1; undefined where the trial does not have it. */
export function place(of: Parameter, value: number | string | undefined): number | undefined {
  if (value === undefined) return undefined;
  if (of.kind === 'choice') {
    const choices = of.choices ?? [];
    const at = choices.indexOf(String(value));
    return at < 0 ? undefined : choices.length === 1 ? 0.5 : at / (choices.length - 1);
  }
  return along(of.low ?? 0, of.high ?? 0, Number(value), of.log ?? false);
}

/** Where a number lies between two ends, by equal differences or by equal factors. */
export function along(low: number, high: number, value: number, log: boolean): number {
  if (!(high > low)) return 0.5;
  const part = log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  return Math.min(1, Math.max(0, part));
}

/** What stands beside an axis, from its lower end on: the choices, or the ends and the middle. */
export function marksOf(of: Parameter): { at: number; text: string }[] {
  if (of.kind === 'choice')
    return (of.choices ?? []).map((text) => ({ at: place(of, text) ?? 0, text: clipped(text, 12) }));
  const [low, high] = [of.low ?? 0, of.high ?? 0];
  if (!(high > low)) return [{ at: 0.5, text: plain(low) }];
  const middle = of.log ? Math.sqrt(low * high) : (low + high) / 2;
  return [low, middle, high].map((value, i) => ({ at: i / 2, text: short(value) }));
}

/** Two digits, as beside an axis there is little room. */
export function short(value: number): string {
  const rounded = Number(value.toPrecision(2));
  const size = Math.abs(rounded);
  return size !== 0 && (size < 0.01 || size >= 1e5)
    ? rounded.toExponential().replace('e+', 'e')
    : String(Number(rounded.toPrecision(2)));
}

export const clipped = (text: string, most: number) => (text.length > most ? text.slice(0, most - 1) + '…' : text);

/** Objectives as an axis: by equal factors where they are above 0 and differ by much, so that the best are apart. */
export interface Scale {
  low: number;
  high: number;
  log: boolean;
}
export function scaleOf(objectives: readonly number[]): Scale {
  const low = Math.min(...objectives);
  const high = Math.max(...objectives);
  if (objectives.length === 0) return { low: 0, high: 1, log: false };
  if (low === high) {
    const around = Math.max(1, Math.abs(low) / 2); // 1 beside 1e20 is nothing
    return { low: low - around, high: high + around, log: false };
  }
  return { low, high, log: low > 0 && high / low > 20 };
}

/** Which trials go on, of a search that has rungs. */
export function goesOn({ algorithm, least, most, eta }: Tuning['options']): string {
  const factor = eta || 3;
  return algorithm === 'random' || (least && most < least * factor)
    ? 'each trial gets all'
    : `of each rung the best 1 in ${factor} goes on`;
}

/** A few marks of a scale. */
export function marks(scale: Scale, wanted = 4): number[] {
  return Array.from({ length: wanted + 1 }, (_, i) =>
    scale.log
      ? scale.low * (scale.high / scale.low) ** (i / wanted)
      : scale.low + ((scale.high - scale.low) * i) / wanted,
  );
}

/** Values of a configuration in the order of the space: "lr 0.0034, layers 4". */
export function configured(space: readonly Parameter[], configuration: Trial['configuration']): string {
  return space
    .filter((p) => configuration[p.name] !== undefined)
    .map((p) => {
      const value = configuration[p.name]!;
      return `${p.name} ${typeof value === 'number' ? plain(value) : value}`;
    })
    .join(', ');
}

/** Why a tuning has ended; empty while it goes on. */
export function ended(why: string | undefined): string {
  switch (why) {
    case undefined:
    case '':
      return '';
    case 'done':
      return 'done';
    case 'time':
      return 'its time was over';
    case 'deadline':
      return 'another job would have missed the deadline';
    case 'money':
      return 'its money did not pay another job';
    case 'budget':
      return 'the run’s budget did not pay another job';
    default:
      return why;
  }
}
