// The plane of cost against latency: pure arithmetic.
import type { Alternative, Goal } from './api';

/** A goal as it is being edited: seconds and US dollars; undefined for none. */
export interface Draft {
  deadline: number | undefined;
  /** Percent; undefined for the usual 90. */
  confidence: number | undefined;
  budget: number | undefined;
  minimise: string;
}

export const draftOf = (goal: Goal): Draft => ({
  deadline: goal.deadline_ns ? goal.deadline_ns / 1e9 : undefined,
  confidence: goal.confidence ? Number((goal.confidence * 100).toPrecision(12)) : undefined,
  budget: goal.budget_picodollars ? goal.budget_picodollars / 1e12 : undefined,
  minimise: goal.minimise ?? '',
});

/** Whole nanoseconds and picodollars, as the API wants them. */
export function goalOf(draft: Draft): Goal {
  const goal: Goal = {};
  if (draft.deadline !== undefined) goal.deadline_ns = Math.round(draft.deadline * 1e9);
  if (draft.confidence !== undefined && goal.deadline_ns)
    goal.confidence = Math.min(0.999, Math.max(0.5, Number((draft.confidence / 100).toPrecision(12))));
  if (draft.budget !== undefined) goal.budget_picodollars = Math.round(draft.budget * 1e12);
  if (draft.minimise) goal.minimise = draft.minimise;
  return goal;
}

export const sameGoal = (a: Goal, b: Goal) =>
  (a.deadline_ns ?? 0) === (b.deadline_ns ?? 0) &&
  (a.confidence ?? 0) === (b.confidence ?? 0) &&
  (a.budget_picodollars ?? 0) === (b.budget_picodollars ?? 0) &&
  (a.minimise ?? '') === (b.minimise ?? '');

/** Three significant digits: as exact as a hand that drags. */
export const rounded = (value: number) => Number(value.toPrecision(3));

/** Marks of an axis from 0 to `most`, at 1, 2 or 5 times a power of ten, about `wanted` of them. */
export function ticks(most: number, wanted: number): number[] {
  if (!(most > 0)) return [0];
  const rough = most / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = ([1, 2, 5, 10].find((m) => m * power >= rough * (1 - 1e-9)) ?? 10) * power;
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/**
 * The ends of both axes: room for every alternative and for what has been, and for a goal unless it is far beyond all
 * of them (a goal that would press the rest into a corner lies at the edge).
 */
export function extent(
  alternatives: readonly Alternative[],
  now: { at: number; cost: number },
  goal: Goal,
): { time: number; cost: number } {
  const time = Math.max(now.at, ...alternatives.map((a) => a.finish_seconds.high));
  const cost = Math.max(now.cost, ...alternatives.map((a) => a.cost_usd.high));
  const room = (most: number, wanted: number) =>
    (Math.max(most, wanted <= 2.5 * most || most === 0 ? wanted : 0) || 1) * 1.12;
  return { time: room(time, (goal.deadline_ns ?? 0) / 1e9), cost: room(cost, (goal.budget_picodollars ?? 0) / 1e12) };
}
