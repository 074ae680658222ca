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

/** The status that says that this browser is somebody else. */
const conflict = 409;
const json = { 'content-type': 'application/json' };

/** Whether the engine knows this browser, by the cookie that it gave for a code, a token or a sign-in. */
class Session {
  /** Why it does not; empty as long as nothing has been refused. */
  refused = $state('');
  /** Why the code of the address let nobody in; empty where it did, or the address had none. */
  #useless = '';
  /** Who it is; undefined until the engine has said it. */
  who = $state<Who>();
  /** Why the code of the address would have this browser be somebody else than it is; empty where it would not. */
  offered = $state('');
  /** The code of the address, as long as it is offered. */
  #code = '';

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
    const { status, why } = await this.#post({ code });
    if (status === conflict) {
      this.#code = code;
      this.offered = why;
    } else if (status !== undefined) {
      // it is told once a request is refused too: a browser may be known already
      this.#useless = why;
    }
  }

  /** Logs this browser in; returns the status of the answer, undefined without one, and why it is not let in. */
  async #post(body: {
    code?: string;
    token?: string;
    replace?: boolean;
  }): Promise<{ status: number | undefined; why: string }> {
    const request = { method: 'POST', headers: json, body: JSON.stringify(body) };
    const response = await fetch('/api/v1/session', request).catch(() => undefined);
    if (response?.ok) return { status: response.status, why: '' };
    const said = (await response?.json().catch(() => undefined)) as { error?: { message?: string } } | undefined;
    return { status: response?.status, why: said?.error?.message ?? 'the engine does not answer' };
  }

  /** Has the code that is offered take the place of who this browser is. */
  async take(): Promise<void> {
    const { why } = await this.#post({ code: this.#code, replace: true });
    if (why === '') location.reload();
    else this.offered = why;
  }

  /** Leaves the code that is offered. */
  stay(): void {
    this.#code = this.offered = '';
  }

  /** Lets this browser in by a token; returns why it does not. */
  async show(token: string): Promise<string> {
    const { why } = await this.#post({ token: token.trim() });
    if (why === '') location.reload();
    return why;
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
