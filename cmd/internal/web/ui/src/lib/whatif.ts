// What a run could come to, as the plane of cost against latency draws it.
import type { Outlook, WhatIf, WhatIfPoint } from './api';

const certain = (value: number) => ({ low: value, mid: value, high: value });

/** The points as alternatives of a plane; undefined where nothing is known. */
export function asOutlook(answer: WhatIf): Outlook | undefined {
  const present = answer.present;
  if (!answer.known || !present) return undefined;
  const alternative = (p: WhatIfPoint) => ({
    name: p.gets,
    finish_seconds: certain(p.seconds),
    cost_usd: certain(p.cost_usd),
  });
  return {
    run: '',
    goal: answer.goal,
    at: answer.at,
    elapsed_seconds: answer.elapsed_seconds,
    spent_usd: answer.spent_usd,
    known: true,
    present: alternative(present),
    // Without a goal there is no plan for it: what is not known is not drawn.
    chosen: answer.promise
      ? alternative(answer.promise.plan)
      : { name: '', finish_seconds: certain(0), cost_usd: certain(0) },
    alternatives: (answer.points ?? []).map(alternative),
    feasible: answer.promise?.met ?? true,
    summary: '',
  };
}
