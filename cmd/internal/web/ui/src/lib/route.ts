// Addresses of views. The server answers every one of them with the same document: isView in page.go knows them too.

export type Route =
  | { view: 'runs' }
  | { view: 'run'; run: string }
  | { view: 'decisions' }
  | { view: 'capacity' }
  | { view: 'compare' }
  | { view: 'costs' }
  | { view: 'missing' };

export function parse(path: string): Route {
  if (path === '/') return { view: 'runs' };
  if (path === '/decisions') return { view: 'decisions' };
  if (path === '/capacity') return { view: 'capacity' };
  if (path === '/compare') return { view: 'compare' };
  if (path === '/costs') return { view: 'costs' };
  const encoded = /^\/runs\/([^/]+)$/.exec(path)?.[1];
  try {
    return encoded ? { view: 'run', run: decodeURIComponent(encoded) } : { view: 'missing' };
  } catch {
    return { view: 'missing' }; // a broken escape
  }
}

export const runPath = (run: string) => '/runs/' + encodeURIComponent(run);

export const comparePath = (a: string, b: string) => '/compare?' + new URLSearchParams({ a, b });
