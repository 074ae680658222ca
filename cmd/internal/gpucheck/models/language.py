"""Transformers that learn to say the next word, of several sizes. Their words are random."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

FUSED = getattr(F, "scaled_dot_product_attention", None)  # of torch 2


class Layer(nn.Module):
    """Attention and two wide products, each after a normalization and beside a way past it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.drop = nn.Dropout(dropout) if dropout else None
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.size(0), x.size(1), x.size(2)
        q, k, v = torch.chunk(self.qkv(self.norm1(x)), 3, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        if FUSED is not None:
            mixed = FUSED(q, k, v)
        else:
            mixed = F.softmax(q @ k.transpose(-2, -1) / math.sqrt(width // self.heads), dim=-1) @ v
        x = x + self.dropped(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropped(self.down(F.gelu(self.up(self.norm2(x)))))

    def dropped(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.drop is None else self.drop(x)


class Language(nn.Module):
    def __init__(self, words: int, length: int, width: int, heads: int, layers: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) / 50)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


# Words, length, width, heads and layers: 319, 91, 30 and 7 million parameters. The smallest is for CPUs; what it holds
# is mostly parameters there, too, as it has few words.
SHAPES = {
    "large": (8192, 512, 1024, 16, 24),
    "medium": (4096, 256, 768, 12, 12),
    "compact": (4096, 256, 512, 8, 8),
    "small": (256, 16, 384, 4, 4),
}
DROPOUT = 0.1

large, medium, compact, small = (partial(Language, *SHAPES[name]) for name in ("large", "medium", "compact", "small"))
medium_dropout, compact_dropout, small_dropout = (
    partial(Language, *SHAPES[name], dropout=DROPOUT) for name in ("medium", "compact", "small")
)


def data(size: str) -> tuple[torch.Tensor, torch.Tensor]:
    words, length = SHAPES[size][:2]
    tokens = torch.randint(0, words, (256, length + 1), generator=torch.Generator().manual_seed(5))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())
