import { codeOf } from './login';

/** Whether the engine knows this browser, by the cookie that it gave for a code. */
class Session {
  /** Why it does not; empty as long as nothing has been refused. */
  refused = $state('');
  /** Why the code of the address let nobody in; empty where it did, or the address had none. */
  #useless = '';

  /** Uses the code in the address, and takes it from there. */
  async start(): Promise<void> {
    const code = codeOf(location.hash);
    if (code === undefined) return;
    history.replaceState(null, '', location.pathname + location.search);
    const request = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ code }) };
    const response = await fetch('/api/v1/session', request).catch(() => undefined);
    if (!response || response.ok) return;
    const said = (await response.json().catch(() => undefined)) as { error?: { message?: string } } | undefined;
    // it is told once a request is refused too: a browser may be known already
    this.#useless = said?.error?.message ?? '';
  }

  /** A request was refused: the link that was opened, if one was, is a better reason than that nothing was shown. */
  refuse(why: string): void {
    this.refused = this.#useless || why;
  }
}

export const session = new Session();
