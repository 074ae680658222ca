"""Finds the first tensor of a pass that is infinite or not a number. It looks at everything, so it is for a pass that
is known to have one."""

from __future__ import annotations

import math
import sys
from types import FrameType
from typing import Any, Callable, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from spillway_runner.refusal import Refusal
from spillway_runner.source import users
from spillway_runner.values import tensors

# Functions whose result has whatever numbers the memory had.
UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_")


class Odd(NamedTuple):
    """How many values of a tensor are not finite; false where all are."""

    nan: int
    inf: int  # of a complex tensor, whatever their signs
    negative: int  # -inf
    values: int

    def __bool__(self) -> bool:
        return self.nan + self.inf + self.negative > 0

    def __str__(self) -> str:
        counts = ((self.nan, "nan"), (self.inf, "inf"), (self.negative, "-inf"))
        return f"{' and '.join(f'{count} {name}' for count, name in counts if count)} of {self.values} values"


NOTHING_ODD = Odd(0, 0, 0, 0)


def odd(value: Any) -> Odd:
    """What of a value is not finite; nothing of what is no tensor of floating or complex numbers."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return NOTHING_ODD
    t = value.detach()
    if t.layout != torch.strided:
        t = t.coalesce().values() if t.layout == torch.sparse_coo else t.values()
    if t.element_size() == 1:  # torch compares no numbers of eight bits
        t = t.float()
    if t.is_complex():
        return Odd(int(t.isnan().sum()), int(t.isinf().sum()), 0, t.numel())
    negative = int(torch.isneginf(t).sum())
    return Odd(int(t.isnan().sum()), int(t.isinf().sum()) - negative, negative, t.numel())


def masks(value: Any) -> bool:
    """Whether -inf is in a value: it stands for what attention is not to see."""
    if isinstance(value, float):
        return value == -math.inf
    if isinstance(value, dict):
        return any(map(masks, value.values()))
    if isinstance(value, (tuple, list)):
        return any(map(masks, value))
    return odd(value).negative > 0


class Watch(TorchFunctionMode):
    """Within it, what every function of torch gives is looked at, and then what its backward pass gives.

    found tells the first thing that is not finite. -inf counts only where none went in: masks of attention are made of
    it.
    """

    def __init__(self, where: Callable[[], tuple[str, str]], when: str) -> None:
        """where() is the operation that is computed and its place in the user's file, when is for people."""
        super().__init__()
        self.where, self.when = where, when
        self.found: Refusal | None = None
        self.known: set[Any] = set()  # nodes of autograd; a node's object is another one once nobody holds it

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        masked = self.found is None and (masks(args) or masks(kwargs))
        value = function(*args, **kwargs)
        name = getattr(function, "__name__", str(function))
        if self.found is None and name not in UNFILLED:
            self.look(name, value, masked)
        return value

    def look(self, name: str, value: Any, masked: bool) -> None:
        operation, at = self.where()
        for t in tensors(value):
            strange = odd(t)
            if strange.nan or strange.inf or strange.negative and not masked:
                self.tell(f"operation {operation}: {name} gives {strange}", "forward", at)
                return
            self.follow(t.grad_fn, f"operation {operation}: the gradient of {name}", at)

    def follow(self, last: Any, what: str, at: str) -> None:
        """Has the nodes looked at that a function added to the graph of autograd."""
        waiting = [last]
        while waiting:
            node = waiting.pop()
            # AccumulateGrad gives nothing: it adds what it gets to a parameter.
            if node is None or node in self.known or type(node).__name__ == "AccumulateGrad":
                continue
            self.known.add(node)
            node.register_hook(self.watcher(what, at))
            waiting += [earlier for earlier, _ in node.next_functions]

    def watcher(self, what: str, at: str) -> Callable[[Any, Any], None]:
        def look(gives: Any, got: Any) -> None:
            if self.found is None and not any(map(odd, tensors(got))):
                strange = next(filter(None, map(odd, tensors(gives))), None)
                if strange is not None:
                    self.tell(f"{what} has {strange}", "backward", at)

        return look

    def tell(self, what: str, which: str, at: str) -> None:
        self.found = not_finite(
            f"{what}, the first in the {which} pass of {self.when}",
            at,
            "look at what goes into it: a 0 that is divided by, a root or logarithm of it, or numbers that grow",
        )


def user_line(path: str) -> str:
    """The line of the user's file of this path that is being run, else of a library's that the file uses, else
    nothing."""
    frame: FrameType | None = sys._getframe(1)
    found = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name == path:
            return f"{name}:{frame.f_lineno}"
        if not found and users(name):
            found = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return found


def not_finite(what: str, at: str = "", hint: str = "") -> Refusal:
    return Refusal("not_finite", what, at, hint)


def not_finite_before(what: str, at: str = "") -> Refusal:
    """A number that an earlier step left."""
    return Refusal("not_finite_before", what, at)
