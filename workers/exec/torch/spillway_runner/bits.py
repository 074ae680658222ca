"""Random bits by key and position.

A source draws the same MASK_BITS bits for the same key, sample and position, as signed numbers in a tensor (samples,
elements).
"""

from __future__ import annotations

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
        # All is computed on the device, from numbers of Python: a copy from the host would wait for what it has to do.
        words = [signed(key[0] >> shift) for shift in (0, 32, 64, 96)]
        number = torch.arange(first, first + samples, dtype=torch.int32, device=device)
        own = mixed(mixed(number + words[0]) ^ words[1]), mixed(mixed(number + words[2]) ^ words[3])
        x = mixed(torch.arange(-(-elements // 2), dtype=torch.int32, device=device)) ^ own[0][:, None]
        x = fold(x.mul_(signed(0x7FEB352D)), 15).add_(own[1][:, None]).mul_(signed(0x846CA68B))
        return fold(x, 16).view(torch.int16)[:, :elements]


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
