// What a mark of the timeline says in words.
import type { Attempt } from './api';
import { bytes, instant, money, seconds } from './format';
import { spansOf, type Column } from './lay';

export const outcomes = [
  'running',
  'succeeded',
  'failed',
  'out_of_memory',
  'timed_out',
  'cancelled',
  'lost',
  'refused',
] as const;

export const outcomeName = (attempt: Attempt) =>
  (attempt.outcome ?? (instant(attempt.admitted_at) > 0 ? 'running' : 'queued')).replaceAll('_', ' ');

export const isBad = (attempt: Attempt) =>
  attempt.outcome !== undefined && attempt.outcome !== 'succeeded' && attempt.outcome !== 'cancelled';

export function tellAttempt(attempt: Attempt, now: number): string {
  const parts = [`${attempt.stage}, task ${attempt.task}`];
  if (attempt.attempt > 1) parts.push(`attempt ${attempt.attempt}`);
  const said = { queue: 'queued', start: 'starting', pool: 'ran', function: 'ran' };
  const spans = spansOf(attempt, now).map((span) => `${said[span.what]} ${seconds((span.to - span.from) / 1000)}`);
  const where = attempt.venue === 'function' ? 'at a function' : attempt.host ? `on ${attempt.host}` : 'at the pool';
  let text = `${parts.join(', ')} ${where}: ${[outcomeName(attempt), ...spans].join(', ')}`;
  if (attempt.cold) text += ', cold';
  if (attempt.peak_memory_bytes)
    text += `; peak ${bytes(attempt.peak_memory_bytes)} of ${bytes(attempt.grant.memory_bytes)}`;
  if (attempt.cost_picodollars) text += `; ${money(attempt.cost_picodollars)}`;
  if (attempt.error) text += `; ${attempt.error.split('\n', 1)[0]}`;
  return text;
}

export function tellColumn(stage: string, { bin, from, to }: Column, started: number): string {
  const mean = (n: number) => (n >= 10 ? n.toFixed(0) : n.toFixed(1));
  const at = (time: number) => seconds(Math.max(0, time - started) / 1000);
  let text = `${stage}, ${at(from)} to ${at(to)}, on average: `;
  text += `${mean(bin.pool)} running at the pool, ${mean(bin.function)} at functions, ${mean(bin.starting)} starting, `;
  text += `${mean(bin.queued)} queued; ${bin.ended} ended`;
  if (bin.failed) text += `, ${bin.failed} of them failed`;
  if (bin.out_of_memory) text += ` (${bin.out_of_memory} out of memory)`;
  return text;
}
