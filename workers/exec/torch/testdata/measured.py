"""Models of the size at which measuring makes sense."""

import torch
from torch import nn

from models import Transformer


def mlp():
    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(1024, 10))


def cnn():
    layers = []
    for before, after in ((1, 32), (32, 64), (64, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 9, 128), nn.ReLU(), nn.Linear(128, 10)), torch.randn(
        64, 1, 28, 28
    )


def transformer():
    """With dropout of weights and of what attention returns."""
    return Transformer(tokens=1000, length=128, width=256, heads=8, layers=4), torch.randint(0, 1000, (8, 128))


def untied():
    """The same with a head of its own, so that the layers may be cut from each other."""
    model, tokens = transformer()
    model.head = nn.Linear(256, 1000, bias=False)
    return model, tokens


def halves():
    """Eight equal layers between two small ones: cut in the middle, both halves compute the same products."""
    layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, 1024), *layers, nn.Linear(1024, 8))


def narrow():
    return nn.Sequential(nn.Linear(8, 8), nn.Identity(), nn.Identity(), nn.Linear(8, 8))


def wide():
    """Between its first two operations passes 1 MB for each sample."""
    return nn.Sequential(
        nn.Linear(8, 1 << 18, bias=False), nn.Unflatten(1, (-1, 8)), nn.AdaptiveAvgPool2d((1, 8)), nn.Flatten()
    )


def data(kind):
    torch.manual_seed(5)
    if kind in ("transformer", "untied"):
        return torch.randint(0, 1000, (256, 128)), torch.randint(0, 1000, (256, 128))
    samples = 8192 if kind == "halves" else 256
    shape = {"mlp": (1024,), "cnn": (1, 28, 28), "halves": (8,), "narrow": (8,), "wide": (8,)}[kind]
    return torch.randn(samples, *shape), torch.randint(0, 8, (samples,))
