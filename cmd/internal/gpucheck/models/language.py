"""Transformers that learn to say the next word, of several sizes. Their words are random."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

FUSED = getattr(F, "scaled_dot_product_attention", None)  # of torch 2


class Layer(nn.Module):
    """Attention and two wide products, each after a normalization and beside a way past it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.size(0), x.size(1), x.size(2)
        q, k, v = torch.chunk(self.qkv(self.norm1(x)), 3, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        if FUSED is not None:
            mixed = FUSED(q, k, v)
        else:
            mixed = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(width // self.heads), dim=-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Language(nn.Module):
    def __init__(self, words, length, width, heads, layers):
        super().__init__()
        self.embed, self.position = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) / 50)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def large():
    """319 million parameters."""
    return Language(8192, 512, 1024, 16, 24)


def medium():
    """91 million parameters."""
    return Language(4096, 256, 768, 12, 12)


def small():
    """7 million parameters and few words, for CPUs: what they hold is mostly parameters there, too."""
    return Language(256, 16, 384, 4, 4)


SHAPES = {"large": (8192, 512), "medium": (4096, 256), "small": (256, 16)}


def data(size):
    words, length = SHAPES[size]
    tokens = torch.randint(0, words, (256, length + 1), generator=torch.Generator().manual_seed(5))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(output, target):
    return F.cross_entropy(output.flatten(0, 1), target.flatten())
