"""Trains a network of one hidden layer on the 8x8 digits, an epoch at a time: the trial that every tuner is given.

As a program: digits.py DATA --lr X --width N --weight-decay X --momentum X --epochs N [--checkpoint FILE]. After every
epoch a JSON line goes to the file that $SPILLWAY_REPORT names, or else to the standard output:
{"progress": epoch, "metrics": {"loss": validation loss}}. It goes on from the file $SPILLWAY_RESUME where that is set,
and leaves its state in FILE when it ends.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

PIXELS, CLASSES, BATCH = 64, 10, 32
TRAINED = 1200  # of 1,797 digits; the others tell the loss
DIVERGED = 1e9  # is told of a loss that is no number, which JSON has none for
PASSES = 30  # over the data are what counts as an epoch here


@dataclass
class Network:
    """What is trained, and where it is."""

    lr: float
    width: int
    weight_decay: float
    momentum: float
    epoch: int = 0
    parameters: list[Any] = field(default_factory=list)
    speeds: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.parameters:
            return
        draw = np.random.default_rng(1)
        for rows, columns in ((PIXELS, self.width), (self.width, CLASSES)):
            self.parameters.append(draw.normal(0, np.sqrt(2 / rows), (rows, columns)))
            self.parameters.append(np.zeros(columns))
        self.speeds = [np.zeros_like(p) for p in self.parameters]

    def scores(self, images: Any) -> tuple[Any, Any]:
        w1, b1, w2, b2 = self.parameters
        hidden = np.maximum(images @ w1 + b1, 0)
        scores = hidden @ w2 + b2
        return hidden, scores - scores.max(axis=1, keepdims=True)

    def step(self, images: Any, labels: Any) -> None:
        hidden, scores = self.scores(images)
        likely = np.exp(scores)
        likely /= likely.sum(axis=1, keepdims=True)
        likely[np.arange(len(labels)), labels] -= 1
        likely /= len(labels)
        back = (likely @ self.parameters[2].T) * (hidden > 0)
        gradients = [images.T @ back, back.sum(axis=0), hidden.T @ likely, likely.sum(axis=0)]
        for p, speed, gradient in zip(self.parameters, self.speeds, gradients, strict=True):
            speed *= self.momentum
            speed -= self.lr * (gradient + self.weight_decay * p)
            p += speed

    def loss(self, images: Any, labels: Any) -> float:
        _, scores = self.scores(images)
        losses = np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(labels)), labels]
        return float(losses.mean())

    def save(self, path: str) -> None:
        with open(path, "wb") as file:
            np.savez(file, *self.parameters, *self.speeds, epoch=self.epoch)

    def restore(self, path: str) -> None:
        with np.load(path) as saved:
            arrays = [saved[f"arr_{i}"] for i in range(8)]
            self.parameters, self.speeds, self.epoch = arrays[:4], arrays[4:], int(saved["epoch"])


def load(path: str) -> tuple[Any, Any]:
    with gzip.open(path, "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    order = np.random.default_rng(0).permutation(len(table))
    return table[order, :PIXELS] / 16, table[order, PIXELS].astype(int)


def train(network: Network, data: str, epochs: int) -> Iterator[tuple[int, float]]:
    """Yields each epoch that ended, with its validation loss. A batch is moved by up to a pixel, as drawn from
    the epoch's number: who goes on from a checkpoint comes to the same."""
    images, labels = load(data)
    seen, held = images[:TRAINED].reshape(-1, 8, 8), images[TRAINED:]
    while network.epoch < epochs:
        draw = np.random.default_rng(network.epoch + 2)
        for _ in range(PASSES):
            order = draw.permutation(TRAINED)
            with np.errstate(all="ignore"):
                for first in range(0, TRAINED, BATCH):
                    batch = order[first : first + BATCH]
                    shift = draw.integers(-1, 2, 2)
                    moved = np.roll(seen[batch], (int(shift[0]), int(shift[1])), (1, 2)).reshape(-1, PIXELS)
                    network.step(moved, labels[batch])
        network.epoch += 1
        with np.errstate(all="ignore"):
            loss = network.loss(held, labels[TRAINED:])
        yield network.epoch, loss


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--width", type=int, required=True)
    parser.add_argument("--weight-decay", type=float, required=True)
    parser.add_argument("--momentum", type=float, required=True)
    parser.add_argument("--epochs", type=float, required=True)
    parser.add_argument("--checkpoint")
    asked = parser.parse_args()
    network = Network(asked.lr, asked.width, asked.weight_decay, asked.momentum)
    if resume := os.environ.get("SPILLWAY_RESUME"):
        network.restore(resume)
    report = os.environ.get("SPILLWAY_REPORT")
    with open(report, "a") if report else contextlib.nullcontext(sys.stdout) as out:
        for epoch, loss in train(network, asked.data, round(asked.epochs)):
            told = loss if np.isfinite(loss) else DIVERGED
            print(json.dumps({"progress": epoch, "metrics": {"loss": told}}), file=out, flush=True)
        if asked.checkpoint:
            network.save(asked.checkpoint)
            print(json.dumps({"checkpoint": asked.checkpoint}), file=out, flush=True)


if __name__ == "__main__":
    main()
