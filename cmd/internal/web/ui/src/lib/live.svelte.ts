// What the engine tells as it happens: GET /api/v1/stream.
import { stack, type Alert, type Decision, type Plan, type Run } from './api';
import { pause } from './pause';
import { session } from './session.svelte';

export type Connection = 'connecting' | 'open' | 'lost';

/**
 * A connection that held so long, in milliseconds, had come about: an engine that breaks each off at once is not asked
 * faster and faster.
 */
const lasting = 5000;

type Handlers = Record<string, (data: string) => void>;

/**
 * An EventSource that connects again by itself, also after an answer that a browser does not try again after. It is
 * closed while the page is hidden: browsers allow six connections per host, and forgotten tabs must not use them up.
 */
export class Source {
  #source: EventSource | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #failures = 0;
  #opened = Infinity;
  #closed = false;

  constructor(
    private readonly address: () => string,
    private readonly handlers: Handlers,
    private readonly onState: (state: Connection) => void,
  ) {
    document.addEventListener('visibilitychange', this.#look);
    this.#look();
  }

  close(): void {
    this.#closed = true;
    document.removeEventListener('visibilitychange', this.#look);
    this.#drop();
  }

  /** Connects now instead of after the pause. */
  again(): void {
    if (!this.#closed && !this.#source) this.#connect();
  }

  #look = (): void => {
    if (document.hidden) this.#drop();
    else this.again();
  };

  #drop(): void {
    clearTimeout(this.#timer);
    this.#source?.close();
    this.#source = undefined;
  }

  #connect(): void {
    this.#drop();
    if (session.refused) return; // until the page is loaded again
    this.onState('connecting');
    this.#opened = Infinity;
    const source = new EventSource(this.address());
    this.#source = source;
    source.onopen = () => {
      this.#opened = Date.now();
      this.onState('open');
    };
    // A message named "error" arrives here too, with data; without data the connection is gone.
    source.onerror = (event) => {
      if (event instanceof MessageEvent) return;
      this.#drop();
      if (this.#closed) return;
      this.onState('lost');
      // an EventSource does not say that it was refused, and why
      if (this.#opened === Infinity) void stack().catch(() => undefined);
      if (Date.now() - this.#opened > lasting) this.#failures = 0;
      this.#timer = setTimeout(() => this.#connect(), pause(this.#failures++, Math.random()));
    };
    for (const [name, handle] of Object.entries(this.handlers)) {
      source.addEventListener(name, (event) => {
        if (event instanceof MessageEvent) handle(event.data as string);
      });
    }
  }
}

/** A view that wants to know what happens. A burst of messages is told as one. */
export interface Listener {
  /**
   * The stream begins (again), or goes on after a gap: what happened before is not told, so that the view reads its
   * state anew.
   */
  reset?(): void;
  told?(news: News): void;
}

export interface News {
  runs: Run[];
  decisions: Decision[];
  alerts: Alert[];
  plan: Plan | undefined;
}

const nothing = (): News => ({ runs: [], decisions: [], alerts: [], plan: undefined });

/** The one stream of the page. */
class Live {
  connection = $state<Connection>('connecting');
  #listeners = new Set<Listener>();
  #news = nothing();
  #frame = 0;
  #source: Source | undefined;

  start(): void {
    this.#source ??= new Source(
      () => '/api/v1/stream',
      {
        reset: () => {
          for (const listener of this.#listeners) listener.reset?.();
        },
        run: (data) => this.#keep((news) => news.runs.push(JSON.parse(data) as Run)),
        decision: (data) => this.#keep((news) => news.decisions.push(JSON.parse(data) as Decision)),
        alert: (data) => this.#keep((news) => news.alerts.push(JSON.parse(data) as Alert)),
        plan: (data) => this.#keep((news) => (news.plan = JSON.parse(data) as Plan)),
      },
      (state) => (this.connection = state),
    );
  }

  again(): void {
    this.#source?.again();
  }

  /** Calls the listener until the function that it returns is called. */
  listen(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  #keep(add: (news: News) => void): void {
    add(this.#news);
    this.#frame ||= requestAnimationFrame(() => {
      const news = this.#news;
      this.#news = nothing();
      this.#frame = 0;
      for (const listener of this.#listeners) listener.told?.(news);
    });
  }
}

export const live = new Live();

/** The reader's clock, once a second. */
class Clock {
  now = $state(Date.now());

  start(): void {
    setInterval(() => {
      if (!document.hidden) this.now = Date.now();
    }, 1000);
  }
}

export const time = new Clock();
