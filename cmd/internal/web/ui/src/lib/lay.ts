// Where the attempts of a run lie in its timeline: pure arithmetic, in pixels and in milliseconds since the epoch.
import type { Attempt, Bin, TimelineView } from './api';
import { instant } from './format';

/** What an attempt did from `from` to `to`. */
export interface Span {
  what: 'queue' | 'start' | 'pool' | 'function';
  from: number;
  to: number;
}

/** One attempt: its spans, and the row of its lane that it lies in. */
export interface Bar {
  attempt: Attempt;
  row: number;
  spans: Span[];
  /** The attempt before ran out of memory, and this one holds more. */
  grown: boolean;
}

export interface Column {
  bin: Bin;
  from: number;
  to: number;
}

export interface Row {
  stage: string;
  count: number;
  y: number;
  height: number;
  rowHeight: number;
  bars: Bar[];
  columns: Column[];
  /** The most attempts that were under way in a column, and at least 1: the height of the lane. */
  most: number;
}

export interface Layout {
  from: number;
  to: number;
  rows: Row[];
  height: number;
}

/** Lanes of so many attempts show each in a row of its own; in larger ones attempts that do not overlap share a row. */
const few = 24;
const gap = 10;
const binned = 64;

/** The spans of an attempt until `now`; those without length are left out, unless that is all there is. */
export function spansOf(attempt: Attempt, now: number): Span[] {
  const scheduled = instant(attempt.scheduled_at);
  const ended = instant(attempt.ended_at);
  const end = Number.isNaN(ended) ? now : ended;
  // Who says only for how long the code ran says by it when it began.
  const told = instant(attempt.started_at);
  const started = Number.isNaN(told) && attempt.wall_ns && !Number.isNaN(ended) ? ended - attempt.wall_ns / 1e6 : told;
  const admitted = instant(attempt.admitted_at);
  const spans: Span[] = [];
  const add = (what: Span['what'], from: number, to: number) => {
    if (to > from) spans.push({ what, from, to: Math.min(to, end) });
  };
  // A time that nobody told is that of the next step.
  const runs = Number.isNaN(started) ? end : started;
  const holds = Number.isNaN(admitted) ? runs : admitted;
  add('queue', Number.isNaN(scheduled) ? holds : scheduled, holds);
  add('start', holds, runs);
  add(attempt.venue, runs, end);
  if (spans.length === 0 && !Number.isNaN(ended)) spans.push({ what: attempt.venue, from: ended, to: ended });
  return spans;
}

/** Lays out a view in lanes from `top` on. */
export function lay(view: TimelineView, top: number): Layout {
  const from = instant(view.from);
  const to = Math.max(instant(view.to), from + 1);
  const rows: Row[] = [];
  let y = top;
  for (const lane of view.lanes ?? []) {
    const bars = pack(lane.attempts ?? [], to);
    const bins = lane.bins ?? [];
    const step = (to - from) / Math.max(1, bins.length);
    const columns = bins.map((bin, i) => ({ bin, from: from + i * step, to: from + (i + 1) * step }));
    const most = Math.max(1, ...bins.map((bin) => bin.queued + bin.starting + bin.pool + bin.function));
    const used = bars.reduce((sum, bar) => Math.max(sum, bar.row + 1), 1);
    const rowHeight = used <= 4 ? 12 : used <= 12 ? 8 : Math.max(0.6, Math.min(5, 160 / used));
    const height = bins.length > 0 ? binned : Math.max(18, used * rowHeight);
    rows.push({ stage: lane.stage, count: lane.count, y, height, rowHeight, bars, columns, most });
    y += height + gap;
  }
  return { from, to, rows, height: y };
}

/**
 * Puts attempts into rows, first fit by the time at which they held something; those that still wait share the last
 * row.
 */
function pack(attempts: readonly Attempt[], now: number): Bar[] {
  const before = new Map<string, Attempt>();
  const bars = attempts.map((attempt) => {
    const earlier = before.get(attempt.task);
    before.set(attempt.task, attempt);
    const grown = earlier?.outcome === 'out_of_memory' && attempt.grant.memory_bytes > earlier.grant.memory_bytes;
    return { attempt, row: 0, spans: spansOf(attempt, now), grown };
  });
  if (bars.length <= few) return bars.map((bar, row) => ({ ...bar, row }));
  const ends: number[] = []; // by row: where what lies there ends
  const waiting: Bar[] = [];
  const held = (bar: Bar) => bar.spans.find((span) => span.what !== 'queue')?.from ?? NaN;
  for (const bar of [...bars].sort((a, b) => held(a) - held(b) || 0)) {
    const begin = held(bar);
    if (Number.isNaN(begin)) {
      waiting.push(bar);
      continue;
    }
    const found = ends.findIndex((end) => end <= begin);
    bar.row = found < 0 ? ends.length : found;
    const free = ends[bar.row] ?? -Infinity;
    // What it waited is drawn as far as nobody else lies there.
    bar.spans = bar.spans
      .map((span) => (span.what === 'queue' ? { ...span, from: Math.max(span.from, free) } : span))
      .filter((span) => span.to > span.from);
    ends[bar.row] = bar.spans.at(-1)!.to;
  }
  for (const bar of waiting) bar.row = ends.length;
  return bars;
}
