import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


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


class Kept(nn.Module):
    """Two layers with dropout between them, which may be computed again instead of kept."""

    def __init__(self, again, size):
        super().__init__()
        self.again, self.first, self.second = again, nn.Linear(8, 16), nn.Linear(16, size)

    def layers(self, x):
        hidden = nn.functional.dropout(self.first(x).relu(), 0.5, self.training)
        return nn.functional.dropout(self.second(hidden), 0.25, self.training)

    def forward(self, x):
        if self.again and x.sum() == x.sum():  # which nothing can trace
            return checkpoint(self.layers, x, use_reentrant=False)
        return self.layers(x)


class KeptTwice(nn.Module):
    def __init__(self, again):
        super().__init__()
        self.first, self.second = Kept(again, 8), Kept(again, 4)

    def forward(self, x):
        return self.second(self.first(x))


def kept():
    return KeptTwice(False)


def recomputed():
    return KeptTwice(True)


def data(_):
    torch.manual_seed(6)
    return torch.randn(32, 8), torch.randint(0, 4, (32,))
