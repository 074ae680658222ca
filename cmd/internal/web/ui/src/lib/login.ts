// The link that `spillway open` and `spillway dev` print has a code behind its #: whoever has it logs this browser in,
// once.

/** The code in the fragment of an address; undefined when it has none. */
export function codeOf(hash: string): string | undefined {
  return /^#login=([A-Za-z0-9_-]+)$/.exec(hash)?.[1];
}
