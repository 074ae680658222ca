"""The pipe that takes reports: who may write to it, and how a line is written."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from typing import Any

# Launchers tell a process which of them it is: torchrun and accelerate, Lightning, Slurm, Open MPI, MPICH.
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

_speaker = os.getpid()  # who imported this, or has claimed to speak
_claimed = False
_lock = threading.RLock()  # a handler of a signal may report while its thread does
_pipe: int | None = None  # None until it is opened; -1 where there is none, or nobody reads


def claim() -> None:
    """Has this process speak for the attempt, by the word of a library that knows its ranks: it may have been forked,
    or spawned without a variable that says so."""
    global _speaker, _claimed, _lock
    if not _claimed or _speaker != os.getpid():
        _speaker, _claimed, _lock = os.getpid(), True, threading.RLock()


def ready() -> bool:
    """Opens the pipe where this process may report, and says whether it may."""
    global _pipe
    if not _speaks():
        return False
    with _lock:
        if _pipe is None:
            _pipe = _opened()
        return _pipe >= 0


def write(told: dict[str, Any]) -> None:
    """Writes one line. It never fails for what becomes of the line: a training does not end for its reports."""
    global _pipe
    if not ready():
        return
    line = json.dumps(told, allow_nan=False).encode() + b"\n"
    with _lock:
        while line and _pipe is not None and _pipe >= 0:
            try:
                line = line[os.write(_pipe, line) :]
            except OSError:  # nobody reads any more
                _pipe = -1


def _opened() -> int:
    path = os.environ.get("SPILLWAY_REPORT")
    if not path:
        return -1
    try:
        # A named pipe that nobody reads would wait for ever.
        pipe = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as why:
        if why.errno != errno.ENXIO:
            print(f"spillway: open the pipe of reports that $SPILLWAY_REPORT names: {why}", file=sys.stderr)
        return -1
    os.set_blocking(pipe, True)
    return pipe


def _speaks() -> bool:
    if os.getpid() != _speaker:  # it was forked since, and the lock may be held by nobody
        return False
    if _claimed:
        return True
    # Modules are among these before they are imported whole.
    worker = getattr(sys.modules.get("torch.utils.data"), "get_worker_info", None)
    if worker is not None and worker() is not None:
        return False
    for name in RANKS:
        rank = os.environ.get(name)
        if rank and (name != "RANK" or os.environ.get("WORLD_SIZE")):  # alone it may be that of a LoRA, say
            return rank == "0"
    parent = getattr(sys.modules.get("multiprocessing.process"), "parent_process", None)  # all that it starts have one
    return parent is None or parent() is None
