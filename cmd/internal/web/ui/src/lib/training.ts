// Bars of a split training: what was predicted and what came, against what there is.
import type { Training, TrainingPart } from './api';
import { seconds } from './format';

/** Shares of a bar's width, from 0 to 1; unset when nothing was predicted, or measured. */
export interface Bar {
  predicted?: number;
  measured?: number;
  /** What there is lies here; unset when nothing bounds it, or it is the whole width. */
  capacity?: number;
  /** More was taken, or is expected to be, than there is. */
  over: boolean;
}

/** A bar of amounts whose full width is whole; without an amount it is empty. */
export function bar(
  predicted: number | undefined,
  measured: number | undefined,
  capacity: number | undefined,
  whole: number,
): Bar {
  const share = (value: number | undefined) =>
    value && value > 0 && whole > 0 ? Math.min(1, value / whole) : undefined;
  const found: Bar = { over: !!capacity && Math.max(predicted ?? 0, measured ?? 0) > capacity };
  const shares = {
    predicted: share(predicted),
    measured: share(measured),
    capacity: capacity && capacity < whole ? share(capacity) : undefined,
  };
  for (const key of ['predicted', 'measured', 'capacity'] as const)
    if (shares[key] !== undefined) found[key] = shares[key];
  return found;
}

/**
 * The memory of each part on one scale, so that parts compare: the full width is the most that any of them has, holds
 * or should hold.
 */
export function memoryBars(parts: TrainingPart[]): Bar[] {
  const whole = Math.max(
    0,
    ...parts.map((p) => Math.max(p.capacity_bytes ?? 0, p.peak_bytes ?? 0, p.predicted_peak_bytes)),
  );
  return parts.map((p) => bar(p.predicted_peak_bytes, p.peak_bytes, p.capacity_bytes, whole));
}

/**
 * How long each part works in a step; the full width is the longer of the predicted and the measured step, so that the
 * rest is waiting.
 */
export function busyBars(of: Training): Bar[] {
  const parts = of.parts ?? [];
  const whole = Math.max(
    of.predicted_step_seconds,
    of.step_seconds ?? 0,
    ...parts.map((p) => Math.max(p.busy_seconds ?? 0, p.predicted_busy_seconds)),
  );
  return parts.map((p) => bar(p.predicted_busy_seconds, p.busy_seconds, undefined, whole));
}

/**
 * The time of a step with three digits, as the difference to its prediction may be small: "8.25 ms", "0.82 s", "12.3
 * s".
 */
export function step(value: number): string {
  if (!(value > 0) || value >= 10) return seconds(value);
  const [amount, unit] = value < 0.1 ? [value * 1000, ' ms'] : [value, ' s'];
  return Number(amount.toPrecision(3)) + unit;
}

/** The operations of a part: "31, embed to block.3.mlp". */
export function operations(part: TrainingPart): string {
  const named = [part.first, part.last].filter((name): name is string => !!name);
  return [part.ops.toLocaleString('en'), [...new Set(named)].join(' to ')].filter(Boolean).join(', ');
}
