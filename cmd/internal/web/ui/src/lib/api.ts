// The engine's JSON API as this page reads it. Field names are those of the Go types in cmd/internal/web, predictor and
// predictor/ledger.

import { session } from './session.svelte';

export type RunState = 'running' | 'succeeded' | 'failed' | 'cancelled';
export type Venue = 'pool' | 'function';

/** An interval of 80 percent; all zeros when nothing was predicted. */
export interface Interval {
  low: number;
  mid: number;
  high: number;
}

export interface Size {
  cpu_milli: number;
  memory_bytes: number;
  gpu_milli?: number;
  gpu_memory_bytes?: number;
  device_class?: string;
}

export interface Goal {
  deadline_ns?: number;
  /** The probability with which the deadline is to be met; 0.9 where it is not said. */
  confidence?: number;
  budget_picodollars?: number;
  minimise?: string;
}

export interface StageID {
  app: string;
  build: string;
  name: string;
  /** Whose tasks these are; missing is the default team. */
  team?: string;
}

export interface Stage {
  name: string;
  declared: Size;
  expected: number;
  scheduled: number;
  running: number;
  done: number;
  attempts: number;
  failed: number;
  out_of_memory: number;
  lost: number;
  refused: number;
  tasks: Record<Venue, number>;
  queue_seconds: number;
  start_seconds: number;
  run_seconds: number;
  cpu_seconds: number;
  /** What one attempt waited; queue_seconds is the sum over all. */
  wait: { median_seconds: number; longest_seconds: number; attempts: number };
  peak_memory_bytes: number;
  memory?: Partial<Record<Venue, { peak_bytes: number; grant_bytes: number }>>;
  grant: Size;
  slots: Record<Venue, number>;
  predicted_wall_seconds: Interval;
  actual_wall_seconds: number;
  predicted_memory_bytes: Interval;
  wall_error: number;
  memory_error: number;
  wall_errors: number;
  memory_errors: number;
  cost_picodollars: number;
  reused: Reuse;
  step?: number;
  metrics?: Record<string, number>;
}

/** How far a running attempt is by its own word, and in how many seconds it ends by that. */
export interface Progress {
  stage: string;
  task: string;
  attempt: number;
  step: number;
  of?: number;
  left_seconds?: Interval;
  /** What it does in a second by its own word, by what: samples, tokens. */
  per_second?: Record<string, number>;
}

/** How the training of a task that runs goes by one of its metrics, and how it is expected to go on. */
export interface Learning {
  stage: string;
  task: string;
  attempt: number;
  metric: string;
  better: 'lower' | 'higher';
  step: number;
  /** The metric at that step; null where it was not finite. */
  value: number | null;
  best: number | null;
  phase: 'beginning' | 'learning' | 'plateaued' | 'diverged';
  /** At which step it ends, and how good it is then. */
  planned?: number;
  final?: Interval;
  /** On how many earlier tasks of the stage that rests. */
  earlier?: number;
  /** The best value at steps that are to come. */
  ahead?: { step: number; value: Interval }[];
}

/** What was taken from earlier runs, and what it cost when it was made. */
export interface Reuse {
  tasks: number;
  saved_picodollars: number;
  saved_seconds: number;
  from: string;
}

export interface Prediction {
  finish_seconds: Interval;
  cost_usd: Interval;
  /** On how many earlier runs it rests: of one, the intervals are wide. */
  runs?: number;
  /** What it rests on, in words. */
  basis?: string;
  /** How probable it is that the run misses its deadline or its budget. */
  late_probability?: number;
  dear_probability?: number;
  at?: string;
}

