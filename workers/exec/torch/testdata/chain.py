"""A model that cannot be traced, split by its blocks. The first hands a tuple to the second, with what is no tensor."""

import torch
from torch import nn


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 1e9:
            y = y * 0
        return torch.tanh(y), {"rows": len(x), "scale": [0.5, None], "worst": float("nan"), "shape": x.shape}, x


class Second(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(32, 32), nn.Dropout(0.1)

    def forward(self, y, what, x):
        assert len(y) == what["rows"] == len(x) and what["shape"] == x.shape and what["worst"] != what["worst"]
        return self.drop(torch.tanh(self.linear(y) * what["scale"][0])), x


class Third(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 4)

    def forward(self, y, x):
        return self.linear(torch.cat([y, x], 1))


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = First(), Second(), Third()

    def forward(self, x):
        return self.c(*self.b(*self.a(x)))


def build():
    return Whole()


def blocks(model):
    return [("a", model.a), ("b", model.b), ("c", model.c)]


def data(kind):
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(512, 16, generator=generator)
    return x, (x[:, :8].sum(1) > 0).long() * 2 + (x[:, 8:].sum(1) > 0).long()


def scheduler(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
