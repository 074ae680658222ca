import { codeOf } from './login';

/** With which identity provider people sign in, and why they cannot now; empty where nothing is known to be wrong. */
interface SignIn {
  title: string;
  path: string;
  problem?: string;
}

/** Who the engine takes this browser for; all empty of nobody. */
interface Who {
  name: string;
  role: string;
  team?: string;
  until?: string;
  sign_in?: SignIn;
}

const json = { 'content-type': 'application/json' };

/** Whether the engine knows this browser, by the cookie that it gave for a code, a token or a sign-in. */
class Session {
  /** Why it does not; empty as long as nothing has been refused. */
  refused = $state('');
  /** Why the code of the address let nobody in; empty where it did, or the address had none. */
  #useless = '';
  /** Who it is; undefined until the engine has said it. */
  who = $state<Who>();

  /** Uses the code in the address, and takes it from there. */
  async start(): Promise<void> {
    await this.#logIn();
    await this.#ask();
  }

  /** Asks who it is. Without an answer the page is as it was without names. */
  async #ask(): Promise<void> {
    const response = await fetch('/api/v1/session').catch(() => undefined);
    if (response?.ok) this.who = (await response.json().catch(() => undefined)) as Who | undefined;
  }

  async #logIn(): Promise<void> {
    const code = codeOf(location.hash);
    if (code === undefined) return;
    history.replaceState(null, '', location.pathname + location.search);
    const request = { method: 'POST', headers: json, body: JSON.stringify({ code }) };
    const response = await fetch('/api/v1/session', request).catch(() => undefined);
    if (!response || response.ok) return;
    const said = (await response.json().catch(() => undefined)) as { error?: { message?: string } } | undefined;
    // it is told once a request is refused too: a browser may be known already
    this.#useless = said?.error?.message ?? '';
  }

  /** Lets this browser in by a token; returns why it does not. */
  async show(token: string): Promise<string> {
    const request = { method: 'POST', headers: json, body: JSON.stringify({ token: token.trim() }) };
    const response = await fetch('/api/v1/session', request).catch(() => undefined);
    if (response?.ok) {
      location.reload();
      return '';
    }
    const said = (await response?.json().catch(() => undefined)) as { error?: { message?: string } } | undefined;
    return said?.error?.message ?? 'the engine does not answer';
  }

  /** Signs out, and shows nothing any more. */
  async leave(): Promise<void> {
    await fetch('/api/v1/session', { method: 'DELETE' }).catch(() => undefined);
    location.reload();
  }

  /** Where to sign in, and to come back to what is shown now. */
  signInPath(signIn: SignIn): string {
    return signIn.path + '?to=' + encodeURIComponent(location.pathname + location.search);
  }

  /** A request was refused: the link that was opened, if one was, is a better reason than that nothing was shown. */
  refuse(why: string): void {
    this.refused = this.#useless || why;
  }
}

export const session = new Session();
