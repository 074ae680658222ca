"""A model with what a compiler fuses on both sides of a mask of dropout."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 16)
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        hidden = self.second(self.drop(torch.relu(self.first(x))))
        return self.last(nn.functional.gelu(self.norm(hidden)) + hidden)


def build():
    return Model()


def data():
    torch.manual_seed(7)
    return torch.randn(32, 8), torch.randint(0, 4, (32,))
