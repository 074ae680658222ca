"""A model whose gradients overflow in float16 at first: the loss is scaled by 65536. Its data are one batch."""

import torch
from torch import nn


def build():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def data():
    torch.manual_seed(4)
    return torch.randn(16, 8), 20 * torch.randn(16, 1)
