"""Measures what it costs that ranks exchange tensors, as replicas do in every step."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spillway_runner.devices import prepare, wait
from spillway_runner.meeting import meet
from spillway_runner.process import highest, reset_highest, resident, trim, warm_up
from spillway_runner.ranks import ReduceScatter, own_buffers

SMALL, LARGE = 16 << 10, 4 << 20  # bytes of tensors: one that is all message, and one that is all bytes
ROUNDS = 9  # of each; the median counts
WARM = 4  # passes after which replicas hold what they will
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
    met = resident() - base
    tensors = [torch.rand(size // 4, device=device) for size in (SMALL, LARGE)]
    found: dict[str, Any] = {"scratch": scratch(tensors[1], lambda t: dist.all_reduce(t))}
    (small, _), (large, process) = (gradients(device, size) for size in (SMALL, LARGE))
    found["all_reduce"] = through(small, large)
    found["process"] = max(int(process - (1 + found["scratch"]) * LARGE), 0) + max(met, 0)  # one bucket is no process
    found["step"] = measured(device, lambda: dist.all_reduce(tensors[0][:2]))  # of the losses
    found["hidden"] = hidden(device, tensors[1])
    found["gather"], found["scatter"] = divided(device, tensors, world)
    peer = rank ^ 1
    found["send"] = line(device, tensors, lambda t: pass_on(t, rank, peer)) if peer < world else [0.0, 0.0]
    dist.barrier()
    del held
    return found


def gradients(device: torch.device, size: int) -> tuple[float, int]:
    """How much longer replicas take for a step whose parameters are of so many bytes than one process does, and how
    many bytes they hold more."""
    rows = int((size // 4) ** 0.5)
    given = torch.rand(1, rows, device=device)

    def passes(of: nn.Module) -> None:
        of(given).sum().backward()
        of.zero_grad(set_to_none=True)

    def held(of: nn.Module) -> int:
        trim()
        before, counts = resident(), reset_highest()
        for _ in range(WARM):
            passes(of)
        return highest() - before if counts else 0

    alone, model = (nn.Linear(rows, rows, bias=False).to(device) for _ in range(2))
    least = held(alone)
    together = DistributedDataParallel(model, **own_buffers())
    more = held(together) - least
    longer = [two - one for one, two in in_turn(device, lambda: passes(alone), lambda: passes(together))]
    return max(statistics.median(longer), 0.0), more


def in_turn(device: torch.device, *calls: Callable[[], Any]) -> list[list[float]]:
    """The seconds that each of some calls takes, which all ranks begin at once, in turn: other programs disturb all of
    them alike."""
    rounds = []
    for _ in range(ROUNDS):
        times = []
        for call in calls:
            dist.barrier()
            wait(device)
            began = time.perf_counter()
            call()
            wait(device)
            times.append(time.perf_counter() - began)
        rounds.append(times)
    return rounds


def measured(device: torch.device, call: Callable[[], Any]) -> float:
    """The median of the seconds that a call takes that all ranks begin at once."""
    call()  # it allocates
    return statistics.median(times[0] for times in in_turn(device, call))


def line(device: torch.device, tensors: list[torch.Tensor], call: Callable[[torch.Tensor], Any]) -> list[float]:
    """What a call takes: the seconds of any, and those of each byte."""
    small, large = (measured(device, partial(call, t)) for t in tensors)
    return through(small, large)


def through(small: float, large: float) -> list[float]:
    """The line through what two tensors take."""
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

    def both() -> None:
        work = dist.all_reduce(tensor, async_op=True)
        products(count)
        work.wait()

    rounds = in_turn(device, lambda: dist.all_reduce(tensor), lambda: products(count), both)
    shares = [(one + other - two) / max(min(one, other), 1e-9) for one, other, two in rounds]
    return min(max(statistics.median(shares), 0.0), 1.0)


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
