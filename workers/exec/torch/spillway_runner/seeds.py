"""Random numbers that belong to what they are for."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

import torch

from spillway_runner.arrays import numpy


def derived(*what: Any) -> tuple[int, int]:
    """Two numbers of 128 bits that belong to what, as good as random and other ones for anything else."""
    digest = hashlib.blake2b(json.dumps(what).encode(), digest_size=32).digest()
    return int.from_bytes(digest[:16], "little"), int.from_bytes(digest[16:], "little")


def seed_torch(*what: Any) -> None:
    """Seeds torch's generators with a number that belongs to what. torch.manual_seed formats a stack each time for
    CUDA's sake."""
    number = derived(*what)[0] >> 65  # 63 bits
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(number)


def seed_all(*what: Any) -> None:
    """Seeds what data may draw from: the generators of torch, random and numpy."""
    seed_torch(*what)
    number = derived(*what)[0]
    random.seed(number)
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)
