"""Models that a probe is tried on."""

import math

import torch
import torch.nn.functional as F
from torch import nn


def mlp():
    """Its input is guessed from its first layer. One activation writes to its input."""
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(inplace=True), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm, self.conv2 = (
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.Conv2d(16, 32, 3, padding=1),
        )
        self.head = nn.Linear(32 * 8 * 8, 10)

    def forward(self, x, mask=None):
        x = F.max_pool2d(F.relu(self.norm(self.conv1(x)), inplace=True), 2)
        if mask is not None:
            x = x * mask
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.head(x.view(x.size(0), -1))


def cnn():
    return CNN(), torch.randn(8, 3, 32, 32)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out, self.drop = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Dropout(0.1),
        )

    def forward(self, x):
        batch, length, width = x.size(0), x.size(1), x.size(2)
        qkv = torch.chunk(self.qkv(x), 3, dim=2)
        q, k, v = (qkv[i].view(batch, length, self.heads, -1).transpose(1, 2) for i in range(3))
        weights = self.drop(F.softmax(torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(32), dim=-1))
        return self.drop(self.out(torch.matmul(weights, v).transpose(1, 2).reshape(batch, length, width)))


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Small; its head has the weights of its embedding."""

    def __init__(self, tokens=100, length=24, width=64, heads=2, layers=2):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        self.register_buffer("scale", torch.full((width,), 0.5))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, tokens, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def transformer():
    return Transformer(), torch.randint(0, 100, (4, 24))


class Functional(nn.Module):
    """Ties its weights through functions alone."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32))

    def forward(self, x):
        return F.linear(F.linear(x, self.weight).relu(), self.weight)


def functional():
    return Functional()


def encoder():
    """PyTorch's own layers."""
    layer = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
    return nn.TransformerEncoder(layer, 3), torch.randn(4, 16, 32)


class Tagger(nn.Module):
    """Has PyTorch's layers inside, with a mask."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 64), 2, nn.LayerNorm(32))
        self.register_buffer("mask", torch.zeros(16, 16))
        self.head = nn.Linear(32, 5)

    def forward(self, x):
        return self.head(self.encoder(x, mask=self.mask))


def tagger():
    return Tagger(), torch.randn(16, 4, 32)


class Returns(nn.Module):
    """Operations with several outputs."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)

    def forward(self, x):
        both = self.lstm(x)
        return both[0].max(dim=1).values + both[1][0][0]


def returns():
    return Returns(), {"x": torch.randn(4, 8, 16)}


def unknown():
    return nn.Conv2d(3, 4, 3)


def integer():
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8))


def mismatch():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(33, 10))


class Narrow(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.other = nn.Parameter(torch.zeros(9))

    def forward(self, x):
        x = self.first(x)
        return x + self.other


def narrow():
    return Narrow()


class Lazy(nn.Module):
    """Does not use all that it holds."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(4, 4), nn.Linear(4, 5)

    def forward(self, x):
        return self.used(x)


def lazy():
    return Lazy()


def nothing():
    return 7


def fails():
    raise ValueError("no such data set")
