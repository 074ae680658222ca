"""Models that are trained in parts. Their data is random, but the same each time."""

import math
import os

import torch
import torch.fx
import torch.nn.functional as F
from torch import nn

if torch.cuda.is_available():  # trainings are compared to the last bits: no TensorFloat-32, and the same sums each time
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)


def data(kind):
    generator = torch.Generator().manual_seed(5)
    if kind == "points":  # classes are the signs of two sums
        x = torch.randn(512, 16, generator=generator)
        return x, (x[:, :8].sum(1) > 0).long() * 2 + (x[:, 8:].sum(1) > 0).long()
    if kind == "images":  # classes are the brightest quarters
        x = torch.randn(128, 3, 16, 16, generator=generator)
        return x, x.mean(1).unfold(1, 8, 8).unfold(2, 8, 8).sum((3, 4)).flatten(1).argmax(1)
    if kind == "words":  # each word is followed by the same one
        x = torch.randint(0, 30, (256, 12), generator=generator)
        return x, (x * 7 + 3) % 30
    if kind == "sequences":  # sums of the past
        x = torch.randn(128, 10, 16, generator=generator)
        return {"x": x, "keep": torch.ones(128, 10, 1)}, x.cumsum(1).mean(2, keepdim=True)
    raise ValueError(kind)


class MLP(nn.Module):
    """What the first layer returns is read again at the end, over two cuts."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third, self.last = (
            nn.Linear(16, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 4),
        )
        self.drop, self.relu = nn.Dropout(0.1), nn.ReLU(inplace=True)

    def forward(self, x):
        early = torch.tanh(self.first(x))
        x = self.drop(self.relu(self.second(early)))
        x = self.drop(torch.tanh(self.third(x)))
        return self.last(x + early)


def mlp():
    return MLP()


def batchnorm():
    return nn.Sequential(
        nn.Linear(16, 32),
        nn.BatchNorm1d(32),
        nn.Tanh(),
        nn.Dropout(0.1),
        nn.Linear(32, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(inplace=True),
        nn.Linear(32, 4),
    )


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two, self.head = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Linear(128, 4),
        )

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.one(x)), inplace=True), 2)
        x = x + F.relu(self.two(x))
        return self.head(F.dropout(F.max_pool2d(x, 2).view(x.size(0), -1), 0.1, self.training))


def cnn():
    return CNN()


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.out, self.drop = (
            heads,
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Dropout(0.1),
        )
        self.norm1, self.norm2, self.up, self.down = (
            nn.LayerNorm(width),
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x, mask):
        batch, length, width = x.size(0), x.size(1), x.size(2)
        q, k, v = torch.chunk(self.qkv(self.norm1(x)), 3, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        weights = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(width // self.heads) + mask, dim=-1)
        x = x + self.out((self.drop(weights) @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Transformer(nn.Module):
    """Every layer reads the mask, a buffer that no state_dict has."""

    def __init__(self, tied):
        super().__init__()
        self.embed, self.position = nn.Embedding(30, 16), nn.Parameter(torch.randn(12, 16) / 10)
        self.register_buffer("mask", torch.full((12, 12), -1e9).triu(1), persistent=False)
        self.register_buffer("scale", torch.tensor(2.0))
        self.layers = nn.ModuleList(Layer(16, 2) for _ in range(2))
        self.head = nn.Linear(16, 30, bias=False)
        self.spare = nn.Linear(2, 2)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.embed(tokens) * self.scale + self.position
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(x * self.scale)


def transformer():
    return Transformer(False)


def tied():
    return Transformer(True)


class Recurrent(nn.Module):
    """Returns of layers are tuples, an input is read late, and PyTorch's own encoder has dropout inside."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, nn.LayerNorm(16)
        )
        self.head = nn.Linear(16, 1)

    def forward(self, x, keep):
        states, (hidden, cell) = self.lstm(x)
        best = states.max(dim=1, keepdim=True)
        return self.head(self.encoder(states + best.values) + hidden[0].unsqueeze(1) * cell[0].unsqueeze(1)) * keep


def recurrent():
    return Recurrent()


class Wrong(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.one, self.two = nn.Linear(16, 8), nn.Linear(8, classes)

    def forward(self, x):
        return self.two(self.one(x)).flatten()


def wrong():
    return Wrong(4)


class Rewritten(nn.Module):
    """What one operation writes, another reads before it and a third after it."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x):
        x = self.one(x)
        y = torch.tanh(x)
        z = x.mul_(2)
        return self.two(y + x + z)


def rewritten():
    return Rewritten()


def dies():
    return nn.Sequential(nn.Linear(16, 8), Dying(), nn.Linear(8, 4))


class Dying(nn.Module):
    def forward(self, x):
        return fatal(x)


@torch.fx.wrap
def fatal(x):
    if x.shape[0] == 3:
        print("these are the last words", flush=True)
        os.kill(os.getpid(), 9)
    return x


def wide():
    return nn.Sequential(nn.Linear(16, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 4))
