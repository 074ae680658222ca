"""What an operation keeps for its backward pass, how much it computes, and how long it takes."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from functools import partial
from typing import Any, Callable, ContextManager

import torch
from torch import nn

from spillway_runner.devices import wait
from spillway_runner.meter import Meter
from spillway_runner.tracing import Operation
from spillway_runner.values import each, tensors

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = None

Cast = Callable[[], ContextManager[Any]]  # enters the precision in which a model computes
WARM_UPS = 2  # runs before the measured ones: the first allocates, the second finds the caches as the others do


def memory(tensor: torch.Tensor) -> tuple[int, int]:
    """The address and the bytes of what holds a tensor's elements; views share it."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without one
        return id(tensor), tensor.numel() * tensor.element_size()


class Kept:
    """Counts what the forward pass keeps for the backward pass: each storage once, at the operation that keeps it
    first.

    Where operations run on a bench apart from the model, what they keep is known by what it is at home.
    """

    def __init__(self, module: nn.Module) -> None:
        self.seen = {memory(t)[0] for t in list(module.parameters()) + list(module.buffers())}
        self.alive: list[torch.Tensor] = []  # so that no address is used twice
        self.homes: dict[int, torch.Tensor] | None = None  # by the address on the bench; None without one
        self.fresh: dict[int, torch.Tensor] = {}  # what this operation made on the bench and keeps, by address
        self.bytes = 0

    def begin(self, homes: dict[int, torch.Tensor], held: list[torch.Tensor]) -> None:
        """Begins an operation on a bench, where these arguments and what it holds are."""
        self.homes, self.fresh = homes, {}
        self.held = {memory(t)[0] for t in held}

    def pack(self, tensor: torch.Tensor) -> None:
        address, count = memory(tensor)
        if self.homes is not None:
            if address in self.held or address in self.fresh:
                return
            home = self.homes.get(address)
            if home is None:
                self.fresh[address] = tensor
                self.bytes += count
                return
            tensor, address = home, memory(home)[0]
        if address not in self.seen:
            self.seen.add(address)
            self.alive.append(tensor)
            self.bytes += count

    def brought(self, tensor: torch.Tensor, home: torch.Tensor) -> None:
        """Takes in that a value of the operation is at home now."""
        if memory(tensor)[0] in self.fresh:
            self.seen.add(memory(home)[0])
            self.alive.append(home)

    def take(self) -> int:
        taken, self.bytes = self.bytes, 0
        self.homes, self.fresh = None, {}
        return taken


def multiply_adds(name: str, args: Any, out: Any) -> int:
    """Multiplications with an addition of one low-level operation; 0 where it is none of the products below.

    A matrix product of m x k and k x n takes m*k*n; a convolution takes the elements of its output times those of one
    filter; a transposed one the elements of its input times those; attention the product of queries and keys and that
    of weights and values.
    """
    if name in ("mm", "bmm"):
        return math.prod(args[0].shape) * args[1].shape[-1]
    if name in ("addmm", "baddbmm"):
        return math.prod(args[1].shape) * args[2].shape[-1]
    if name in ("mv", "dot"):
        return math.prod(args[0].shape)
    if name in ("convolution", "_convolution"):
        over = args[0] if args[6] else out
        return math.prod(over.shape[:1]) * math.prod(over.shape[2:]) * math.prod(args[1].shape)
    if name.startswith("_scaled_dot_product"):
        query, key, value = args[0], args[1], args[2]
        return math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return 0


if TorchDispatchMode is not None:

    class Counter(TorchDispatchMode):
        """Counts floating-point operations: two for each multiplication with an addition."""

        total = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "").split(".")[0]
            self.total += 2 * multiply_adds(name, args, out)
            return out


def count(call: Callable[[Any, Any], Any], copy: Callable[[], tuple[Any, Any]]) -> tuple[tuple[Any, Any], int]:
    """Runs an operation once on copies. Returns them and its floating-point operations; -1 where this torch cannot
    count them."""
    if TorchDispatchMode is not None:
        copies = copy()
        try:
            with Counter() as counter:
                call(*copies)
            return copies, counter.total
        except Exception:
            # A mode that meets an operator it does not know is no fault of the model, which ran before without it.
            pass
    copies = copy()
    call(*copies)
    return copies, -1


