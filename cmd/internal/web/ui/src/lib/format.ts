// Numbers as the command line writes them: see cmd/internal/cli/display and predictor/quantity.
import type { Goal, Interval, Prediction, Progress, Run, RunTotals, Size, Stage, Venue } from './api';

/** What stands for a value that is not known. */
export const unknown = '–';

export const isKnown = (interval: Interval | undefined): interval is Interval =>
  interval !== undefined && (interval.low !== 0 || interval.mid !== 0 || interval.high !== 0);

/** A number with so many digits after the point; a tie goes to the even digit, as in Go. */
function fixed(value: number, digits: number): string {
  const scaled = Math.abs(value) * 10 ** digits;
  const whole = Math.floor(scaled);
  if (scaled - whole === 0.5 && whole % 2 === 0) return (((value < 0 ? -1 : 1) * whole) / 10 ** digits).toFixed(digits);
  return value.toFixed(digits);
}

const two = (n: number) => String(n).padStart(2, '0');

/** A time with two to three digits: "0.084 s", "0.25 s", "12.3 s", "4m05s", "3h07m". */
export function seconds(value: number): string {
  if (!(value >= 0) || value >= 1e9) return unknown;
  if (value < 0.0995) return fixed(value, 3) + ' s';
  if (value < 0.995) return fixed(value, 2) + ' s';
  if (value < 99.95) return fixed(value, 1) + ' s';
  if (value < 3600) {
    const whole = Math.round(value);
    return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
  }
  const minutes = Math.round(value / 60);
  return `${Math.floor(minutes / 60)}h${two(minutes % 60)}m`;
}

/** An amount of memory in the largest binary unit that keeps it at or above one: "512 B", "1.5 GiB". */
export function bytes(value: number): string {
  for (const [size, name] of [
    [2 ** 40, 'TiB'],
    [2 ** 30, 'GiB'],
    [2 ** 20, 'MiB'],
    [2 ** 10, 'KiB'],
  ] as const) {
    if (Math.abs(value) >= size) {
      const scaled = value / size;
      return fixed(scaled, Math.abs(scaled) >= 100 || Number.isInteger(scaled) ? 0 : 1) + ' ' + name;
    }
  }
  return Math.round(value) + ' B';
}

/** Peak and grant of memory in one unit, rounded up: "190/256 MiB". */
export function peakOfGrant(peak: number, grant: number): string {
  if (peak <= 0 && grant <= 0) return unknown;
  const [unit, name] = Math.max(peak, grant) >= 10 * 2 ** 30 ? [2 ** 30, 'GiB'] : [2 ** 20, 'MiB'];
  const write = (b: number) => (b <= 0 ? unknown : String(Math.ceil(b / unit)));
  return `${write(peak)}/${write(grant)} ${name}`;
}

/** US dollars with four significant digits: "$0.0001234", "$12.50". */
export function dollars(usd: number): string {
  if (!Number.isFinite(usd)) return unknown;
  const magnitude = Math.abs(usd);
  if (magnitude === 0) return '$0';
  if (magnitude >= 0.995) return '$' + fixed(usd, 2);
  return '$' + fixed(usd, Math.min(100, 3 - Math.floor(Math.log10(magnitude))));
}

/** Picodollars, the unit of all amounts of money in the API. */
export const money = (picodollars: number) => dollars(picodollars / 1e12);

/** What attempts cost, some of which may go on: nothing is known of those yet where that is 0. */
export const spent = (picodollars: number, goesOn: boolean) =>
  picodollars === 0 && goesOn ? unknown : money(picodollars);

/** A number without needless digits: "1", "0.25". */
export const plain = (value: number) => String(Number(value.toPrecision(4)));

/** Thousandths of a core: "1 core", "0.25 cores". */
export const cores = (milli: number) => `${milli / 1000} ${milli === 1000 ? 'core' : 'cores'}`;

/** A size: "0.5 cores, 96 MiB". */
export function size(of: Size): string {
  let text = `${cores(of.cpu_milli)}, ${bytes(of.memory_bytes)}`;
  if (of.gpu_milli || of.gpu_memory_bytes)
    text += `, ${(of.gpu_milli ?? 0) / 1000} GPU with ${bytes(of.gpu_memory_bytes ?? 0)}`;
  if (of.device_class) text += ` on ${of.device_class}`;
  return text;
}

export const isNoSize = (of: Size) =>
  !of.cpu_milli && !of.memory_bytes && !of.gpu_milli && !of.gpu_memory_bytes && !of.device_class;

/** A configured duration: "300ms", "30s", "1m30s", "15m", "2h". */
export function duration(nanoseconds: number): string {
  if (nanoseconds < 1e9) return plain(nanoseconds / 1e6) + 'ms';
  const hours = Math.floor(nanoseconds / 3.6e12);
  const minutes = Math.floor((nanoseconds % 3.6e12) / 6e10);
  const rest = Number(((nanoseconds % 6e10) / 1e9).toFixed(3));
  return (hours ? `${hours}h` : '') + (minutes ? `${minutes}m` : '') + (rest ? `${rest}s` : '');
}

