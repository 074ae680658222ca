"""The types in which a model computes: its parameters stay as they are, products are made in another type."""

from __future__ import annotations

import contextlib
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any, ContextManager

import torch

from spillway_runner.refusal import Refusal
from spillway_runner.source import described

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
PRODUCT = 256  # rows and columns of the products that are timed
PRODUCTS = 5


def set_precision(name: str, device: torch.device) -> None:
    """Has this process compute in a precision, or refuses it.

    tf32 has products of float32 computed with a mantissa of 10 bits, by units that GPUs have from Ampere on.
    """
    if name == "tf32":
        if hasattr(torch, "set_float32_matmul_precision"):
            torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
    if name in HALVES and device.type == "cpu":
        try:
            one = torch.ones(8, 8, dtype=HALVES[name])
            with cast(name, device):
                made = (one @ one).dtype
        except (RuntimeError, ValueError) as error:
            made = described(error).splitlines()[0]
        if made != HALVES[name]:
            raise Refusal(
                "precision",
                f"torch {torch.__version__} does not compute in {name} on CPUs: {made}",
                hint="choose float32 or bfloat16, or a newer torch",
            )


def cast(name: str, device: torch.device) -> ContextManager[Any]:
    """Within it, products are computed in a precision."""
    if name not in HALVES:
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=HALVES[name])


def slowdown(name: str, device: torch.device) -> float:
    """How many times as long as in float32 a product of matrices takes on a CPU, which may have to imitate a type; 0 is
    not measured."""
    if name not in HALVES or device.type != "cpu":
        return 0.0
    return timed(HALVES[name]) / max(timed(torch.float32), 1e-9)


def timed(dtype: torch.dtype) -> float:
    """Seconds of a product."""
    one = torch.ones(PRODUCT, PRODUCT, dtype=dtype)
    seconds = []
    for _ in range(1 + PRODUCTS):  # the first one allocates
        began = time.perf_counter()
        one @ one
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:])


@dataclass
class Scaler:
    """By what the loss is multiplied, so that gradients in float16 do not vanish: as torch.amp.GradScaler does it.

    A step whose gradients are not finite, in any part, is not made in any, and halves the scale; after 2000 steps
    without one it is doubled.
    """

    scale: float = 65536.0
    good: int = 0  # steps since it changed

    GROWTH, BACKOFF, INTERVAL = 2.0, 0.5, 2000

    def overflowed(self) -> None:
        self.scale, self.good = self.scale * self.BACKOFF, 0

    def stepped(self) -> None:
        self.good += 1
        if self.good == self.INTERVAL:
            self.scale, self.good = self.scale * self.GROWTH, 0

    def state(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def load(self, state: dict[str, Any]) -> None:
        self.scale, self.good = float(state["scale"]), int(state["good"])
