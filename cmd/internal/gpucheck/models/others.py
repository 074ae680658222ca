"""Models of other kinds than transformers, of a size at which their peaks of memory are their own."""

from __future__ import annotations

import torch
from torch import nn


def perceptron():
    layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(2048, 10))


def convolutions():
    layers, before = [], 3
    for after in (64, 128, 128):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Linear(256, 10))


def data(kind):
    generator = torch.Generator().manual_seed(5)
    shape = {"perceptron": (2048,), "convolutions": (3, 32, 32)}[kind]
    return torch.randn(512, *shape, generator=generator), torch.randint(0, 10, (512,), generator=generator)
