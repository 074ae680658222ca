"""When the user's scheduler is stepped: after each step, after each epoch, or by what validation data say."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, List, Tuple

import torch
from torch import nn

from spillway_runner.refusal import Refusal
from spillway_runner.source import Source

Plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
STEPPED = "spillway_steps"  # in the state of a scheduler: how many steps of the training it has seen
INTERVALS = ("step", "epoch")

Named = List[Tuple[str, nn.Parameter]]  # parameters with their names


@dataclass(frozen=True)
class Course:
    """How long a training is; 0 is not known."""

    steps: int = 0
    steps_per_epoch: int = 0
    validates: bool = False  # there are validation data


UNKNOWN = Course()


class Schedule:
    """A scheduler that is told of each step of the training."""

    def __init__(self, made: Any, course: Course, source: Source) -> None:
        """made is a scheduler of torch, or {"scheduler": one, "interval": "step" or "epoch", "monitor": NAME}."""
        self.source, self.interval, self.monitor, self.seen = source, "step", "validation_loss", 0
        self.per_epoch = course.steps_per_epoch
        if isinstance(made, Mapping):
            self.monitor = made.get("monitor", self.monitor)
            self.interval = made.get("interval", self.interval)
            strange = sorted(made.keys() - {"scheduler", "interval", "monitor"}, key=str)
            if strange or "scheduler" not in made or self.interval not in INTERVALS:
                raise Refusal(
                    "scheduler",
                    f"scheduler() returns a dict of {', '.join(map(repr, made))} with the interval {self.interval!r}",
                    source.path,
                    'return a scheduler, or {"scheduler": one, "interval": "step" or "epoch"}; of a ReduceLROnPlateau '
                    '"monitor" names a metric',
                )
            made = made["scheduler"]
        for method in ("step", "state_dict", "load_state_dict"):
            if not callable(getattr(made, method, None)):
                raise Refusal(
                    "scheduler",
                    f"scheduler() returns {type(made).__name__}, which has no {method}()",
                    source.path,
                    "return a scheduler of torch.optim.lr_scheduler",
                )
        self.made = made
        if isinstance(made, Plateau) and not course.validates:
            raise Refusal(
                "scheduler",
                "ReduceLROnPlateau goes by validation data, and there are none",
                source.path,
                "define validation(), or return a scheduler that goes by the number of steps",
            )
        if self.interval == "epoch" and not isinstance(made, Plateau) and not self.per_epoch:
            raise Refusal(
                "scheduler",
                "the scheduler goes by epochs, and the data do not say how many batches one has",
                source.path,
                "return a Dataset from data(), or a scheduler that goes by the number of steps",
            )

    def step(self, made: bool = True) -> None:
        """Says that a step of the training is done, which the optimizer has made or has passed over."""
        self.seen += 1
        if isinstance(self.made, Plateau):
            return
        if made if self.interval == "step" else self.seen % self.per_epoch == 0:
            self.made.step()

    def judge(self, numbers: dict[str, float]) -> None:
        """Says what validation data showed."""
        if not isinstance(self.made, Plateau):
            return
        if self.monitor not in numbers:
            raise Refusal(
                "scheduler",
                f"ReduceLROnPlateau goes by {self.monitor!r}, and there is {', '.join(sorted(numbers))}",
                self.source.path,
                "name one of them as its monitor",
            )
        self.made.step(numbers[self.monitor])


def rebased(scheduler: Any) -> None:
    """Has a scheduler begin with the rates that its own optimizer's groups began with, which may not be those of the
    part whose state it was given."""
    for inner in getattr(scheduler, "_schedulers", ()):
        rebased(inner)
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
    rates = getattr(scheduler, "base_lrs", None)
    if rates is not None and len(rates) == len(groups):
        scheduler.base_lrs = [g.get("initial_lr", rate) for g, rate in zip(groups, rates)]


class Held:
    """The parameters of a part, for an optimizer(model)."""

    def __init__(self, named: Named) -> None:
        self.named = named

    def named_parameters(self) -> Named:
        return list(self.named)

    def parameters(self) -> list[nn.Parameter]:
        return [p for _, p in self.named]


def given(function: Callable[..., Any], named: Named) -> Any:
    """What optimizer() takes, by the name of its argument: parameters, (name, parameter) each, or a model that has
    them."""
    arguments = list(arguments_of(function))
    first = arguments[0] if arguments else ""
    if first == "named_parameters":
        return list(named)
    return Held(named) if first == "model" else [p for _, p in named]


def arguments_of(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):  # without a signature
        return []