export interface Run {
  run: string;
  pipeline: string;
  app: string;
  build: string;
  state: RunState;
  goal: Goal;
  started_at: string;
  ended_at?: string;
  error?: string;
  notice?: string;
  result?: unknown;
  event?: string;
  event_at?: string;
  retry_of?: string;
  /** Whose it is; missing is the default team. */
  team?: string;
  stages: Stage[] | null;
  /** How far its running attempts are by their own word, those that end last first. */
  progress?: Progress[];
  /** How its running trainings go, those that have diverged first. */
  learning?: Learning[];
  totals: {
    queue_seconds: number;
    start_seconds: number;
    run_seconds: number;
    cpu_seconds: number;
    tasks: Record<Venue, number>;
    attempts: number;
    failures: number;
    out_of_memory: number;
    cost_picodollars: number;
  };
  decisions: number;
  /** What was expected at first, and what is expected now or was expected last. */
  predicted: Prediction;
  latest: Prediction;
  static: {
    actual_picodollars: number;
    cost_picodollars: number;
    known: boolean;
    seconds?: number;
    short?: number;
    sizes?: Record<string, Size>;
  };
  reused: Reuse;
  actual: { seconds: number; cost_picodollars: number };
}

export interface Decision {
  id: string;
  at: string;
  stage: StageID;
  venue?: Venue;
  run?: string;
  what: string;
  from: string;
  to: string;
  reason: string;
  inputs?: Record<string, number>;
  predicted: Interval;
  predicted_unit?: string;
}

export interface Grant {
  stage: StageID;
  venue: Venue;
  slots: number;
  size: Size;
  pool_only?: boolean;
}

export interface Plan {
  term: number;
  tick: number;
  at: string;
  grants?: Grant[];
  placements?: { stage: StageID; host: string; device?: string; slots: number }[];
  windows?: { run: string; stage: StageID; tasks: number; priority: number }[];
  /** None where no team was declared. */
  teams?: TeamRow[];
}

/** How a team stands; without slots or money per day it has no such bound, and its weight is 1 unless said. */
export interface TeamRow {
  name: string;
  weight?: number;
  slots?: number;
  per_day_picodollars?: number;
  held: number;
  functions?: number;
  waiting: number;
  running: number;
  share: number;
  spent_picodollars: number;
  reserved_picodollars?: number;
  /** What its tasks wait for where that is a bound of the team. */
  why?: string;
}

export interface Host {
  id: string;
  capacity: Size;
  free: Size;
  price_per_hour_picodollars: number;
  cpus?: number[];
  gpus?: GPU[];
  /** The driver has not answered yet since the host began. */
  gpus_unknown?: boolean;
  enforcement: string;
  at: string;
}

/** A machine that has joined, or that has a lease; what is not known of it is left out. */
export interface ListedHost {
  name: string;
  state: 'up' | 'joined' | 'lost' | 'stopped';
  /** It is the engine's own. */
  own?: boolean;
  /** It takes no new work. */
  drained?: boolean;
  /** Its disk has no room, so nothing is placed there. */
  disk_full?: boolean;
  version?: string;
  platform?: string;
  capacity: Size;
  used: Size;
  joined?: string;
  /** When it had a lease last. */
  seen?: string;
  /** Those that have slots there, as app/stage. */
  stages: string[] | null;
}

/** A GPU of a host, or an instance of one (MIG); -1 where the driver does not tell. */
export interface GPU {
  uuid: string;
  index: number;
  instance: number;
  name: string;
  class: string;
  memory_bytes: number;
  used_bytes: number;
  busy: number;
  watts: number;
  uncorrected_errors: number;
  holder?: { run: string; stage: string; task: string; attempt: number };
  others?: { pid: number; memory_bytes: number }[];
  others_unknown?: boolean;
  wrong?: string;
}

export interface FunctionVenue {
  enabled: boolean;
  concurrency: number;
  max_memory_bytes: number;
  max_duration_ns: number;
  classes_bytes: number[] | null;
  per_gib_second_picodollars: number;
  per_request_picodollars: number;
  cores_milli: number;
  cold_start_ns: number;
}

export interface App {
  name: string;
  build: string;
  path: string;
  chain?: boolean;
  current: boolean;
  simd: boolean;
  pipelines: { name: string; goal: Goal }[] | null;
  stages:
    | {
        name: string;
        declared: Size;
        max_attempts: number;
        timeout_ns?: number;
        pool_only?: boolean;
        command?: boolean;
      }[]
    | null;
}

