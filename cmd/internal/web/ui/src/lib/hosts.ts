// What the page says of the machines that run stages.
import type { Host, ListedHost } from './api';
import { count, instant } from './format';

/** A host as it is listed, with what its lease tells; one that is lost has none. */
export interface Machine extends ListedHost {
  lease?: Host | undefined;
}

type Standing = Pick<ListedHost, 'state' | 'drained' | 'disk_full'>;

/** How a host stands, in the words of `spillway hosts`. */
export function standing(host: Standing): string {
  const more = [host.drained ? 'drained' : '', host.disk_full ? 'disk full' : ''].filter(Boolean);
  return (host.state === 'up' && more.length > 0 ? more : [host.state, ...more]).join(', ');
}

/** The colour that goes with it: one that takes work, one that takes none, one that is gone. */
export function colour(host: Standing): string {
  if (host.state === 'lost' || host.disk_full) return 'failed';
  return host.state === 'up' && !host.drained ? 'succeeded' : 'cancelled';
}

/** Hosts by name, with their leases; what has a lease and is not listed yet is up. */
export function machines(listed: ListedHost[], leases: Host[]): Machine[] {
  const by = new Map(leases.map((lease) => [lease.id, lease]));
  return listed.map((host) => ({ ...host, lease: by.get(host.name) }));
}

/** Those whose name, state, version or stages have all words of a text in them. */
export function matching(hosts: Machine[], text: string): Machine[] {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return hosts;
  return hosts.filter((host) => {
    const told = [host.name, standing(host), host.version, host.platform, ...(host.stages ?? [])]
      .join(' ')
      .toLowerCase();
    return words.every((word) => told.includes(word));
  });
}

/** How many there are of each: "200 hosts: 197 up, 2 lost, 1 drained". */
export function summary(hosts: Pick<ListedHost, 'state' | 'drained'>[]): string {
  const states = new Map<string, number>();
  for (const host of hosts) {
    const name = host.drained ? 'drained' : host.state;
    states.set(name, (states.get(name) ?? 0) + 1);
  }
  const parts = [...states].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([name, n]) => `${n} ${name}`);
  return `${count(hosts.length, 'host')}: ${parts.join(', ')}`;
}

/** The stages that have slots on a host: the first of them, and how many more there are. */
export function stages(host: Pick<ListedHost, 'stages'>, most = 2): { first: string[]; more: number } {
  const all = host.stages ?? [];
  const first = all.length > most + 1 ? all.slice(0, most) : all;
  return { first, more: all.length - first.length };
}

/** Whether somebody has ever seen it: a zero time is none. */
export const known = (at: string | undefined) => !Number.isNaN(instant(at));
