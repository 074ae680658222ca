"""Batches that processes of their own fetch before they are asked for."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import sys
import tempfile
import warnings
from multiprocessing import connection
from typing import Any, Callable, Iterator, List, Tuple

import torch
from torch.utils.data import DataLoader

from spillway_runner.answers import fields_of
from spillway_runner.arena import STRETCH, TYPE_NAMES, Arena, Place, Slot
from spillway_runner.forks import die_with
from spillway_runner.forms import flatten, restore
from spillway_runner.patience import TooLong, bounded, heeding
from spillway_runner.process import owned
from spillway_runner.refusal import Refusal

AHEAD = 2  # batches that each process has ready or in the making
# Beside them is the one in use: whoever asks for a batch needs the one before no more.
SLOTS = AHEAD + 1
GRACE = 30.0  # seconds that this process waits longer than the one that fetches, which knows what hangs

Task = Tuple[int, int, int]  # a step and the span of its samples
Fetch = Callable[[int, int, int], Any]
# Where a batch is: form, number of the slot, its place and size, places of tensors, what the process owns of memory.
Fetched = Tuple[Any, int, int, int, List[Place], int]


class Ahead:
    """Processes that fetch the batches of the steps that follow the one asked for last, each the next step in turn.

    They are those of a DataLoader. What they have of this process is what it holds when they are started; they end with
    it. Tensors come in memory that this process reads without a copy, page-locked for a CUDA device.
    """

    def __init__(self, fetch: Fetch, workers: int, cpus: list[int], pinned: bool, patience: float) -> None:
        """patience is how many seconds the fetching of one batch may take; cpus are the cores of the processes, none
        for those of this one."""
        self.patience, self.steps, self.next = patience, Steps(), (-1, 0, 0)
        self.taken: tuple[Task, Any] | None = None  # the last batch
        files = [anonymous() for _ in range(workers)]
        self.arenas = [Arena(0, pinned, file) for file in files]
        self.owned = [0] * workers  # the most bytes that each had to itself
        self.places: dict[tuple[int, int], int] = {}  # by process and slot
        parent = os.getpid()

        def begin(worker: int) -> None:
            die_with(parent)
            if cpus:
                os.sched_setaffinity(0, cpus)

        gc.collect()
        gc.freeze()  # a collection of theirs does not copy the pages that they share with this one
        before = signal.getsignal(signal.SIGCHLD)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of more processes than cores, and of forks beside threads
            self.loader = DataLoader(
                Batches(fetch, files, patience),
                batch_size=None,
                sampler=self.steps,
                num_workers=workers,
                collate_fn=as_it_is,
                worker_init_fn=begin,
                multiprocessing_context="fork",
                generator=torch.Generator(),  # the usual one is the training's
                prefetch_factor=AHEAD,
                persistent_workers=True,
            )
            self.batches: Iterator[tuple[int, Fetched | dict[str, str]]] = iter(self.loader)
        # DataLoader has the end of a process raised wherever this one is; take looks for it.
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)

    def take(self, step: int, begin: int, end: int) -> Any:
        """What fetch(step, begin, end) returns. It lies where a later batch will, until another is taken."""
        task = step, begin, end
        if self.taken is not None and task == self.taken[0]:
            return self.taken[1]
        self.taken = None
        if task != self.next:
            self.steps.first = task
            self.batches = iter(self.loader)  # the same processes; what they had is dropped
        self.next = step + 1, begin, end
        try:
            with bounded(self.patience + GRACE), heeding(signal.SIGCHLD, self.look):
                self.look()
                worker, found = next(self.batches)
        except RuntimeError as error:
            raise self.ended(step, error) from error
        except TooLong as error:
            raise Refusal(
                "data",
                f"the batch of step {step} does not come: {error}",
                hint="look what data() or its Dataset waits for",
            ) from error
        if isinstance(found, dict):
            raise Refusal(**found)
        form, slot, at, count, places, owns = found
        arena = self.arenas[worker]
        self.owned[worker] = max(self.owned[worker], owns)
        earlier = self.places.get((worker, slot), at)
        if earlier != at:  # it has moved to where there is more room
            arena.unmap(earlier)
        self.places[worker, slot] = at

        def tensor(number: int) -> torch.Tensor:
            offset, kind, shape = places[number]
            return arena.tensor(at, count, offset, TYPE_NAMES[kind], shape)

        self.taken = task, restore(form, tensor)
        return self.taken[1]

    def look(self) -> None:
        """Raises RuntimeError where a process has ended. A DataLoader looks every five seconds."""
        if any(code is not None for code in self.codes()):
            raise RuntimeError("a process has ended")

    def codes(self) -> list[int | None]:
        """How each process has ended; None of those that run."""
        return [p.exitcode for p in getattr(self.batches, "_workers", ())]

    def ended(self, step: int, error: RuntimeError) -> Refusal:
        """Tells how a process has ended."""
        codes = self.codes()
        killed = next((-code for code in codes if code is not None and code < 0), 0)
        if killed:
            said = f"was killed ({signal.Signals(killed).name})"
            hint = "it may have had too little memory: use fewer --data-workers, or give the attempt more"
        else:
            said, hint = "has ended", "let nothing in data() or its Dataset end the process"
        return Refusal(
            "memory" if killed == signal.SIGKILL else "data",
            f"a process that fetches the data {said} while the batch of step {step} was waited for",
            hint=hint,
            trace="" if any(codes) else str(error),
        )

    def close(self) -> None:
        """Ends the processes."""
        shutdown = getattr(self.batches, "_shutdown_workers", None)
        if shutdown is not None:
            shutdown()
        for arena in self.arenas:
            os.close(arena.file)


class Steps:
    """The steps whose batches are wanted, from the first one on; none before somebody asks."""

    def __init__(self) -> None:
        self.first: Task | None = None

    def __iter__(self) -> Iterator[Task]:
        if self.first is None:
            return iter(())
        first, begin, end = self.first
        return ((step, begin, end) for step in itertools.count(first))


class Batches:
    """What the processes do, in the form of a Dataset."""

    def __init__(self, fetch: Fetch, files: list[int], patience: float) -> None:
        self.fetch, self.files, self.patience = fetch, files, patience
        self.slots: list[Slot] = []
        self.worker = self.written = self.before = 0

    def __getitem__(self, task: Task) -> tuple[int, Fetched | dict[str, str]]:
        """Of a process, its number and where the batch is, or what is wrong with it."""
        if not self.slots:
            info = torch.utils.data.get_worker_info()
            assert info is not None, "it runs in the processes of a DataLoader"
            self.worker, self.before = info.id, owned()
            arena = Arena(0, False, self.files[info.id])
            self.slots = [Slot(arena, number) for number in range(SLOTS)]
        try:
            with bounded(self.patience):
                batch = self.fetch(*task)
            found: list[torch.Tensor] = []
            form = flatten(batch, found)
            slot = self.slots[self.written % SLOTS]
            self.written += 1
            _, places = slot.write(found)
            return self.worker, (form, slot.number, slot.at, slot.count, places, max(owned() - self.before, 0))
        except Exception as error:
            return self.worker, fields_of(error)


def nameless() -> None:
    """Has the processes of a DataLoader hand tensors on at addresses that are no files: those would be left behind when
    they are killed. Who has not their key is not listened to, as before."""
    usual = vars(connection)["arbitrary_address"]
    if sys.platform == "linux" and usual.__module__ != __name__:
        numbers = itertools.count()

        def address(family: str) -> Any:
            return f"\0spillway-{os.getpid()}-{next(numbers)}" if family == "AF_UNIX" else usual(family)

        vars(connection)["arbitrary_address"] = address


def as_it_is(batch: Any) -> Any:
    return batch


def anonymous() -> int:
    """The descriptor of a file that has no name, in memory where the system can; what nobody wrote takes no room."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("spillway-batches")
    else:
        with tempfile.TemporaryFile() as file:
            number = os.dup(file.fileno())
    os.ftruncate(number, STRETCH)
    return number
