"""A step of this model does not end before a sample of the next one was read."""

import os
import time

import torch
from torch import nn

BATCH = 4
steps = 0  # whose loss was computed


class Logged:
    def __init__(self, log):
        self.log = log

    def __len__(self):
        return 32

    def __getitem__(self, number):
        with open(self.log, "a") as file:
            file.write(f"{number} {os.getpid()}\n")
        return torch.rand(3), number % 2


made: list = []


def data(log):
    made.append(Logged(log))
    return made[-1]


def build():
    return nn.Sequential(nn.Linear(3, 2))


def read():
    """How many samples were read, each counted once: all of these steps are of one epoch."""
    with open(made[-1].log) as file:
        return len({line.split()[0] for line in file})


def loss(output, target):
    global steps
    steps += 1
    deadline = time.monotonic() + 60
    while read() < BATCH * steps + 1:
        if time.monotonic() > deadline:
            raise RuntimeError("nobody reads the next batch while this step computes")
        time.sleep(0.001)
    return nn.functional.cross_entropy(output, target)
