"""Random bits by key and position.

A source draws the same MASK_BITS bits for the same key, sample and position, as signed numbers in a tensor (samples,
elements).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from spillway_runner.arrays import numpy

# Per element: a probability is rounded to a multiple of 2**-MASK_BITS, and the scale is that of the rounded one.
MASK_BITS = 16


class NumpyBits:
    """PCG64's stream of the key; each sample has its own stretch, found by advancing. O'Neill, "PCG: A Family of Simple
    Fast ... Algorithms", 2014."""

    def __init__(self) -> None:
        self.generator = numpy.random.PCG64(0)

    def draw(self, key: tuple[int, int], first: int, samples: int, elements: int, _: torch.device) -> torch.Tensor:
        words = -(-elements // 4)
        self.generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": key[0], "inc": key[1] | 1},
            "has_uint32": 0,
            "uinteger": 0,
        }
        self.generator.advance(first * words)
        bits = torch.from_numpy(self.generator.random_raw(samples * words).view(numpy.int16))
        return bits.view(samples, 4 * words)[:, :elements]


class HashBits:
    """A hash of the position and two numbers of the sample, in the arithmetic of tensors: two multiplications with
    shifts between them, as in Wellons' lowbias32, https://nullprogram.com/blog/2018/07/31/. It costs more passes over
    memory than NumpyBits, but runs on any device.
    """

    def draw(self, key: tuple[int, int], first: int, samples: int, elements: int, device: torch.device) -> torch.Tensor:
        own, count = numbers(key, first, samples, device), -(-elements // 2)
        # What is the same each time is kept where that is a trifle: on a GPU it is the number of kernels that counts.
        x = (kept_positions if count <= MOST_KEPT else positions)(count, device) ^ own[0][:, None]
        x = fold(x.mul_(signed(0x7FEB352D)), 15).add_(own[1][:, None]).mul_(signed(0x846CA68B))
        return fold(x, 16).view(torch.int16)[:, :elements]


MOST_KEPT = 1 << 18  # positions, of 4 bytes each


def positions(count: int, device: torch.device) -> torch.Tensor:
    return mixed(torch.arange(count, dtype=torch.int32, device=device))


kept_positions = functools.lru_cache(maxsize=16)(positions)


def numbers(key: tuple[int, int], first: int, samples: int, device: torch.device) -> torch.Tensor:
    """Two numbers of each sample, in a tensor (2, samples)."""
    words = [key[0] >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)]
    if numpy is None:
        number = torch.arange(first, first + samples, dtype=torch.int32, device=device)
        low, high = (mixed(number + signed(words[i])) ^ signed(words[i + 1]) for i in (0, 2))
        return mixed(torch.stack([low, high]))
    number = numpy.arange(first, first + samples, dtype=numpy.uint32)
    begin, change = (numpy.array(words[i::2], dtype=numpy.uint32)[:, None] for i in (0, 1))
    own = torch.from_numpy(mixed_array(mixed_array(number + begin) ^ change).view(numpy.int32))
    if device.type == "cpu":
        return own
    return own.pin_memory().to(device, non_blocking=True)  # which waits for nothing that the device has to do


def mixed_array(x: Any) -> Any:
    """What mixed does, of an array of numpy.uint32."""
    x = (x ^ x >> 16) * numpy.uint32(0x7FEB352D)
    x = (x ^ x >> 15) * numpy.uint32(0x846CA68B)
    return x ^ x >> 16


def mixed(x: torch.Tensor) -> torch.Tensor:
    """lowbias32, a permutation of 32 bits in which each bit of x changes each of the result about half of the time."""
    return fold(fold(fold(x.clone(), 16).mul_(signed(0x7FEB352D)), 15).mul_(signed(0x846CA68B)), 16)


def fold(x: torch.Tensor, shift: int) -> torch.Tensor:
    """x ^= x >> shift, with zeros shifted in."""
    return x.bitwise_xor_((x >> shift).bitwise_and_((1 << 32 - shift) - 1))


def signed(number: int) -> int:
    """The low 32 bits of a number as torch.int32 has them."""
    return ((number & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


HASHED = HashBits()
