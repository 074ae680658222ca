import { expect, test } from 'vitest';
import type { GPU } from './api';
import { errors, had, label, none, others, peak, power, short } from './gpu';

const gib = 2 ** 30;
const gpu: GPU = {
  uuid: 'GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52',
  index: 3,
  instance: -1,
  name: 'NVIDIA H100 80GB HBM3',
  class: 'h100',
  memory_bytes: 80 * gib,
  used_bytes: 31 * gib,
  busy: 0.93,
  watts: 411.6,
  uncorrected_errors: 0,
};

test('a GPU is told in words', () => {
  expect(label(gpu)).toBe('GPU 3');
  expect(label({ ...gpu, instance: 1 })).toBe('GPU 3 instance 1');
  expect(short(gpu.uuid)).toBe('GPU-604ac76c');
  expect(power(gpu)).toBe('412 W');
  expect(errors({ ...gpu, uncorrected_errors: 1200 })).toBe('1,200');
  expect(others(gpu)).toBe('');
  const processes = [
    { pid: 4242, memory_bytes: 30 * gib },
    { pid: 7, memory_bytes: -1 },
  ];
  expect(others({ ...gpu, others: processes })).toBe('process 4242 with 30 GiB, process 7');
});

test('a host whose driver has not answered is no host without GPUs', () => {
  expect(none({})).toBe('–');
  expect(none({ gpus_unknown: true })).toBe('unknown: the driver has not answered yet');
});

test('what a driver does not tell is no number', () => {
  expect(power({ ...gpu, watts: -1 })).toBe('–');
  expect(errors({ ...gpu, uncorrected_errors: -1 })).toBe('–');
});

test('an attempt says which GPUs it had, and its peak where it is known', () => {
  const grant = { cpu_milli: 1000, memory_bytes: gib, gpu_milli: 2000, gpu_memory_bytes: 160 * gib };
  expect(had({ grant: { cpu_milli: 1000, memory_bytes: gib } })).toBe('');
  expect(had({ grant })).toBe('2 × GPU');
  expect(had({ grant: { ...grant, device_class: 'h100' } })).toBe('2 × h100');
  expect(peak({ grant })).toBe('GPU peak unknown');
  expect(peak({ grant, gpu_peak_memory_bytes: 61 * gib })).toBe('GPU 61/160 GiB');
});
