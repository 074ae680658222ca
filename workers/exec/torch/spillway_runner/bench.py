"""Runs the operations of a model on a device one by one, while the model and its values stay in the host's memory, so
that the model may be larger than the device."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import torch

from spillway_runner.costs import Kept, memory
from spillway_runner.tracing import Operation
from spillway_runner.values import each


class Bench:
    """Where operations are run and measured. Where it is not apart, values and parameters are there, and stay."""

    def __init__(self, device: torch.device, apart: bool) -> None:
        self.device, self.apart = device, apart
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []  # values at home and their copies, of this operation

    @contextlib.contextmanager
    def loan(self, operation: Operation, args: Any, kwargs: Any, leaves: bool) -> Iterator[tuple[Any, Any]]:
        """args and kwargs on the device, beside what the operation holds; leaves says that autograd ends there.

        What the operation writes to its arguments is written at home when it is done. What it writes to its buffers is
        forgotten.
        """
        if not self.apart:
            yield args, kwargs
            return
        held = {id(t): t for t in operation.all_held()}
        at_home = [(t, t.data) for t in held.values()]
        self.pairs = []
        made: dict[int, torch.Tensor] = {}

        def lent(t: torch.Tensor) -> torch.Tensor:
            if id(t) in held:
                return t
            if id(t) not in made:
                copy = (t.detach() if leaves else t).to(self.device, copy=True)
                made[id(t)] = copy.requires_grad_(t.requires_grad) if leaves else copy
                self.pairs.append((t, made[id(t)]))
            return made[id(t)]

        try:
            for t, data in at_home:  # the objects stay the same, so that autograd and the graph know them
                t.data = data.to(self.device, copy=True)
            yield each(args, lent), each(kwargs, lent)
            with torch.no_grad():
                for home, copy in self.pairs:
                    if copy._version > 0:
                        home.copy_(copy)
        finally:
            for t, data in at_home:
                t.data = data
                t.grad = None

    def home(self, value: Any, kept: Kept | None = None) -> Any:
        """A value of the operation in the host's memory, without its history; kept is told of what it keeps.

        What is a view of an argument there is one here.
        """
        if not self.apart:
            return value
        lenders = {memory(copy)[0]: (home, copy) for home, copy in self.pairs}

        def bring(t: torch.Tensor) -> torch.Tensor:
            home, copy = lenders.get(memory(t)[0], (None, None))
            if home is not None and copy is not None and home.stride() == copy.stride():
                back = home.detach().as_strided(t.size(), t.stride(), t.storage_offset() + home.storage_offset())
            else:
                back = t.detach().to("cpu", copy=True)
            if kept is not None:
                kept.brought(t, back)
            return back.requires_grad_(t.requires_grad)

        return each(value, bring)

    def lent(self) -> dict[int, torch.Tensor]:
        """The arguments at home by the addresses of their copies on the device."""
        return {memory(copy)[0]: home for home, copy in self.pairs}
