"""A callback for the Trainer of Lightning (lightning 2.0 and later, and pytorch_lightning):

    import spillway
    from spillway.lightning import SpillwayCallback

    trainer = Trainer(..., callbacks=[SpillwayCallback()])
    trainer.fit(model, ckpt_path=spillway.resume())

It tells each second how many steps are done of how many, with samples and tokens per second and what the module has
logged; what a validation has logged when it ends; each checkpoint when it is saved; and the last values of what was
logged as the result. What is saved when is for the Trainer's ModelCheckpoint to say.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import torch

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

import spillway
from spillway import _line, _meter

__all__ = ["SpillwayCallback"]


RANDOM = "spillway_random"  # the key in a checkpoint


class SpillwayCallback(Callback):
    """Tells Spillway how a training goes, and of its checkpoints. Without Spillway, and in processes whose rank is not
    0, it tells nothing.

    Samples are those of the first tensor of each batch, times the number of processes; tokens are counted where a batch
    has input_ids. Checkpoints of a training in one process keep the states of the random number generators of Python,
    NumPy and PyTorch, which Lightning leaves out: so one that goes on from the end of an epoch shuffles and drops out
    as if it had not been interrupted.
    """

    def __init__(self) -> None:
        self._meter = _meter.Meter()
        self._total: int | None = None
        self._values: dict[str, float] = {}

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit" or not trainer.is_global_zero or "save_checkpoint" in vars(trainer):
            return
        save = trainer.save_checkpoint

        def saved(filepath: Any, weights_only: Any = None, *rest: Any, **named: Any) -> None:
            save(filepath, weights_only, *rest, **named)
            if not weights_only and os.path.exists(filepath):  # of weights alone a training cannot go on
                spillway.checkpoint(filepath)

        trainer.save_checkpoint = saved

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        vars(trainer).pop("save_checkpoint", None)  # the method itself is found again

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        _line.claim()
        total = trainer.estimated_stepping_batches
        self._total = int(total) if 0 < total < float("inf") else None
        self._meter.begin()
        self._meter.tell(trainer.global_step, self._total, {})

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not trainer.is_global_zero:
            return
        samples, tokens = _meter.size(batch)
        self._meter.samples += samples * trainer.world_size
        self._meter.tokens += tokens * trainer.world_size
        if self._meter.due():
            self._tell(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking and self._meter.last >= 0:
            self._tell(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self._tell(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if not trainer.is_global_zero:
            return
        self._tell(trainer)
        if self._values:
            spillway.result(**self._values)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        if trainer.world_size == 1:
            checkpoint[RANDOM] = _random()

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Comes before the Trainer draws the order of the next epoch."""
        if trainer.world_size == 1 and RANDOM in checkpoint:
            _set_random(checkpoint[RANDOM])

    def _tell(self, trainer: Any) -> None:
        """Tells where it is, and those metrics that are not as they were: the others are of earlier steps."""
        values = _meter.numbers(trainer.callback_metrics)
        again = trainer.global_step == self._meter.last
        metrics = {name: value for name, value in values.items() if again or not _same(value, self._values.get(name))}
        self._values.update(values)
        self._meter.tell(trainer.global_step, self._total, metrics)


def _same(a: float, b: float | None) -> bool:
    return a == b or (b is not None and a != a and b != b)


def _random() -> dict[str, Any]:
    """The states of the generators in forms that torch.load takes without pickle."""
    version, state, gauss = random.getstate()
    found: dict[str, Any] = {"python": [version, list(state), gauss], "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = [kind, [int(key) for key in keys], *rest]
    return found


def _set_random(found: dict[str, Any]) -> None:
    version, state, gauss = found["python"]
    random.setstate((version, tuple(state), gauss))
    torch.set_rng_state(found["torch"].cpu())
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"].cpu())
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in found:
        kind, keys, *rest = found["numpy"]
        numpy.random.set_state((kind, keys, *rest))
