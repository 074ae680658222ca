"""The memory of this process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import stat
import sys

import torch
from torch import nn

PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


def owned() -> int:
    """Bytes of memory of this process that lie in no file, as those do that processes share; 0 where the system does
    not tell."""
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon:")), 0)
    except OSError:
        return 0


def open_files() -> set[tuple[int, str]]:
    """The files of the disk that this process has open; none where the system does not tell. Processes that are forked
    read on where others have read to, so that several of them would read each other's samples."""
    found = set()
    try:
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # it is that by which they are listed
                path = os.readlink(f"/proc/self/fd/{name}")
                if stat.S_ISREG(os.fstat(int(name)).st_mode) and not path.startswith("/memfd:"):
                    found.add((int(name), path))
    except OSError:
        pass
    return found


def imported(modules: int, before: int, held: int) -> int:
    """The bytes by which code has grown that was imported since there were so many modules and resident() was before,
    where held bytes of tensors were made as well. Libraries import a model's code when it is built."""
    if len(sys.modules) == modules:
        return 0
    trim()
    return max(resident() - before - held, 0)


def highest() -> int:
    """The most bytes that were resident since reset_highest; 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def reset_highest() -> bool:
    """Whether highest counts from now on."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return True
    except OSError:
        return False


def trim() -> None:
    """Gives memory that nobody uses back to the system."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library


def warm_up() -> None:
    """Trains a small model of the usual layers for a step, on the CPU, and lets it go.

    The first passes of a process load the code of operations and allocate what libraries keep from then on: threads,
    the buffers of matrix products, tables of kernels. All that belongs to the process, whatever part it holds, and is
    to be there before it is asked what it holds. Random numbers are left as they were.
    """
    state = torch.get_rng_state()
    images, words = torch.rand(2, 3, 16, 16), torch.zeros(2, 8, dtype=torch.int64)
    sight = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 512)
    )
    speech = nn.Sequential(nn.Embedding(4, 64), nn.TransformerEncoderLayer(64, 2, 64), nn.Flatten())
    parameters = list(sight.parameters()) + list(speech.parameters())
    optimizer = torch.optim.Adam(parameters)
    products = nn.functional.linear(torch.rand(512, 512), sight[-1].weight)  # as large as those that fill the buffers
    losses = [nn.functional.cross_entropy(t, words[:, 0]) for t in (sight(images), speech(words))]
    losses.append(nn.functional.gelu(products).square().mean())
    sum(losses).backward()
    optimizer.step()
    torch.set_rng_state(state)