/** A server of the stack, as it is known to the one that answers. */
export interface StackServer {
  name: string;
  address?: string;
  own?: boolean;
  leads?: boolean;
  /** Absent where it does not lead, or is of a version that does not say. */
  term?: number;
  leads_since?: string;
  seen_at: string;
  gone?: boolean;
  version: string;
  started_at: string;
}

export interface Stack {
  version: string;
  pid: number;
  state_dir: string;
  started_at: string;
  addresses: { http: string; temporal: string; temporal_ui?: string; nats: string };
  /** The one that answers first, and last those that are there no more. */
  servers?: StackServer[];
  hosts: Host[] | null;
  apps: App[] | null;
  policy: {
    static: boolean;
    shadow?: boolean;
    value_of_time_picodollars_per_hour: number;
    idle_after_ns: number;
    margin: number;
    error_bound: number;
  };
  functions: FunctionVenue;
  pool_cpus: number[] | null;
  function_cpus: number[] | null;
}

export interface LogLine {
  run: string;
  stage: string;
  task: string;
  attempt: number;
  venue: Venue;
  host?: string;
  at: string;
  origin: string;
  text: string;
  cut?: boolean;
  redrawn?: boolean;
  sequence: number;
  index: number;
  resume: number;
}

export type Outcome = 'succeeded' | 'failed' | 'out_of_memory' | 'timed_out' | 'cancelled' | 'lost' | 'refused';

/** Times that are not known yet are left out. */
export interface Attempt {
  stage: string;
  task: string;
  attempt: number;
  venue: Venue;
  host?: string;
  outcome?: Outcome;
  cause?: string;
  error?: string;
  scheduled_at?: string;
  admitted_at?: string;
  started_at?: string;
  ended_at?: string;
  wall_ns?: number;
  fetch_ns?: number;
  publish_ns?: number;
  cold?: boolean;
  grant: Size;
  cpu_ns?: number;
  peak_memory_bytes?: number;
  gpus?: string[];
  gpu_peak_memory_bytes?: number;
  predicted_wall_seconds?: number;
  predicted_memory_bytes?: number;
  cost_picodollars?: number;
}

/** A part of time in a lane: mean numbers of attempts in each state, and counts of those that ended. */
export interface Bin {
  queued: number;
  starting: number;
  pool: number;
  function: number;
  ended: number;
  failed: number;
  out_of_memory: number;
}

export interface TimelineLane {
  stage: string;
  count: number;
  attempts?: Attempt[];
  bins?: Bin[];
}

export interface TimelineView {
  from: string;
  to: string;
  lanes: TimelineLane[] | null;
}

export interface Held {
  pool: number;
  function: number;
  granted_cpu_cores: number;
  used_cpu_cores: number;
  granted_memory_bytes: number;
  used_memory_bytes: number;
}

export interface StageAllocation {
  stage: string;
  from: string;
  step_ns: number;
  points: Held[] | null;
}

export type BreakdownRow = 'broker' | 'engine' | 'queue' | 'start' | 'fetch' | 'compute' | 'publish' | 'unattributed';
export type Breakdown = Record<`${BreakdownRow | 'wall'}_ns`, number>;

export interface Curve {
  stage: string;
  task: string;
  metric: string;
  points: { step: number; value: number; at: string }[] | null;
}

/** How many tasks come at a stage, of all runs, minute by minute. */
export interface Arriving {
  stage: string;
  /** How many minutes were observed, and from how many on a forecast is acted on. */
  known_minutes: number;
  enough_minutes: number;
  /** The beginning of the minute that goes on, and how many tasks came in it until now. */
  now: string;
  count: number;
  came: { at: string; tasks: number; predicted_tasks?: Interval }[] | null;
  next: { at: string; predicted_tasks: Interval; chance: number }[] | null;
}

/** What the plan of a split training said beside what came; what is not measured yet is left out. */
export interface Training {
  model: string;
  model_bytes?: number;
  executor: string;
  schedule: string;
  batch: number;
  micro_batches: number;
  steps: number;
  total_steps: number;
  predicted_step_seconds: number;
  step_seconds?: number;
  bubble?: number;
  workers?: number;
  exchange_seconds?: number;
  parts: TrainingPart[] | null;
  alternatives?: {
    partitions: number;
    micro_batches: number;
    step_seconds: number;
    peak_bytes: number;
    reason?: string;
  }[];
  reason?: string;
}

