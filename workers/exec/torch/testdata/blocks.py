import torch
from torch import nn


class Absolute(nn.Module):
    """Its path depends on its input."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 16)

    def forward(self, x):
        x = self.linear(x)
        if x.sum() > 0:
            return x, x.sum()
        return -x, x.sum()


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def forward(self, x, total):
        return self.linear(x) + total


class Dynamic(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Absolute(), Sum()

    def forward(self, x):
        return self.second(*self.first(x))


def build():
    return Dynamic()


def blocks(model):
    return [("first", model.first), ("second", model.second)]


def example_inputs(batch):
    return torch.randn(batch, 8)
