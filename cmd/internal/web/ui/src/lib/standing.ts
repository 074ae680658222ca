import type { Alert } from './api';

/**
 * Of alerts, newest first, those that hold still: the newest of each run that goes on, unless it says that the run has
 * recovered.
 */
export function standing(alerts: readonly Alert[], running: ReadonlySet<string>): Alert[] {
  const seen = new Set<string>();
  return alerts.filter((alert) => {
    if (seen.has(alert.run)) return false;
    seen.add(alert.run);
    return alert.kind !== 'recovered' && running.has(alert.run);
  });
}

export const alertName: Record<Alert['kind'], string> = {
  deadline_at_risk: 'deadline at risk',
  budget_at_risk: 'budget at risk',
  goal_impossible: 'goal cannot be met',
  recovered: 'recovered',
  streams_lost: 'streams lost',
  ledger_failing: 'ledger failing',
  disk_scarce: 'disk nearly full',
};
