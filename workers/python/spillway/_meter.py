"""How fast a training goes, and when it is told."""

from __future__ import annotations

import time
from collections import abc, deque
from typing import Any, Callable, Iterable, Mapping

import spillway

# Spillway looks once a second; what is told more often is seen by nobody, and metrics that are replaced at once, too.
EVERY = 1.0
# Rates are those of the last seconds: of fewer they jump, of more they hide that it has become slower.
WINDOW = 20.0


class Meter:
    """Counts what a training has done, and tells how far it is and how fast it goes."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._marks: deque[tuple[float, int, int]] = deque()
        self._told = -EVERY
        self._last = -1
        self.samples = 0
        self.tokens = 0

    def begin(self) -> None:
        """Starts the clock: what comes before is not counted."""
        self.samples = self.tokens = 0
        self._marks.clear()
        self._marks.append((self._now(), 0, 0))

    def rates(self) -> dict[str, float]:
        """Samples and tokens per second over the last seconds; none of what was not counted."""
        now = self._now()
        self._marks.append((now, self.samples, self.tokens))
        while len(self._marks) > 2 and self._marks[1][0] <= now - WINDOW:
            self._marks.popleft()
        began, samples, tokens = self._marks[0]
        if now <= began:
            return {}
        counted = {"samples_per_second": self.samples - samples, "tokens_per_second": self.tokens - tokens}
        return {name: count / (now - began) for name, count in counted.items() if count > 0}

    def due(self) -> bool:
        """Says whether it was told long enough ago that there is something new to tell."""
        return self._now() - self._told >= EVERY

    def tell(self, done: int, total: int | None, metrics: Mapping[str, float]) -> None:
        """Tells how far the training is. A total that cannot be is left out."""
        self._told = self._now()
        self._last = done
        if total is not None and (total < 1 or total < done):
            total = None
        spillway.progress(done, total, {**metrics, **self.rates()})

    @property
    def last(self) -> int:
        """The step that was told last; -1 before."""
        return self._last


def size(batch: Any) -> tuple[int, int]:
    """How many samples a batch has, and how many tokens where it says which: its first array counts, whose first
    dimension is that of the samples."""
    ids: Any = batch.get("input_ids") if isinstance(batch, abc.Mapping) else None
    tokens = int(ids.numel()) if hasattr(ids, "numel") else 0
    for value in _arrays(batch):
        return int(value.shape[0]), tokens
    return 0, tokens


def _arrays(batch: Any) -> Iterable[Any]:
    shape = getattr(batch, "shape", None)
    if isinstance(shape, tuple):
        if len(shape) > 0:
            yield batch
    elif isinstance(batch, abc.Mapping):
        for value in batch.values():
            yield from _arrays(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from _arrays(value)


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those of the values that are numbers."""
    found = {}
    for name, value in values.items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            continue
    return found
