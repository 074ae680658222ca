// What the page says of the servers of a stack.
import type { StackServer } from './api';

type Stands = Pick<StackServer, 'leads' | 'gone' | 'own'>;

/** How a server stands, in the words of `spillway hosts`. */
export const standing = (server: Stands) => (server.gone ? 'gone' : server.leads ? 'leads' : 'stands by');

/** The colour that goes with it: the one that decides, one that is ready to, one that is there no more. */
export const colour = (server: Stands) => (server.gone ? 'failed' : server.leads ? 'succeeded' : 'cancelled');

/** Whether none of them is known to lead, so that nothing new is granted. */
export const headless = (servers: Stands[]) => !servers.some((server) => server.leads);
