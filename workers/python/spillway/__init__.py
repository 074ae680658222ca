"""Tells Spillway how a program goes on, from any script in Python.

The module is on the path of each attempt that Spillway runs, at the pool, in functions and in containers; nothing is
to be installed. Elsewhere, and in all processes of an attempt but the first of a distributed training, the functions
check what they are given and do nothing else, so that a script runs with Spillway and without it alike:

    import spillway

    state = load(spillway.resume()) if spillway.resume() else new()
    for step in range(state.step, steps):
        loss = train(state)
        spillway.progress(step + 1, steps, {"loss": loss})
        if step % 100 == 99:
            save(state, "state.pt")
            spillway.checkpoint("state.pt")
    spillway.result(loss=loss)

For Trainers of Hugging Face and for Lightning there are callbacks in spillway.huggingface and spillway.lightning.

It speaks the protocol of lines that $SPILLWAY_REPORT stands for, which is the same for all languages.
"""

from __future__ import annotations

import json
import math
import os
from typing import Any, Mapping

from spillway import _line

__all__ = ["active", "checkpoint", "no_retry", "progress", "result", "resume"]


def active() -> bool:
    """Says whether what this process reports is heard: it is an attempt's, and the one that speaks for it.

    Who speaks is the process whose rank is 0 where a launcher such as torchrun has set ranks, and else the one that was
    started, with what it starts itself. Workers of data loaders, and other processes that were forked, do not.
    """
    return _line.ready()


def progress(done: int, total: int | None = None, metrics: Mapping[str, Any] | None = None) -> None:
    """Says how much is done: steps, rows or bytes, whichever the program counts in.

    done is a whole number from 0 on that does not fall, but where an attempt goes on from a checkpoint. total is how
    many there are, by which the end of the attempt is predicted; None where that is not known. metrics are numbers
    about this step, by name, and anything that float() takes: the loss is followed, and one that is NaN or infinite is
    told as diverged. Those whose names end in _per_second, such as samples_per_second, are shown as rates.
    """
    told: dict[str, Any] = {"progress": _count("done", done, 0)}
    if total is not None:
        told["of"] = _count("total", total, 1)
    if metrics:
        told["metrics"] = {str(name): _number(f"metrics[{name!r}]", value) for name, value in metrics.items()}
    _line.write(told)


def result(**values: Any) -> None:
    """Says values of the result, which `spillway run` prints and later stages of a chain use; later ones add to
    earlier ones of other names.

    They are what JSON has, and numbers and arrays of other libraries that have item() or tolist(). A number that is NaN
    or infinite becomes null. All values together have at most 1 MiB.
    """
    told = {name: _finite(json.loads(json.dumps(value, default=_plain))) for name, value in values.items()}
    _line.write({"result": told})


def checkpoint(path: str | os.PathLike[str]) -> None:
    """Says that path, a file or a directory below the working directory, is what to go on from.

    It is stored while the program goes on; write to it no more, other than by renaming another one to its name, and
    delete it only once a newer one was told. The next attempt finds the last one that was stored by resume().
    """
    _line.write({"checkpoint": os.path.abspath(os.fspath(path))})


def resume() -> str | None:
    """Returns the path of the checkpoint to go on from; None where there is none, as in a first attempt.

    It has the name under which it was told. All processes of an attempt are given it, whatever their rank.
    """
    return os.environ.get("SPILLWAY_RESUME") or None


def no_retry() -> None:
    """Says that another attempt would fail as this one does, as with wrong input: then none is made, but after running
    out of memory."""
    _line.write({"retry": False})


def _count(name: str, value: Any, least: int) -> int:
    number = _number(name, value)
    if isinstance(number, str) or number != int(number) or number < least:
        raise ValueError(f"{name} is {value!r}, and not a whole number from {least} on")
    return int(number)


def _number(name: str, value: Any) -> float | str:
    """A number as the protocol has it: those that JSON has not are the text NaN."""
    try:
        number = float(value)
    except OverflowError:
        return "NaN"
    except (TypeError, ValueError, RuntimeError) as why:
        raise TypeError(f"{name} is {value!r:.80}, and not a number") from why
    return number if math.isfinite(number) else "NaN"


def _plain(value: Any) -> Any:
    """What json cannot encode, as what it can."""
    for convert in ("tolist", "item"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    raise TypeError(f"a result has {value!r:.80}, of which JSON has no form")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_finite(one) for one in value]
    return value
