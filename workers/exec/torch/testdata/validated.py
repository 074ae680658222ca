"""Models that are evaluated while they are trained: what they do differs from what they do in training."""

import torch
from torch import nn
from torch.nn import functional as F


def points(seed, count):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 6, generator=draw)
    return x, (x.sum(1) > 0).long()


def data():
    return points(1, 50)


def validation():
    return points(2, 23)  # no multiple of any piece


def metrics(output, target):
    return {"accuracy": (output.argmax(-1) == target).float().mean(), "zeros": (target == 0).sum().item() / len(target)}


class Model(nn.Module):
    """Drops by self.training, draws noise in training alone, normalizes by what it has seen, and keeps one layer as it
    is."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Linear(6, 16), nn.BatchNorm1d(16)
        self.two, self.frozen, self.last = nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 2)
        self.drop = nn.Dropout(0.4)

    def train(self, mode=True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x):
        x = F.dropout(self.norm(self.one(x)), 0.3, self.training)
        if self.training:
            x = F.dropout(x, 0.2) + 0.1
        x = self.frozen(self.two(x).relu())
        return self.last(self.drop(x))


def build():
    return Model()


class Writes(nn.Module):
    """Counts how often it is called, in evaluation mode as well."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.layer(x) / self.calls


def blocks_of_writes():
    return nn.Sequential(nn.Linear(6, 6), Writes())


class Tied(nn.Module):
    """Reads one parameter in its first and in its last operation."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6) / 3)
        self.norm, self.drop = nn.LayerNorm(6), nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(self.norm(F.linear(x, self.weight)))
        return F.linear(x, self.weight)


def tied():
    return Tied()
