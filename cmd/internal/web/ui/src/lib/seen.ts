import type { LogLine } from './api';

/**
 * Tells lines that were handled already from new ones when a reader goes on at a line's resume: logs.Seen of
 * activities/logs.
 */
export class Seen {
  #handled = new Map<number, number>(); // by message: how many of its lines
  #resume = 0;

  /** Where to go on; 0 before the first line. */
  get resume(): number {
    return this.#resume;
  }

  /** Whether the line was handled before; it is taken as handled from now on. */
  again(line: LogLine): boolean {
    if (line.sequence < this.#resume || line.index < (this.#handled.get(line.sequence) ?? 0)) return true;
    this.#handled.set(line.sequence, line.index + 1); // the lines of a message come in order
    if (line.resume > this.#resume) {
      this.#resume = line.resume;
      for (const sequence of this.#handled.keys()) if (sequence < this.#resume) this.#handled.delete(sequence);
    }
    return false;
  }
}
