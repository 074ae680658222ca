// How trainings go: in words, and the band of what is expected of one as columns of a chart.
import type { Curve, Learning } from './api';
import { count, plain } from './format';

/** How a training goes: "loss 0.25 at step 1,312, best 0.24". */
export function now(of: Learning): string {
  const at = `at step ${of.step.toLocaleString('en')}`;
  if (of.value === null)
    return `${of.metric} is not finite ${at}` + (of.best === null ? '' : `, its best was ${plain(of.best)}`);
  const best = of.best !== null && of.best !== of.value ? `, best ${plain(of.best)}` : '';
  return `${of.metric} ${plain(of.value)} ${at}${best}`;
}

/** What is expected at its end, "0.1 (0.09 to 0.125) at step 5,000 by its curve and 1 earlier task"; else empty. */
export function ending(of: Learning): string {
  if (!of.final) return '';
  const { low, mid, high } = of.final;
  const when = of.planned ? `at step ${of.planned.toLocaleString('en')}` : 'when it ends';
  const by = 'its curve' + (of.earlier ? ` and ${count(of.earlier, 'earlier task')}` : '');
  return `${plain(mid)} (${plain(low)} to ${plain(high)}) ${when} by ${by}`;
}

/** What is to be looked at: one line for each stage and phase; none where trainings go on as they should. */
export function warnings(learning: readonly Learning[] | undefined): { stage: string; bad: boolean; text: string }[] {
  const found = new Map<string, { stage: string; bad: boolean; text: string; tasks: number }>();
  for (const of of learning ?? []) {
    if (of.phase !== 'diverged' && of.phase !== 'plateaued') continue;
    const key = JSON.stringify([of.stage, of.phase]);
    const known = found.get(key);
    if (known) {
      known.tasks++;
      continue;
    }
    const bad = of.phase === 'diverged';
    const what = bad ? 'has diverged' : 'has plateaued, hardly better since half of its steps';
    found.set(key, { stage: of.stage, bad, text: `${what}: ${now(of)}`, tasks: 1 });
  }
  return [...found.values()].map(({ stage, bad, text, tasks }) => ({
    stage,
    bad,
    text: text + (tasks > 1 ? `, and ${count(tasks - 1, 'other')}` : ''),
  }));
}

/** The training that is drawn of a stage: the one whose best is the best of those that go on, else the first. */
export function leading(learning: readonly Learning[], stage: string): Learning | undefined {
  const of = learning.filter((one) => one.stage === stage);
  const better = (a: Learning, b: Learning) => (a.better === 'higher' ? a.best! > b.best! : a.best! < b.best!);
  return (
    of
      .filter((one) => one.phase !== 'diverged' && one.best !== null)
      .reduce<Learning | undefined>(
        (most, one) => (!most || (one.metric === most.metric && better(one, most)) ? one : most),
        undefined,
      ) ?? of[0]
  );
}

/**
 * Columns for a chart of a training: steps, its values, and low, middle and high of what is expected, which begin where
 * the values end.
 */
export function chart(of: Learning, curves: readonly Curve[]): (number | null)[][] {
  const points = curves.find((c) => c.stage === of.stage && c.task === of.task && c.metric === of.metric)?.points ?? [];
  const by = new Map<number, [number | null, number | null, number | null, number | null]>();
  for (const point of points) by.set(point.step, [point.value, null, null, null]);
  if (of.ahead?.length && of.best !== null) {
    const last = by.get(of.step);
    by.set(of.step, [last?.[0] ?? null, of.best, of.best, of.best]);
    for (const { step, value } of of.ahead) by.set(step, [null, value.low, value.mid, value.high]);
  }
  const steps = [...by.keys()].sort((a, b) => a - b);
  return [steps, ...[0, 1, 2, 3].map((i) => steps.map((step) => by.get(step)![i] ?? null))];
}
