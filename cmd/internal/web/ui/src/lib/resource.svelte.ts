import { APIError } from './api';
import type { News } from './live.svelte';

/**
 * An answer of the API, kept as the stream tells of changes. What was there stays while it is read anew and when that
 * fails.
 */
export class Resource<T> {
  value = $state.raw<T>();
  error = $state.raw<APIError>();
  loading = $state(false);
  #latest = 0;
  #meanwhile: News[] = []; // told while it is read: the answer may be from before

  /** `merge` returns the value with what the news say of it; the value is undefined before the first answer. */
  constructor(
    private readonly read: () => Promise<T>,
    private readonly merge: (value: T | undefined, news: News) => T | undefined = (value) => value,
  ) {}

  /** Reads it; of several reads that overlap the latest counts. */
  async load(): Promise<void> {
    const mine = ++this.#latest;
    this.loading = true;
    this.#meanwhile = [];
    try {
      const value = await this.read();
      if (mine !== this.#latest) return;
      this.value = this.#meanwhile.reduce<T | undefined>(this.merge, value);
      this.error = undefined;
    } catch (error) {
      if (mine !== this.#latest) return;
      this.error = error instanceof APIError ? error : new APIError(0, String(error), '');
    }
    this.loading = false;
  }

  told(news: News): void {
    if (this.loading) this.#meanwhile.push(news);
    this.value = this.merge(this.value, news);
  }
}
