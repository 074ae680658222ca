/**
 * Does something at most once in so many milliseconds: at once when it is first asked for, and once more for all that
 * is asked meanwhile.
 */
export class Paced {
  #timer: ReturnType<typeof setTimeout> | undefined;
  #again = false;

  constructor(
    private readonly gap: number,
    private readonly act: () => void,
  ) {}

  ask(): void {
    if (this.#timer !== undefined) {
      this.#again = true;
      return;
    }
    this.act();
    this.#timer = setTimeout(() => {
      this.#timer = undefined;
      if (!this.#again) return;
      this.#again = false;
      this.ask();
    }, this.gap);
  }

  stop(): void {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.#again = false;
  }
}
