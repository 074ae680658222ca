"""A bound on how long data may take."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import Callable, Iterator


class TooLong(BaseException):
    """Something has taken too long. It is none of the errors that code is ready for, which would go on."""


BOUNDS: list[float] = []  # seconds of the bound that is counted now


@contextlib.contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raises TooLong where the process is then, if what is within takes longer: in Python, or in a call of the system.

    0 is no bound. It works in the main thread, and does nothing in others.
    """

    def late() -> None:
        raise TooLong(f"it takes more than {seconds:g} s (--data-timeout)")

    if not seconds:
        yield
        return
    with heeding(signal.SIGALRM, late) as heard:
        try:
            if heard:
                BOUNDS.append(seconds)
                signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
        finally:
            if heard:
                signal.setitimer(signal.ITIMER_REAL, 0)
                BOUNDS.clear()


def renew() -> None:
    """Counts the time of a bound anew: what is within has come on."""
    if BOUNDS:
        signal.setitimer(signal.ITIMER_REAL, BOUNDS[-1])


@contextlib.contextmanager
def heeding(number: signal.Signals, call: Callable[[], None]) -> Iterator[bool]:
    """Calls call at a signal; not outside the main thread. Whether it does."""
    if threading.current_thread() is not threading.main_thread():
        yield False
        return
    before = signal.signal(number, lambda *_: call())
    try:
        yield True
    finally:
        signal.signal(number, before or signal.SIG_DFL)
