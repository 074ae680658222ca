/** Pauses before the first and before later attempts to connect again, in milliseconds. */
const shortest = 500;
const longest = 15_000;

/**
 * The pause before attempt n (from 0) in milliseconds: it doubles up to 15 s, and half of it is left to chance (from 0
 * to 1) so that pages do not come back all at once.
 */
export function pause(n: number, chance: number): number {
  const full = Math.min(shortest * 2 ** n, longest);
  return full / 2 + (full / 2) * chance;
}