/** A goal; "no goal" for none. */
export function goal(of: Goal): string {
  const parts: string[] = [];
  if (of.deadline_ns)
    parts.push('deadline ' + duration(of.deadline_ns) + (of.confidence ? ` with ${plain(of.confidence * 100)} %` : ''));
  if (of.budget_picodollars) parts.push('budget ' + money(of.budget_picodollars));
  if (of.minimise) parts.push('minimise ' + of.minimise);
  return parts.join(', ') || 'no goal';
}

/** The ends of an interval: "6.1 s to 11.2 s". */
export const range = (of: Interval, write: (value: number) => string) => `${write(of.low)} to ${write(of.high)}`;

/** An interval with its middle: "8.0 s (6.1 s to 11.2 s)". */
export const between = (of: Interval, write: (value: number) => string) =>
  of.low === of.high ? write(of.mid) : `${write(of.mid)} (${range(of, write)})`;

/** What a forecast rests on: "rests on its own tasks and 4 earlier runs"; empty where that is not told. */
export const basis = (of: Prediction) =>
  of.basis ? `rests on ${of.basis}` : of.runs ? `rests on ${count(of.runs, 'earlier run')}` : '';

/** How far an attempt is: "step 3", "312 of 1,000 (31%)". */
const doneOf = (step: number, of: number | undefined) =>
  of
    ? `${step.toLocaleString('en')} of ${of.toLocaleString('en')} (${Math.floor((100 * step) / of)}%)`
    : `step ${step.toLocaleString('en')}`;

/** How much is done in a second, by what: "128 samples/s, 4,096 tokens/s". */
export const perSecond = (counts: Record<string, number> | undefined) =>
  Object.entries(counts ?? {})
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, rate]) => {
      const whole = Math.round(rate) >= 100 && rate < 2 ** 53;
      const number = whole ? Math.round(rate).toLocaleString('en') : String(Number(rate.toPrecision(3)));
      return `${number} ${name.replaceAll('_', ' ')}/s`;
    })
    .join(', ');

/**
 * How far the attempt of a stage is that ends last: "312 of 1,000 (31%), 128 samples/s, 4m05s left (3m10s to 5m20s),
 * and 2 others". Empty where none says anything.
 */
export function progressOf(told: Progress[] | undefined, stage: string): string {
  const [last, ...others] = (told ?? []).filter((p) => p.stage === stage);
  if (!last) return '';
  const left = last.left_seconds;
  return (
    [doneOf(last.step, last.of), perSecond(last.per_second)].filter(Boolean).join(', ') +
    (isKnown(left) ? `, ${seconds(left.mid)} left (${range(left, seconds)})` : '') +
    (others.length ? `, and ${count(others.length, 'other')}` : '')
  );
}

/** How probable it is that a goal is missed: "83% likely to be missed"; empty where it will probably be kept. */
export const missing = (probability: number | undefined) =>
  probability && probability > 0.5 ? `${Math.round(100 * probability)}% likely to be missed` : '';

/**
 * Peak and grant by venue: "pool 24/27 MiB, function 49/128 MiB"; of a stage that ran at one venue, without its name.
 */
export function memoryByVenue(memory: Stage['memory']): string {
  const ran = (['pool', 'function'] as const).filter((venue) => memory?.[venue]);
  return (
    ran
      .map(
        (venue) =>
          (ran.length > 1 ? venue + ' ' : '') + peakOfGrant(memory![venue]!.peak_bytes, memory![venue]!.grant_bytes),
      )
      .join(', ') || unknown
  );
}

/** The most memory that an attempt of the stage took at this venue, in bytes; 0 while none has ended there. */
export const peakAt = (stage: Pick<Stage, 'memory'> | undefined, venue: Venue = 'pool') =>
  stage?.memory?.[venue]?.peak_bytes ?? 0;

/** JSON as people read it: a level a line, but a list of numbers on one. */
export const readable = (value: unknown) =>
  JSON.stringify(value, null, 2).replace(
    /\[\n\s*((?:[\d.e+-]+,?\n\s*)+)\]/g,
    (_, numbers: string) => '[' + numbers.trim().replace(/\s+/g, ' ') + ']',
  );

/**
 * How an amount compares with what came: "42% less", "12% more", "2.2 times as much"; empty when that cannot be said.
 */
export function against(amount: number, came: number, as: string): string {
  if (!(amount > 0) || !(came > 0)) return '';
  const ratio = amount / came;
  if (ratio >= 2) return `${fixed(ratio, 1)} times ${as}`;
  if (Math.abs(ratio - 1) < 0.005) return as;
  return ratio > 1 ? `${percent(ratio - 1)} more` : `${percent(1 - ratio)} less`;
}

