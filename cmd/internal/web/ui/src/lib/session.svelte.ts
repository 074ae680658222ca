import { codeOf } from './login';

/** Whether the engine knows this browser, by the cookie that it gave for a code. */
class Session {
  /** Why it does not; empty as long as nothing has been refused. */
  refused = $state('');

  /** Uses the code in the address, and takes it from there. */
  async start(): Promise<void> {
    const code = codeOf(location.hash);
    if (code === undefined) return;
    history.replaceState(null, '', location.pathname + location.search);
    const request = { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ code }) };
    await fetch('/api/v1/session', request).catch(() => undefined); // whether it worked is seen at the next answer: a browser may be known already
  }
}

export const session = new Session();
