// Which view the address names.
import { parse, type Route } from './route';

class Router {
  route = $state.raw<Route>(parse(location.pathname));
  query = $state.raw(new URLSearchParams(location.search));

  start(): void {
    addEventListener('popstate', () => this.#read());
    document.addEventListener('click', (event) => {
      const link = event.target instanceof Element ? event.target.closest('a') : null;
      const elsewhere =
        event.button !== 0 ||
        event.metaKey ||
        event.ctrlKey ||
        event.shiftKey ||
        event.altKey ||
        event.defaultPrevented;
      if (
        !link ||
        elsewhere ||
        link.target ||
        link.hasAttribute('download') ||
        link.origin !== location.origin ||
        link.hash ||
        link.rel === 'external'
      )
        return;
      event.preventDefault();
      this.go(link.pathname + link.search);
    });
  }

  go(address: string): void {
    history.pushState(null, '', address);
    this.#read();
    scrollTo(0, 0);
    document.getElementById('main')?.focus({ preventScroll: true });
  }

  /** Sets parts of the query without a new entry in the history; empty values are left out. */
  set(values: Record<string, string>): void {
    const query = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(values)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    history.replaceState(null, '', location.pathname + (text ? '?' + text : ''));
    this.query = query;
  }

  #read(): void {
    this.route = parse(location.pathname);
    this.query = new URLSearchParams(location.search);
  }
}

export const router = new Router();
