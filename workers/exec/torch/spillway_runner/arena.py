"""Tensors that pass from part to part, in memory that all parts share."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
from typing import Any, List

import torch

from spillway_runner.values import size

SHARED_FILE = 5  # the descriptor of the memory that all parts share
KEEP_SIZE, PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE and FALLOC_FL_PUNCH_HOLE of fallocate(2)
# Bytes of the file that belong to each part. The file is sparse, so that what nobody wrote takes no memory.
STRETCH = 1 << 40
ALIGNMENT = 64  # bytes, of each tensor, for vector instructions

Place = List[Any]  # of a tensor in a range: [offset, type, shape]; in JSON
TYPE_NAMES = {str(t)[6:]: t for t in vars(torch).values() if isinstance(t, torch.dtype)}


class Arena:
    """The shared memory, a file. A part writes only to ranges of its own; messages tell others where."""

    def __init__(self, part: int, pinned: bool, file: int | None = None) -> None:
        self.end, self.pinned = part * STRETCH, pinned
        self.file = SHARED_FILE if file is None else file
        self.mapped: dict[int, mmap.mmap] = {}  # by place in the file
        self.locked: set[int] = set()  # places of those that are page-locked
        os.set_inheritable(self.file, False)

    def take(self, count: int) -> int:
        """The place of a range of count bytes, a multiple of the page size."""
        at = self.end
        self.end += count
        return at

    def give_back(self, at: int, count: int) -> None:
        """Frees the memory of a range of this part's; others may have it mapped, but read it no more."""
        self.unmap(at)
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            libc.fallocate(self.file, KEEP_SIZE | PUNCH_HOLE, ctypes.c_int64(at), ctypes.c_int64(count))
        except (OSError, AttributeError):
            pass  # of systems without it: the range stays until the end

    def map(self, at: int, count: int) -> mmap.mmap:
        memory = self.mapped.get(at)
        if memory is None:
            memory = self.mapped[at] = mmap.mmap(self.file, count, offset=at)
            if self.pinned:  # so that copies to and from the GPU need no buffer in between
                self.pin(at, memory, count)
        return memory

    def pin(self, at: int, memory: mmap.mmap, count: int) -> None:
        """Page-locks a range. Where that is refused, as in virtual machines, under a limit of locked memory and where
        the host has little left, nothing more is locked: copies take longer and wait, but are the same."""
        try:
            check_cuda(torch.cuda.cudart().cudaHostRegister(address(memory), count, 0))
            self.locked.add(at)
        except RuntimeError as error:
            self.pinned = False
            forget_cuda_error()
            print(f"spillway: {error}; messages are copied without it, which takes longer", file=sys.stderr)

    def unmap(self, at: int) -> None:
        memory = self.mapped.pop(at, None)
        if memory is not None and at in self.locked:
            self.locked.remove(at)
            check_cuda(torch.cuda.cudart().cudaHostUnregister(address(memory)))

    def tensor(self, at: int, count: int, offset: int, kind: torch.dtype, shape: list[int]) -> torch.Tensor:
        """A tensor that lies in a range, without a copy."""
        elements = math.prod(shape)
        if elements == 0:
            return torch.empty(shape, dtype=kind)
        return torch.frombuffer(self.map(at, count), dtype=kind, count=elements, offset=offset).view(shape)


def address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def check_cuda(result: Any) -> None:
    if int(result) != 0:
        raise RuntimeError(f"CUDA answers {result} to page-locking of shared memory")


def forget_cuda_error() -> None:
    """Has CUDA forget an error that was answered already: the next kernel would report it as its own."""
    try:
        torch.ones(1, device="cuda")
    except RuntimeError:
        pass


class Slot:
    """A range that is written again and again, and moves when something does not fit."""

    def __init__(self, arena: Arena, number: int) -> None:
        self.arena, self.number, self.at, self.count = arena, number, 0, 0

    def fit(self, count: int) -> None:
        if count <= self.count:
            return
        if self.count:
            self.arena.give_back(self.at, self.count)
        self.count = -(-count // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.at = self.arena.take(self.count)

    def write(self, tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[Place]]:
        """Copies tensors here. Returns the copies and where they are, [offset, type, shape] each."""
        offsets, end = [], 0
        for t in tensors:
            offsets.append(end)
            end += -(-size(t) // ALIGNMENT) * ALIGNMENT
        self.fit(end)
        copies, places = [], []
        for t, offset in zip(tensors, offsets):
            copy = self.arena.tensor(self.at, self.count, offset, t.dtype, t.shape)
            copy.copy_(t.detach(), non_blocking=True)
            copies.append(copy)
            places.append([offset, str(t.dtype)[6:], list(t.shape)])
        for device in {t.device for t in tensors if t.is_cuda}:
            torch.cuda.current_stream(device).synchronize()  # others read it as soon as they are told
        return copies, places
