"""Measures what it costs that ranks exchange tensors, as replicas do in every step."""

from __future__ import annotations

import statistics
import time
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spillway_runner.devices import prepare, wait
from spillway_runner.meeting import meet
from spillway_runner.process import highest, reset_highest, resident, trim, warm_up
from spillway_runner.ranks import ReduceScatter, own_buffers

SMALL, LARGE = 4 << 10, 4 << 20  # bytes of tensors: one that is all message, and one that is all bytes
ROUNDS = 7  # of each; the median counts
WIDE = 64  # of the model that takes no time
ROWS = 192  # of the matrices that are multiplied beside an exchange


def exchange(request: dict[str, Any], store: dist.Store | None) -> dict[str, Any]:
    """Meets the other ranks and measures how long they exchange tensors for, in seconds as a line of bytes: [fixed,
    each]. All ranks do so at once."""
    rank, world = request["rank"], len(request["devices"])
    if request["threads"][rank]:
        torch.set_num_threads(request["threads"][rank])
    device = prepare(request["devices"][rank], 0)
    if device.type == "cpu":
        warm_up()
    trim()
    base = resident()
    held = meet(request, store, rank, world)
    model = nn.Linear(WIDE, WIDE).to(device)
    together = DistributedDataParallel(model, **own_buffers())
    given = torch.rand(1, WIDE, device=device)

    def passes(of: nn.Module) -> None:
        of(given).sum().backward()
        model.zero_grad(set_to_none=True)

    alone, beside = measured(device, lambda: passes(model)), measured(device, lambda: passes(together))
    trim()
    found: dict[str, Any] = {"process": max(resident() - base, 0)}
    tensors = [torch.rand(size // 4, device=device) for size in (SMALL, LARGE)]
    found["scratch"] = scratch(tensors[1], lambda t: dist.all_reduce(t))
    found["all_reduce"] = line(device, tensors, lambda t: dist.all_reduce(t))
    found["step"] = max(beside - alone, 0.0) + found["all_reduce"][0]  # DDP's own, and the sum of the losses
    found["hidden"] = hidden(device, tensors[1])
    found["gather"], found["scatter"] = divided(device, tensors, world)
    peer = rank ^ 1
    found["send"] = line(device, tensors, lambda t: pass_on(t, rank, peer)) if peer < world else [0.0, 0.0]
    dist.barrier()
    del held
    return found


def measured(device: torch.device, call: Callable[[], Any]) -> float:
    """The median of the seconds that a call takes that all ranks begin at once."""
    times = []
    for n in range(ROUNDS + 1):
        dist.barrier()
        wait(device)
        began = time.perf_counter()
        call()
        wait(device)
        if n > 0:  # the first one allocates
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def line(device: torch.device, tensors: list[torch.Tensor], call: Callable[[torch.Tensor], Any]) -> list[float]:
    """What a call takes: the seconds of any, and those of each byte."""
    small, large = (measured(device, lambda t=t: call(t)) for t in tensors)
    each = max(large - small, 0.0) / (LARGE - SMALL)
    return [max(small - each * SMALL, 0.0), each]


def scratch(tensor: torch.Tensor, call: Callable[[torch.Tensor], Any]) -> float:
    """How many bytes of memory a call takes at most for each byte of its tensor; 0 where that is not known."""
    before = resident()
    if not reset_highest():
        return 0.0
    call(tensor)
    return max(highest() - before, 0) / LARGE


def hidden(device: torch.device, tensor: torch.Tensor) -> float:
    """The part of an exchange that passes beside products of matrices, from 0 to 1: it takes their cores where there
    are no others."""
    one = torch.rand(ROWS, ROWS, device=device)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(one, one)

    exchanging = measured(device, lambda: dist.all_reduce(tensor))
    count = max(1, round(4 * exchanging / max(measured(device, lambda: products(4)), 1e-9)))
    computing = measured(device, lambda: products(count))

    def both() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        products(count)
        work.wait()

    most = min(exchanging, computing)
    return min(max((exchanging + computing - measured(device, both)) / most, 0.0), 1.0) if most > 0 else 0.0


def divided(device: torch.device, tensors: list[torch.Tensor], world: int) -> tuple[list[float], list[float]]:
    """What it takes to gather tensors of which each rank has a piece, and to sum them into such pieces, by the bytes of
    the whole tensor."""
    pieces = {len(t): torch.empty(len(t) // world, device=device) for t in tensors}
    own = ReduceScatter() if dist.get_backend() == "gloo" else None

    def gather(t: torch.Tensor) -> None:
        dist.all_gather_into_tensor(t[: len(pieces[len(t)]) * world], pieces[len(t)])

    def scatter(t: torch.Tensor) -> None:
        piece, whole = pieces[len(t)], t[: len(pieces[len(t)]) * world]
        if own is None:
            dist.reduce_scatter_tensor(piece, whole)
        else:
            own(piece, whole, dist.group.WORLD, dist.ReduceOp.SUM, False)

    return line(device, tensors, gather), line(device, tensors, scatter)


def pass_on(tensor: torch.Tensor, rank: int, peer: int) -> None:
    """Sends a tensor from the first of two ranks to the second."""
    if rank < peer:
        dist.send(tensor, peer)
    else:
        dist.recv(tensor, peer)