export interface TrainingPart {
  device: string;
  kind: string;
  class?: string;
  threads?: number;
  ops: number;
  first?: string;
  last?: string;
  recompute?: boolean;
  predicted_peak_bytes: number;
  peak_bytes?: number;
  capacity_bytes?: number;
  predicted_busy_seconds: number;
  busy_seconds?: number;
}

export type TrialState = 'running' | 'waiting' | 'stopped' | 'finished' | 'diverged' | 'failed';

/** A parameter of a search space; a range has ends, a choice its texts. */
export interface Parameter {
  name: string;
  kind: 'float' | 'int' | 'choice';
  low?: number;
  high?: number;
  log?: boolean;
  choices?: string[] | null;
  when?: { parameter: string; values: string[] | null };
}

/** One task of a trial, which brings it to the end of a rung. */
export interface TrialJob {
  rung: number;
  from: number;
  to: number;
  task: string;
  objective?: number | null;
  spent_picodollars: number;
  started_at?: string;
  ended_at?: string;
}

export interface Trial {
  number: number;
  configuration: Record<string, number | string>;
  state: TrialState;
  why?: string;
  jobs: TrialJob[] | null;
}

export interface TuningRung {
  rung: number;
  to: number;
  begun: number;
  told: number;
  best?: number | null;
  seconds: number;
  spent_picodollars: number;
}

/** How a tuning stands; without ended it goes on. */
export interface Tuning {
  stage: string;
  name: string;
  space: Parameter[] | null;
  options: {
    algorithm?: string;
    trials: number;
    least?: number;
    most: number;
    eta?: number;
    maximise?: boolean;
  };
  objective: string;
  begun: number;
  trials: Trial[] | null;
  best?: number | null;
  ended?: string;
  spent_picodollars: number;
  started_at?: string;
  ended_at?: string;
  counts?: Partial<Record<TrialState, number>>;
  rungs: TuningRung[] | null;
}

/** The training of one attempt; without an outcome while the attempt goes on. */
export interface TrainingView {
  stage: string;
  task: string;
  attempt: number;
  host?: string;
  outcome?: Outcome;
  at: string;
  training: Training;
}

export interface Alternative {
  name: string;
  functions?: Record<string, number>;
  finish_seconds: Interval;
  cost_usd: Interval;
}

export interface Outlook {
  run: string;
  goal: Goal;
  at: string;
  elapsed_seconds: number;
  spent_usd: number;
  known: boolean;
  why?: string;
  chosen: Alternative;
  present: Alternative;
  alternatives: Alternative[] | null;
  feasible: boolean;
  summary: string;
}

/** One way to finish a run, and what its stages get for it in words. */
export interface WhatIfPoint {
  seconds: number;
  cost_usd: number;
  gets: string;
}

/** Every time and cost that a run could come to, or could have come to. */
export interface WhatIf {
  goal: Goal;
  at: string;
  elapsed_seconds: number;
  spent_usd: number;
  known: boolean;
  why?: string;
  present?: WhatIfPoint;
  points: WhatIfPoint[] | null;
  promise?: { met: boolean; plan: WhatIfPoint; probability: number };
  sentences: string[] | null;
}

export interface Alert {
  id: string;
  run: string;
  pipeline: string;
  kind:
    | 'deadline_at_risk'
    | 'budget_at_risk'
    | 'goal_impossible'
    | 'recovered'
    | 'streams_lost'
    | 'ledger_failing'
    | 'disk_scarce';
  at: string;
  goal: Goal;
  finish_seconds: Interval;
  cost_usd: Interval;
  message: string;
}

export interface Retried {
  run: string;
  event: string;
  stages: string[] | null;
  tasks: number;
}

export type Dimension = 'run' | 'pipeline' | 'stage' | 'venue' | 'host';

