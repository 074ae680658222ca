"""Small models of the transformers library, without weights to download, cut between their layers."""

from __future__ import annotations

import torch
import transformers
from torch import nn


class Start(nn.Module):
    """The embeddings of a GPT-2."""

    def __init__(self, body):
        super().__init__()
        self.words, self.places, self.drop = body.wte, body.wpe, body.drop

    def forward(self, tokens):
        return self.drop(self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device)))


class Middle(nn.Module):
    """A layer of the library; what it returns beside the states is dropped."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        made = self.layer(x)
        return made[0] if isinstance(made, tuple) else made


class End(nn.Module):
    def __init__(self, norm, head):
        super().__init__()
        self.norm, self.head = norm, head

    def forward(self, x):
        return self.head(self.norm(x))


class Language(nn.Module):
    """A GPT-2 of the library whose head has weights of its own."""

    def __init__(self, width, layers):
        super().__init__()
        config = transformers.GPT2Config(
            vocab_size=1024, n_positions=64, n_embd=width, n_layer=layers, n_head=4, tie_word_embeddings=False
        )
        self.whole = transformers.GPT2LMHeadModel(config)

    def forward(self, tokens):
        return self.whole(tokens, use_cache=False).logits


def small():
    return Language(128, 4)


def medium():
    return Language(768, 12)


def blocks(model):
    body = model.whole.transformer
    middle = [(f"layer{i}", Middle(layer)) for i, layer in enumerate(body.h)]
    return [("start", Start(body)), *middle, ("end", End(body.ln_f, model.whole.lm_head))]


def data(_):
    tokens = torch.randint(0, 1024, (128, 65), generator=torch.Generator().manual_seed(5))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
