"""Dropout whose masks belong to samples: the same sample has the same mask however the model is split and the batch is
cut.

A mask is a function of the seed, the step, the layer and the number of the sample in its batch. PyTorch's own comes
from one generator for all layers, so it depends on what ran before it in the same process, which a split changes.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from typing import Any, Callable, Iterator, Sequence

import torch
import torch.utils.checkpoint
from torch import nn

from spillway_runner.arrays import numpy
from spillway_runner.bits import HASHED, MASK_BITS, NumpyBits
from spillway_runner.refusal import Refusal
from spillway_runner.seeds import derived, seed_torch

# alpha * scale of SELU, the negative of what it tends to: Klambauer et al., "Self-Normalizing Neural Networks", 2017
SELU_SATURATION = 1.7580993408473766
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")  # of torch._VF, what the modules of torch.nn call
# of torch 2; the only function of torch.nn.functional whose dropout is within a kernel
ATTENTION = "scaled_dot_product_attention"

Shape = Sequence[int]

ACTIVE: list[KeyedDropout] = []  # those within whose micro-batch something is computed; the last one draws


class KeyedDropout:
    """Puts keyed masks in the place of PyTorch's while a micro-batch is computed.

    Within `with keyed.micro_batch(step, first_sample, samples)`, every dropout of torch.nn and torch.nn.functional, in
    library modules too, draws its mask by the seed, the step, the layer and the sample. The layer is the name last
    given to operation(), and how many masks were drawn under it before in this micro-batch. Other random functions, and
    modules compiled by torch.jit, draw from torch's generator, which is seeded at the entrance by all that and the
    part: they are repeated by a recomputation, but depend on the split and the micro-batches. Recurrent layers with
    dropout between them are refused. What torch.utils.checkpoint computes again in the backward pass has the masks that
    it had. Outside, PyTorch is as it was. One thread may be within.

    Masks on CPUs and those on other devices are different ones, as are those with and without numpy.
    """

    def __init__(self, seed: int, part: int = 0) -> None:
        self.seed, self.part = seed, part
        self.step = self.first = self.samples = 0
        self.layer = ""
        self.drawn: dict[str, int] = {}  # masks of each layer
        self.bits = HASHED if numpy is None else NumpyBits()
        self.replaced = self.places()

    def places(self) -> list[tuple[dict[str, Any], str, Callable[..., Any]]]:
        """What is replaced within: (namespace, name, what stands there instead).

        The functions of torch.nn.functional call those of torch._VF, so that whoever holds one of them is served there.
        The others are replaced under every name that a module outside torch has for them.
        """
        own: dict[str, Callable[..., Any]] = {
            "dropout": self.dropout,
            "dropout_": self.dropout_,
            "alpha_dropout": self.alpha_dropout,
            "alpha_dropout_": self.alpha_dropout_,
            "feature_dropout": self.feature_dropout,
            "feature_dropout_": self.feature_dropout_,
            "feature_alpha_dropout": self.feature_alpha_dropout,
            "feature_alpha_dropout_": self.feature_alpha_dropout_,
        }
        spaces = (vars(torch._VF), vars(torch))
        places = [(space, name, function) for space in spaces for name, function in own.items()]
        places += [(vars(torch._VF), name, refusing(name, getattr(torch._VF, name))) for name in RECURRENT]
        by_identity = {id(getattr(torch, name)): function for name, function in own.items()}
        attention = getattr(nn.functional, ATTENTION, None)
        if attention is not None:
            self.torch_attention = attention
            by_identity[id(attention)] = self.attention
            places.append((vars(nn.functional), ATTENTION, self.attention))
        for name, module in list(sys.modules.items()):
            if name.split(".")[0] != "torch":
                space = getattr(module, "__dict__", {})
                places += [(space, n, by_identity[id(v)]) for n, v in list(space.items()) if id(v) in by_identity]
        return places

    @contextlib.contextmanager
    def micro_batch(self, step: int, first_sample: int, samples: int) -> Iterator[None]:
        """The micro-batch of the samples from first_sample on; first_sample counts from the start of the batch."""
        self.step, self.first, self.samples = step, first_sample, samples
        self.layer, self.drawn = "", {}
        seed_torch(self.seed, step, "part", self.part, first_sample)
        with self.within():
            yield

    @contextlib.contextmanager
    def within(self) -> Iterator[None]:
        """Has its functions in the place of torch's."""
        absent = object()
        originals = [(space, name, space.get(name, absent)) for space, name, _ in self.replaced]
        for space, name, function in self.replaced:
            space[name] = function
        ACTIVE.append(self)
        try:
            yield
        finally:
            ACTIVE.pop()
            for space, name, original in originals:
                if original is absent:
                    del space[name]
                else:
                    space[name] = original

    def repeatable(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that draws the same masks each time, wherever it is called: those of its first call."""
        state = self.step, self.first, self.samples, self.layer, dict(self.drawn)
        called = False

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal called
            if not called:
                called = True
                return function(*args, **kwargs)
            before = self.step, self.first, self.samples, self.layer, self.drawn
            self.step, self.first, self.samples, self.layer, drawn = state
            self.drawn = dict(drawn)
            try:
                with self.within():
                    return function(*args, **kwargs)
            finally:
                self.step, self.first, self.samples, self.layer, self.drawn = before

        return run

    def operation(self, name: str) -> None:
        """Says that what is computed next belongs to the operation of this name in the unsplit model."""
        self.layer = name

    # Masks.

    def noise(self, probability: float, shape: Shape, like: torch.Tensor) -> torch.Tensor:
        """A tensor of this shape: each element is 1 / q with probability q = 1 - probability, else 0. Its expectation
        is 1."""
        threshold = round((1 - probability) * (1 << MASK_BITS))
        if not 0 < threshold < 1 << MASK_BITS:
            return like.new_full(shape, float(threshold > 0))
        return self.kept(threshold, shape, like).mul_((1 << MASK_BITS) / threshold)

    def kept(self, threshold: int, shape: Shape, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """1 where the element's bits are below the threshold, of 2**MASK_BITS, else 0; of a type, else that of like."""
        count = self.drawn.get(self.layer, 0)
        self.drawn[self.layer] = count + 1
        axis, samples = sample_axis(shape, self.samples), self.samples
        if axis is None:
            samples = 1  # the whole belongs to the first sample
        bits = (self.bits if like.device.type == "cpu" else HASHED).draw(
            derived(self.seed, self.step, self.layer, count),
            self.first,
            samples,
            math.prod(shape) // samples,
            like.device,
        )
        mask = torch.empty(bits.shape, dtype=dtype or like.dtype, device=like.device)
        torch.lt(bits, threshold - (1 << MASK_BITS - 1), out=mask)  # bits are signed
        return mask.view(samples, shape[0], *shape[2:]).transpose(0, 1) if axis == 1 else mask.view(shape)

    # The functions of torch that are replaced, with the formulas of its Dropout.cpp.

    def dropout(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not drops(input, p, train):
            return input
        threshold = round((1 - p) * (1 << MASK_BITS))
        if input.device.type == "cpu" or not 0 < threshold < 1 << MASK_BITS:
            return input * self.noise(p, input.shape, input)
        mask = self.kept(threshold, input.shape, input, torch.bool)
        return Masked.apply(input, mask, (1 << MASK_BITS) / threshold)

    def dropout_(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return input.mul_(self.noise(p, input.shape, input)) if drops(input, p, train) else input

    def feature_dropout(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return input * self.noise(p, feature_shape(input), input) if drops(input, p, train) else input

    def feature_dropout_(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        return input.mul_(self.noise(p, feature_shape(input), input)) if drops(input, p, train) else input

    def alpha_dropout(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not drops(input, p, train):
            return input
        factor, offset = self.alpha_noise(p, input.shape, input)
        return input * factor + offset

    def alpha_dropout_(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not drops(input, p, train):
            return input
        factor, offset = self.alpha_noise(p, input.shape, input)
        return input.mul_(factor).add_(offset)

    def feature_alpha_dropout(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not drops(input, p, train):
            return input
        factor, offset = self.alpha_noise(p, feature_shape(input), input)
        return input * factor + offset

    def feature_alpha_dropout_(self, input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
        if not drops(input, p, train):
            return input
        factor, offset = self.alpha_noise(p, feature_shape(input), input)
        return input.mul_(factor).add_(offset)

    def alpha_noise(self, probability: float, shape: Shape, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Factor and offset that drop to SELU's saturation and keep mean 0 and variance 1: a * (x * kept - s * (1 -
        kept)) + a * s * p with s the saturation."""
        threshold = round((1 - probability) * (1 << MASK_BITS))
        if threshold == 0:
            return like.new_zeros(shape), like.new_zeros(shape)
        if threshold == 1 << MASK_BITS:
            return like.new_ones(shape), like.new_zeros(shape)
        p = 1 - threshold / (1 << MASK_BITS)
        a = 1 / math.sqrt((SELU_SATURATION**2 * p + 1) * (1 - p))
        kept = self.kept(threshold, shape, like)
        return kept * a, (kept - (1 - p)) * (a * SELU_SATURATION)

    def attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        """torch.nn.functional.scaled_dot_product_attention, which with dropout is computed by its definition: the
        weights are in memory."""
        if dropout_p == 0:
            return self.torch_attention(query, key, value, attn_mask, dropout_p, is_causal, **more)
        if more.pop("enable_gqa", False):
            key, value = (t.repeat_interleave(query.size(-3) // t.size(-3), -3) for t in (key, value))
        scale = more.pop("scale", None)
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.size(-1)) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None:
            boolean = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(attn_mask.logical_not(), -math.inf) if boolean else scores + attn_mask
        return self.dropout(scores.softmax(-1), dropout_p, True) @ value


def followed(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    """torch.utils.checkpoint.checkpoint, whose function draws the masks of its forward pass when it is called again."""

    @functools.wraps(checkpoint)
    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return checkpoint(ACTIVE[-1].repeatable(function) if ACTIVE else function, *args, **kwargs)

    return call


# Before anybody else has it: models and libraries keep it under names of their own.
torch.utils.checkpoint.checkpoint = followed(torch.utils.checkpoint.checkpoint)


class Masked(torch.autograd.Function):
    """Zero where a mask is false, else scaled: one kernel each way on a GPU, and a byte an element that is kept."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return torch.ops.aten.native_dropout_backward(input, mask, scale)  # which is the same product

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return torch.ops.aten.native_dropout_backward(gradient, mask, ctx.scale), None, None


def drops(input: torch.Tensor, p: float, train: bool) -> bool:
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return train and p > 0 and input.numel() > 0


def refusing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A recurrent function of torch that refuses to draw masks between its layers: they come from the kernel."""

    def checked(*args: Any) -> Any:
        without_lengths = isinstance(args[2], (list, tuple))  # of sequences
        layers, probability, train = args[4:7] if without_lengths else args[5:8]
        if layers > 1 and probability > 0 and train:
            raise Refusal(
                "dropout",
                f"{name} of {layers} layers draws its dropout masks itself, and they depend on the split",
                hint=f"use {layers} of one layer each with torch.nn.Dropout between them, or dropout=0",
            )
        return function(*args)

    return checked


def feature_shape(input: torch.Tensor) -> Shape:
    """The shape of a mask of whole channels."""
    if input.dim() < 2:
        raise ValueError(f"dropout of channels needs at least 2 dimensions in input, but got {input.dim()}")
    return input.shape[:2] + (1,) * (input.dim() - 2)


def sample_axis(shape: Shape, samples: int) -> int | None:
    """The dimension of a tensor along which its samples lie: 0, 1, or None where none is found and the mask depends on
    the micro-batch.

    Dimension 0 may have several rows of each sample in turn, as where attention heads are folded into it. Dimension 1
    is that of sequence-first models; a square of as many rows as there are samples is taken for attention weights.
    """
    if not shape or not samples:
        return None
    square = len(shape) == 3 and shape[1] == shape[2]
    if shape[0] != samples and len(shape) > 1 and shape[1] == samples and not (square and shape[0] % samples == 0):
        return 1
    return 0 if shape[0] % samples == 0 else None