/**
 * By how much a run is past its deadline, in seconds, and past its budget, in picodollars; 0 for a limit that it keeps
 * or has not.
 */
export function missed(run: Pick<Run, 'goal' | 'totals'>, elapsed: number): { late: number; dear: number } {
  const { deadline_ns: deadline, budget_picodollars: budget } = run.goal;
  return {
    late: deadline ? Math.max(0, elapsed - deadline / 1e9) : 0,
    dear: budget ? Math.max(0, run.totals.cost_picodollars - budget) : 0,
  };
}

/** What runs come to: "20 runs: 1 running, 18 succeeded, 1 failed; $0.12; 2 missed their deadline". */
export function sums(totals: RunTotals): string {
  const states = (['running', 'succeeded', 'failed', 'cancelled'] as const).filter((state) => totals.states[state]);
  const grouped = (n: number) => n.toLocaleString('en');
  const parts = [
    `${count(totals.runs, 'run')}: ${states.map((state) => `${grouped(totals.states[state])} ${state}`).join(', ')}`,
    money(totals.cost_picodollars),
  ];
  if (totals.missed_deadlines) parts.push(`${grouped(totals.missed_deadlines)} missed their deadline`);
  if (totals.missed_budgets) parts.push(`${grouped(totals.missed_budgets)} passed their budget`);
  return parts.join('; ');
}

/** How numbers of a unit are written. */
export function inUnit(unit: string): (value: number) => string {
  switch (unit) {
    case 'seconds':
      return seconds;
    case 'bytes':
      return bytes;
    case 'usd':
      return dollars;
    case 'picodollars':
      return money;
    case 'milli':
      return (value) => cores(Number(plain(value)));
    case 'ratio':
      return (value) => plain(value * 100) + '%';
    default:
      return (value) => `${plain(value)} ${unit}`.trimEnd();
  }
}

/** A named number of a decision, whose last word is its unit: pool_wait_seconds of 2 is ["pool wait", "2.0 s"]. */
export function input(name: string, value: number): [name: string, value: string] {
  if (name.endsWith('_usd_per_hour'))
    return [name.slice(0, -'_usd_per_hour'.length).replaceAll('_', ' '), dollars(value) + '/h'];
  const words = name.split('_');
  const unit = words.at(-1) ?? '';
  if (words.length > 1 && ['seconds', 'bytes', 'usd', 'picodollars', 'milli', 'ratio'].includes(unit)) {
    return [words.slice(0, -1).join(' '), inUnit(unit)(value)];
  }
  return [words.join(' '), plain(value)];
}

/** By how much what came differs from what was predicted: "+6%", "-12%". */
export function deviation(predicted: number, actual: number): string {
  if (!(predicted > 0) || !(actual > 0)) return unknown;
  const percent = Math.round((actual / predicted - 1) * 100);
  return `${percent > 0 ? '+' : percent < 0 ? '\u2212' : ''}${Math.abs(percent)}%`;
}

/** A ratio as a percentage: "12%". */
export const percent = (ratio: number) => Math.round(ratio * 100) + '%';

export const count = (n: number, noun: string) => `${n.toLocaleString('en')} ${noun}${n === 1 ? '' : 's'}`;

const isZeroTime = (text: string | undefined): text is undefined => !text || text.startsWith('0001-01-01');

/** Milliseconds since the epoch; NaN for no time. */
export const instant = (text: string | undefined) => (isZeroTime(text) ? NaN : Date.parse(text));

/** A point in time, in the reader's zone: "14:05:09" today, "20 Nov 14:05:09" on another day. */
export function clock(text: string | undefined, now: number): string {
  const at = instant(text);
  if (Number.isNaN(at)) return unknown;
  const date = new Date(at);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  if (date.toDateString() === new Date(now).toDateString()) return time;
  const year = date.getFullYear() === new Date(now).getFullYear() ? '' : ` ${date.getFullYear()}`;
  return `${date.getDate()} ${date.toLocaleString('en', { month: 'short' })}${year} ${time}`;
}

/** Numbers of CPUs with runs drawn together: "0-3, 8". */
export function ranges(numbers: readonly number[]): string {
  const parts: string[] = [];
  const sorted = [...numbers].sort((a, b) => a - b);
  for (let i = 0; i < sorted.length;) {
    let j = i;
    while (j + 1 < sorted.length && sorted[j + 1] === sorted[j]! + 1) j++;
    parts.push(i === j ? `${sorted[i]}` : `${sorted[i]}-${sorted[j]}`);
    i = j + 1;
  }
  return parts.join(', ');
}

/** Text of a user's program without control characters and terminal sequences. */
export function clean(text: string): string {
  return text.replace(/\x1b\[[0-?]*[ -/]*[@-~]/g, '').replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, ' ');
}
