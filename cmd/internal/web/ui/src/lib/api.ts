// The engine's JSON API as this page reads it. Field names are those of the Go types in cmd/internal/web, predictor and predictor/ledger.

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
  budget_picodollars?: number;
  minimise?: string;
}

export interface StageID {
  app: string;
  build: string;
  name: string;
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
  peak_memory_bytes: number;
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
  step?: number;
  metrics?: Record<string, number>;
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
  result?: unknown;
  event?: string;
  stages: Stage[] | null;
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
  predicted: { finish_seconds: Interval; cost_usd: Interval; at?: string };
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
}

export interface Host {
  id: string;
  capacity: Size;
  free: Size;
  price_per_hour_picodollars: number;
  cpus?: number[];
  enforcement: string;
  at: string;
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
  stages: { name: string; declared: Size; max_attempts: number; timeout_ns?: number; pool_only?: boolean; command?: boolean }[] | null;
}

export interface Stack {
  version: string;
  pid: number;
  state_dir: string;
  started_at: string;
  addresses: { http: string; temporal: string; temporal_ui?: string; nats: string };
  hosts: Host[] | null;
  apps: App[] | null;
  policy: { static: boolean; shadow?: boolean; value_of_time_picodollars_per_hour: number; idle_after_ns: number; margin: number; error_bound: number };
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

/** Gets one answer of the API; every failure is an APIError. */
export async function get<T>(path: string): Promise<T> {
  let response: Response;
  try {
    response = await fetch('/api/v1/' + path, { headers: { accept: 'application/json' }, signal: AbortSignal.timeout(patience) });
  } catch {
    throw new APIError(0, 'the engine does not answer', 'is `spillway dev` still running?');
  }
  const body: unknown = await response.json().catch(() => undefined);
  if (!response.ok || body === undefined) {
    const said = (body as { error?: { message?: string; hint?: string } } | undefined)?.error;
    throw new APIError(response.status, said?.message ?? `the engine answered ${response.status}`, said?.hint ?? '');
  }
  return body as T;
}

/** Most that the API gives in one answer. */
export const mostRuns = 1000;
export const mostDecisions = 5000;

export function runs(state: string, pipeline: string): Promise<Run[]> {
  const query = new URLSearchParams({ limit: String(mostRuns) });
  if (state) query.set('state', state);
  if (pipeline) query.set('pipeline', pipeline);
  return get<{ runs: Run[] }>('runs?' + query).then((answer) => answer.runs);
}

export const run = (id: string) => get<Run>('runs/' + encodeURIComponent(id));

/** Decisions, oldest first; those that concern one run when it is given. */
export function decisions(run = ''): Promise<Decision[]> {
  const path = run ? `runs/${encodeURIComponent(run)}/decisions` : 'decisions';
  return get<{ decisions: Decision[] }>(`${path}?limit=${mostDecisions}`).then((answer) => answer.decisions);
}

export const stack = () => get<Stack>('stack');
export const plan = () => get<Plan>('plan');