class Clock:
    """Times calls on a device. overhead is what one gradient costs that computes nothing: a whole model pays it once,
    each operation alone would."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.wait = device, partial(wait, device)
        self.overhead = 0.0
        leaf = torch.zeros(1, device=device, requires_grad=True)
        _, _, self.overhead = measure(self, 100, lambda _: leaf.view(1), [leaf])

    def time(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """What call returns and the seconds until the device is done with it."""
        self.wait()
        start = time.perf_counter()
        value = call()
        self.wait()
        return value, time.perf_counter() - start


def measure(
    clock: Clock,
    repeats: int,
    forward: Callable[[Any], Any],
    wrt: list[torch.Tensor],
    prepare: Callable[[], Any] = lambda: None,
) -> tuple[Any, float, float]:
    """The last value and the median seconds of forward(prepared) and of its gradient with respect to the tensors
    wrt."""
    forwards: list[float] = []
    backwards: list[float] = []
    value = None
    for _ in range(WARM_UPS + repeats):
        value, seconds = clock.time(partial(forward, prepare()))
        forwards.append(seconds)
        outputs = [t for t in tensors(value) if t.requires_grad]
        if outputs and wrt:
            cotangents = [torch.ones_like(t) for t in outputs]
            _, seconds = clock.time(partial(torch.autograd.grad, outputs, wrt, cotangents, allow_unused=True))
            backwards.append(seconds)
    backward = statistics.median(backwards[WARM_UPS:] or [0.0])
    return value, statistics.median(forwards[WARM_UPS:]), max(backward - clock.overhead, 0.0)


def unique(items: list[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(t): t for t in items}.values())


def time_operation(
    clock: Clock, repeats: int, operation: Operation, args: Any, kwargs: Any, cast: Cast = contextlib.nullcontext
) -> tuple[Any, dict[str, Any]]:
    """The value of one operation, detached, and what it costs. Each forward pass is within a cast()."""

    def call(args: Any, kwargs: Any) -> Any:
        with cast():
            return operation.call(args, kwargs)

    def copy() -> tuple[Any, Any]:
        return each(args, torch.clone), each(kwargs, torch.clone)

    copies, flops = count(call, copy)
    # Autograd refuses to write to a leaf, so what writes to its inputs gets copies, made outside the measured time. A
    # copy that was written to has another version than its own copy, which has the first.
    originals = list(tensors((args, kwargs)))
    written = [(t, c) for t, c in zip(originals, tensors(copies)) if c._version > 0]
    prepare = copy if written else (lambda: (args, kwargs))
    wrt = unique([t for t in originals + operation.held if t.requires_grad and t.is_leaf])
    value, forward, backward = measure(clock, repeats, lambda p: call(*p), wrt, prepare)
    with torch.no_grad():
        for original, written_copy in written:
            original.copy_(written_copy)
    detached = each(value, lambda t: t.detach().requires_grad_(t.requires_grad))
    del value
    held = weigh(Meter(clock.device), lambda p: call(*p), wrt, prepare)
    return detached, {"forward": forward, "backward": backward, "flops": flops, **held}


def weigh(
    meter: Meter, forward: Callable[[Any], Any], wrt: list[torch.Tensor], prepare: Callable[[], Any]
) -> dict[str, int]:
    """What forward(prepared) and its gradient with respect to the tensors wrt hold while they work, in bytes:
    "forward_bytes" beside its arguments, "backward_bytes" beside what the forward pass left and the gradients of its
    outputs, and "library_bytes" what libraries keep afterwards, which is in neither."""

    def once() -> tuple[int, int]:
        value, ahead = meter.most(partial(forward, prepare()))
        outputs, back = [t for t in tensors(value) if t.requires_grad], 0
        if outputs and wrt:
            cotangents = [torch.ones_like(t) for t in outputs]
            _, back = meter.most(partial(torch.autograd.grad, outputs, wrt, cotangents, allow_unused=True))
        return ahead, back

    meter.forget()
    before = meter.held()
    if meter.device.type == "cuda":
        once()
    library = meter.held() - before
    ahead, back = once()
    return {"forward_bytes": ahead, "backward_bytes": back, "library_bytes": max(library, 0)}
