// Alerts of all runs, and which of them hold still.
import { alerts as readAlerts, runs as readRuns, type Alert } from './api';
import { live, type News } from './live.svelte';
import { Resource } from './resource.svelte';
import { standing } from './standing';

/** Most alerts that are kept. */
const most = 100;

class Alerts {
  readonly all = new Resource<Alert[]>(readAlerts, merge);
  #running = $state.raw<ReadonlySet<string>>(new Set());
  /** The newest alert of every run that goes on, unless it has recovered; newest first. */
  readonly open = $derived(standing(this.all.value ?? [], this.#running));

  start(): void {
    // What is told while an answer is under way is newer than the answer.
    const told = new Map<string, boolean>();
    let asked = 0;
    const load = () => {
      this.all.load();
      asked++;
      readRuns('running', '')
        .then(
          (runs) => {
            const running = new Set(runs.map((run) => run.run));
            for (const [run, goesOn] of told) {
              if (goesOn) running.add(run);
              else running.delete(run);
            }
            this.#running = running;
          },
          () => undefined, // whoever reads the alerts or the runs says so
        )
        .finally(() => {
          if (--asked === 0) told.clear();
        });
    };
    load();
    live.listen({
      reset: load,
      told: (news) => {
        this.all.told(news);
        if (asked > 0) for (const run of news.runs) told.set(run.run, !run.ended_at);
        const changed = news.runs.filter((run) => !run.ended_at !== this.#running.has(run.run));
        if (changed.length === 0) return;
        const running = new Set(this.#running);
        for (const run of changed) {
          if (run.ended_at) running.delete(run.run);
          else running.add(run.run);
        }
        this.#running = running;
      },
    });
  }

  of = (run: string) => (this.all.value ?? []).filter((alert) => alert.run === run);
}

function merge(value: Alert[] | undefined, news: News): Alert[] | undefined {
  if (!value || news.alerts.length === 0) return value;
  const known = new Set(value.map((alert) => alert.id));
  const fresh = news.alerts.filter((alert) => !known.has(alert.id)).reverse();
  return fresh.length > 0 ? [...fresh, ...value].slice(0, most) : value;
}

export const alerts = new Alerts();
