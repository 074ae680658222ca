"""A transformer that learns to write English, one character after another.

`spillway train model.py:build --data FILE` calls data() for what to train on and build() for the model. The loss is the
default one for targets that are whole numbers: cross entropy.
"""

import torch
from torch import nn

CONTEXT = 32  # characters that the model sees before the one that it predicts
WIDTH, HEADS, LAYERS = 64, 4, 4
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))  # all else is read as "?"
STRIDE = 5  # characters between the beginnings of two samples


class Block(nn.Module):
    """Attention to earlier characters, then a network for each character by itself."""

    def __init__(self):
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.before_network = nn.LayerNorm(WIDTH)
        self.network = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x):
        normal = self.before_attention(x)
        x = x + self.attention(normal, normal, normal, attn_mask=self.future, need_weights=False)[0]
        return x + self.network(self.before_network(x))


class Characters(nn.Module):
    """Maps CONTEXT characters to the logits of the character after each of them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(CHARACTERS), WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.logits = nn.Linear(WIDTH, len(CHARACTERS))

    def forward(self, characters):
        x = self.dropout(self.embedding(characters) + self.position)
        return self.logits(self.norm(self.blocks(x)))


def build():
    return Characters()


def encode(text):
    numbers = {character: number for number, character in enumerate(CHARACTERS)}
    return torch.tensor([numbers.get(character, numbers["?"]) for character in text])


def data(path):
    with open(path, encoding="utf-8") as file:
        windows = encode(file.read()).unfold(0, CONTEXT + 1, STRIDE)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01)


def scheduler(optimizer):
    warm_up = 40  # steps in which the learning rate rises; then it falls with the square root of the step
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, (warm_up / (step + 1)) ** 0.5)
    )