export interface BillLine {
  name: string;
  attempts: number;
  tasks: number;
  reused?: number;
  held_ns: number;
  pool_picodollars: number;
  function_picodollars: number;
  idle_picodollars: number;
  total_picodollars: number;
  wasted_picodollars: number;
}

export interface Bill {
  by: Dimension;
  since: string;
  until: string;
  lines: BillLine[] | null;
  attempts_picodollars: number;
  pool_picodollars: number;
  function_picodollars: number;
  idle_picodollars: number;
  unused_picodollars: number;
  total_picodollars: number;
  /** Times of which something is not known any more, oldest first. */
  incomplete?: { since?: string; until: string }[];
}

export interface Price {
  kind: string;
  provider: string;
  region: string;
  name: string;
  capacity: Size;
  price_picodollars: number;
  unit: string;
  dated: string;
  valid_until?: string;
  source: string;
}

export interface Diff {
  a: Run;
  b: Run;
  same_input: boolean;
  same_build: boolean;
  same_goal: boolean;
  stages: { name: string; a?: Stage; b?: Stage }[] | null;
}

/** What the engine answered instead of what was asked for; status is 0 when there was no answer at all. */
export class APIError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string,
  ) {
    super(message);
  }
}

/** How long an answer may take: the engine answers from memory. */
const patience = 20_000;

/** Asks for one answer of the API; every failure is an APIError. */
async function ask<T>(path: string, request: RequestInit): Promise<T> {
  let response: Response;
  try {
    response = await fetch('/api/v1/' + path, { ...request, signal: AbortSignal.timeout(patience) });
  } catch {
    throw new APIError(0, 'the engine does not answer', 'is `spillway dev` still running?');
  }
  const body: unknown = await response.json().catch(() => undefined);
  if (!response.ok || body === undefined) {
    const said = (body as { error?: { message?: string; hint?: string } } | undefined)?.error;
    if (response.status === 401) session.refuse(said?.message ?? 'no credential was shown');
    throw new APIError(response.status, said?.message ?? `the engine answered ${response.status}`, said?.hint ?? '');
  }
  return body as T;
}

export const get = <T>(path: string) => ask<T>(path, { headers: { accept: 'application/json' } });

