"""Whether modules are trained or evaluated."""

from __future__ import annotations

from typing import Any

from torch import nn

from spillway_runner.model import Model


class Modes:
    """The modes of a model's modules when it is trained and when it is evaluated, as the model's own train() sets
    them."""

    def __init__(self, model: Model) -> None:
        self.roots = [model.whole] if model.module is model.whole else [model.whole, model.module]
        self.training = self.now()
        self.evaluation: dict[nn.Module, bool] = {}

    def now(self) -> dict[nn.Module, bool]:
        return {module: module.training for root in self.roots for module in root.modules()}

    def __enter__(self) -> Modes:
        for root in self.roots:
            root.eval()
        self.evaluation = self.now()
        return self

    def __exit__(self, *_: Any) -> None:
        for root in self.roots:
            root.train()
        put(self.training)


def put(modes: dict[nn.Module, bool]) -> None:
    for module, mode in modes.items():
        module.training = mode
