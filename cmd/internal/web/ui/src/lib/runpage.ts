// The list of runs as far as it was read, kept as the stream tells of changes.
import type { Run, RunPage } from './api';
import { instant } from './format';

/** The order of the list: the newest start first, and of equal starts the last name. */
export const newestFirst = (a: Run, b: Run) =>
  instant(b.started_at) - instant(a.started_at) || (a.run < b.run ? 1 : -1);

/**
 * Puts runs as they are now in place of what was known of them; a run that is not selected any more goes. A run that
 * comes behind all that were read is left out while others are to be read before it.
 */
export function told(page: RunPage, news: Run[], selected: (run: Run) => boolean): RunPage {
  if (news.length === 0) return page;
  const last = page.runs.at(-1);
  const known = new Map(page.runs.map((run) => [run.run, run]));
  for (const run of news) {
    if (!selected(run)) known.delete(run.run);
    else if (known.has(run.run) || !page.next || !last || newestFirst(run, last) < 0) known.set(run.run, run);
  }
  return { ...page, runs: [...known.values()].sort(newestFirst) };
}

/** Adds the page behind what was read. */
export function added(page: RunPage, older: RunPage): RunPage {
  const known = new Map([...older.runs, ...page.runs].map((run) => [run.run, run]));
  const runs = [...known.values()].sort(newestFirst);
  return older.next ? { runs, next: older.next } : { runs };
}

/**
 * Reads page after page until as many runs are there as are asked for, or all. What is asked for may grow while it
 * reads: it is looked at after every page.
 */
export async function readAsFar(read: (after?: string) => Promise<RunPage>, asked: () => number): Promise<RunPage> {
  let page = await read();
  while (page.next && page.runs.length < asked()) page = added(page, await read(page.next));
  return page;
}