const post = <T>(path: string, body: unknown) =>
  ask<T>(path, {
    method: 'POST',
    headers: { accept: 'application/json', 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });

/** Most that the API gives in one answer. */
export const mostRuns = 1000;
export const mostDecisions = 5000;

/**
 * A part of the list of runs, newest first; next is the cursor of the part behind it, and missing where there is none.
 */
export interface RunPage {
  runs: Run[];
  next?: string;
}

/** What all runs that match come to, those of other pages too. */
export interface RunTotals {
  runs: number;
  states: Record<RunState, number>;
  cost_picodollars: number;
  missed_deadlines: number;
  missed_budgets: number;
}

export const runTotals = (state: string, pipeline: string) =>
  get<{ totals: RunTotals }>('runs?' + parameters({ limit: 1, totals: 'true', state, pipeline })).then(
    (answer) => answer.totals,
  );

export function runPage(state: string, pipeline: string, limit: number, cursor = ''): Promise<RunPage> {
  const query = new URLSearchParams({ limit: String(limit) });
  if (state) query.set('state', state);
  if (pipeline) query.set('pipeline', pipeline);
  if (cursor) query.set('cursor', cursor);
  return get<RunPage>('runs?' + query);
}

export const runs = (state: string, pipeline: string) => runPage(state, pipeline, mostRuns).then((page) => page.runs);

const ofRun = (id: string, what = '') => 'runs/' + encodeURIComponent(id) + what;
const parameters = (values: Record<string, string | number | undefined>) =>
  new URLSearchParams(
    Object.entries(values).flatMap(([name, value]) => (value ? [[name, String(value)]] : [])),
  ).toString();

export const run = (id: string) => get<Run>(ofRun(id));

/** Most marks of a timeline and points of an allocation: more than a wide window has room for would not be seen. */
const marks = 1000;
const points = 300;

export const timeline = (id: string) => get<TimelineView>(ofRun(id, `/timeline?marks=${marks}`));
export const allocation = (id: string) =>
  get<{ stages: StageAllocation[] | null }>(ofRun(id, `/allocation?points=${points}`)).then(
    (answer) => answer.stages ?? [],
  );
export const breakdown = (id: string) => get<Breakdown>(ofRun(id, '/breakdown'));
export const arrivals = (id: string) =>
  get<{ stages: Arriving[] | null }>(ofRun(id, '/arrivals')).then((answer) => answer.stages ?? []);
export const curves = (id: string) =>
  get<{ curves: Curve[] | null; learning?: Learning[] | null }>(ofRun(id, '/curves')).then((answer) => ({
    curves: answer.curves ?? [],
    learning: answer.learning ?? [],
  }));

/** The address of the picture of what was predicted beside what came; each version is asked for anew. */
export const sizesPicture = (id: string, width: number, points: number, revision: number) =>
  '/api/v1/' + ofRun(id, `/sizes?format=svg&width=${width}&points=${points}&revision=${revision}`);

export const trainings = (id: string) =>
  get<{ trainings: TrainingView[] | null }>(ofRun(id, '/trainings')).then((answer) => answer.trainings ?? []);

export const tunings = (id: string) =>
  get<{ tunings: Tuning[] | null }>(ofRun(id, '/tuning')).then((answer) => answer.tunings ?? []);

export const attempts = (id: string, query: { stage?: string; outcome?: string; offset?: number; limit: number }) =>
  get<{ attempts: Attempt[] | null }>(ofRun(id, '/attempts?' + parameters(query))).then(
    (answer) => answer.attempts ?? [],
  );

/** What would be expected of a run under a goal; under the goal in force without one. */
export const outlook = (id: string, goal?: Goal) =>
  get<Outlook>(ofRun(id, '/outlook' + (goal ? '?' + goalQuery(goal) : '')));

/** A goal that asks for nothing is a parameter too: without any the engine takes the goal in force. */
function goalQuery(goal: Goal): string {
  return new URLSearchParams({
    deadline_ns: String(goal.deadline_ns ?? 0),
    budget_picodollars: String(goal.budget_picodollars ?? 0),
    ...(goal.confidence ? { confidence: String(goal.confidence) } : {}),
    ...(goal.minimise ? { minimise: goal.minimise } : {}),
  }).toString();
}

/** What a run could come to, or could have, with its goal. */
export const frontier = (id: string) => get<WhatIf>(ofRun(id, '/frontier'));

export const setGoal = (id: string, goal: Goal) => post<Outlook>(ofRun(id, '/goal'), goal);
export const retry = (id: string, from: string) => post<Retried>(ofRun(id, '/retry'), from ? { from } : {});
export const cancel = (id: string) => post<unknown>(ofRun(id, '/cancel'), {});

export const compare = (a: string, b: string) => get<Diff>('diff?' + parameters({ a, b }));
export const alerts = () => get<{ alerts: Alert[] | null }>('alerts?limit=100').then((answer) => answer.alerts ?? []);

/** Parameters of a bill; since is a duration back from now, such as 24h. */
export const billQuery = (by: string, since: string, pipeline: string) => parameters({ by, since, pipeline });
export const cost = (query: string) => get<Bill>('cost?' + query);

/** Decisions, oldest first; those that concern one run when it is given. */
export function decisions(run = ''): Promise<Decision[]> {
  const path = run ? `runs/${encodeURIComponent(run)}/decisions` : 'decisions';
  return get<{ decisions: Decision[] }>(`${path}?limit=${mostDecisions}`).then((answer) => answer.decisions);
}

export const hosts = () => get<{ hosts: ListedHost[] | null }>('hosts').then((answer) => answer.hosts ?? []);
export const drain = (host: string, drained: boolean) =>
  post<unknown>(`hosts/${encodeURIComponent(host)}/${drained ? 'drain' : 'undrain'}`, {});
export const stack = () => get<Stack>('stack');
export const plan = () => get<Plan>('plan');
export const prices = () => get<{ prices: Price[] | null }>('prices').then((answer) => answer.prices ?? []);
