// What the page says of GPUs.
import type { Attempt, GPU, Host } from './api';
import { bytes, peakOfGrant, plain, unknown } from './format';

/** How people call a GPU on its host: "GPU 3", "GPU 3 instance 1". */
export const label = (gpu: GPU) => `GPU ${gpu.index}${gpu.instance >= 0 ? ` instance ${gpu.instance}` : ''}`;

/** What is said of the GPUs of a host that tells of none: its driver may take a minute to set them up. */
export const none = (host: Pick<Host, 'gpus_unknown'>) =>
  host.gpus_unknown ? 'unknown: the driver has not answered yet' : unknown;

/** The start of a UUID, which tells the GPUs of a few hosts apart: "GPU-604ac76c". */
export const short = (uuid: string) => uuid.slice(0, 12);

/** The programs beside Spillway's that compute on a GPU: "process 4242 with 30 GiB"; empty when none does. */
export const others = (gpu: GPU) =>
  (gpu.others ?? [])
    .map((one) => `process ${one.pid}` + (one.memory_bytes >= 0 ? ` with ${bytes(one.memory_bytes)}` : ''))
    .join(', ');

/** Errors of the memory that could not be corrected. */
export const errors = (gpu: GPU) =>
  gpu.uncorrected_errors >= 0 ? gpu.uncorrected_errors.toLocaleString('en') : unknown;

export const power = (gpu: GPU) => (gpu.watts >= 0 ? `${Math.round(gpu.watts)} W` : unknown);

/** Which GPUs an attempt had: "2 × h100"; empty when none. */
export function had(attempt: Pick<Attempt, 'grant'>): string {
  const count = (attempt.grant.gpu_milli ?? 0) / 1000;
  return count > 0 ? `${plain(count)} × ${attempt.grant.device_class || 'GPU'}` : '';
}

/** The most of their memory that it was seen to hold, which nobody knows of one that goes on or was too short. */
export const peak = (attempt: Pick<Attempt, 'grant' | 'gpu_peak_memory_bytes'>) =>
  attempt.gpu_peak_memory_bytes
    ? `GPU ${peakOfGrant(attempt.gpu_peak_memory_bytes, attempt.grant.gpu_memory_bytes ?? 0)}`
    : 'GPU peak unknown';
