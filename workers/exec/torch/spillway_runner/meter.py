"""How much memory calls take on a device while they work."""

from __future__ import annotations

import gc
from typing import Any, Callable

import torch

from spillway_runner.devices import wait


class Meter:
    """Measures what torch's allocator has on a device.

    On the CPU, that is what tensors and the copies that operations make of them take, not what the C library keeps of
    what was freed; on a GPU, the pages of free blocks are left out as well.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def held(self) -> int:
        """The bytes that are held on a GPU; 0 on the CPU, whose allocator does not count."""
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else 0

    def most(self, call: Callable[[], Any]) -> tuple[Any, int]:
        """What call returns, and the most bytes that it held at once beside what was there before."""
        if self.device.type == "cuda":
            wait(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            value = call()
            wait(self.device)
            return value, torch.cuda.max_memory_allocated(self.device) - before
        with torch.autograd.profiler.profile(profile_memory=True) as profile:
            value = call()
        events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
        held = most = 0
        for event in sorted(events, key=began):
            held += event.nbytes()
            most = max(most, held)
        return value, most

    def forget(self) -> None:
        """Lets go of the work space that libraries of a GPU keep from one call to the next."""
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if self.device.type == "cuda" and clear is not None:
            gc.collect()
            clear()


def began(event: Any) -> int:
    """When an event of a profile was; versions of torch count it in units of their own."""
    return event.start_ns() if hasattr(event, "start_ns") else event.start_us()
