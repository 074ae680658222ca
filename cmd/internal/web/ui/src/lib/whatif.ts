// What a run could come to, as the plane of cost against latency draws it.
import type { Given, Outlook, WhatIf, WhatIfPoint } from './api';
import { count } from './format';

const text = (g: Given): string => {
  const slots = g.pool_slots ? count(g.pool_slots, 'slot') : '';
  const functions = g.functions ? count(g.functions, 'function') : '';
  const cores = g.slot_size ? ` of ${count(g.slot_size.cpu_milli / 1000, 'core')}` : '';
  return [slots && slots + cores, functions].filter(Boolean).join(' and ');
};

/** What the stages of a point get: "4 slots of 1 core and 8 functions for score, 1 slot of 1 core for load, train". */
export function gets(point: WhatIfPoint): string {
  const stages = new Map<string, string[]>();
  for (const g of point.stages ?? []) {
    if (g.tasks === 0) continue;
    const key = text(g);
    stages.set(key, [...(stages.get(key) ?? []), g.stage]);
  }
  return [...stages].map(([what, names]) => `${what} for ${names.join(', ')}`).join('; ');
}

const certain = (value: number) => ({ low: value, mid: value, high: value });

/** The points as alternatives of a plane; undefined where nothing is known. */
export function asOutlook(answer: WhatIf): Outlook | undefined {
  const present = answer.present;
  if (!answer.known || !present) return undefined;
  const alternative = (p: WhatIfPoint, name = gets(p)) => ({
    name,
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
    alternatives: (answer.points ?? []).map((p) => alternative(p)),
    feasible: answer.promise?.met ?? true,
    summary: '',
  };
}
