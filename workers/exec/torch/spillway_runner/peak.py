"""How many floating-point operations a device does in a second when it does nothing but products of matrices."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch

from spillway_runner.answers import out_of_memory
from spillway_runner.devices import wait

ROWS = {"cpu": 768, "cuda": 4096}  # of square matrices: enough to reach the rate, and 10 ms at most on either
REPEATS = 4


def peak(device: torch.device, cast: Callable[[], Any]) -> float:
    """The most of a few products, two operations for each multiplication with an addition, in the precision of cast();
    0 where the device has no room for them."""
    rows = ROWS.get(device.type, ROWS["cpu"])
    best = 0.0
    try:
        with torch.no_grad(), cast():
            one, other = (torch.ones(rows, rows, device=device) for _ in range(2))
            for _ in range(REPEATS):
                wait(device)
                began = time.perf_counter()
                _ = one @ other
                wait(device)
                best = max(best, 2 * rows**3 / max(time.perf_counter() - began, 1e-9))
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    return best
