"""A callback for the Trainer of Hugging Face's transformers (4.20 and later):

    import spillway
    from spillway.huggingface import SpillwayCallback

    trainer = Trainer(..., callbacks=[SpillwayCallback()])
    trainer.train(resume_from_checkpoint=spillway.resume())

It tells each second how many steps are done of how many, with samples and tokens per second; what the Trainer logs, as
loss and eval_loss, when it logs it; each checkpoint when it is saved; and the last values of what was logged as the
result, those of an evaluation that comes after the training, too. How often the Trainer logs, evaluates and saves is
its own affair (logging_steps, eval_steps, save_steps).
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback

import spillway
from spillway import _line, _meter

__all__ = ["SpillwayCallback"]

# Logs that have this one are about the training as a whole.
SUMMARY = "train_runtime"
# What the Trainer logs of itself, by the ends of names, is told as steps and rates, and not as metrics.
ITSELF = ("epoch", "num_input_tokens_seen", "_runtime", "_per_second", "_per_sec", "total_flos")
# Metrics that are no result.
SETTINGS = ("learning_rate", "grad_norm")


class SpillwayCallback(TrainerCallback):
    """Tells Spillway how a training goes, and of its checkpoints. Without Spillway, and in processes whose rank is not
    0, it tells nothing. Samples and tokens are those that the model is given while it trains, padding included, times
    the number of processes; of a model that torch.compile has compiled, and before torch 2.0, they are not counted one
    by one, and samples are as many as the arguments say."""

    def __init__(self) -> None:
        self._meter = _meter.Meter()
        self._hook: Any = None
        self._world = 1
        self._ended = False
        self._values: dict[str, float] = {}  # the last ones
        self._fresh: dict[str, float] = {}  # those of the last step

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not state.is_world_process_zero:
            return
        _line.claim()
        self._world = max(1, args.world_size)
        self._ended = False
        self._meter.begin()
        model = more.get("model")
        if model is not None and self._hook is None and not getattr(args, "torch_compile", False):
            try:
                self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)
            except (AttributeError, TypeError):  # torch before 2.0, whose hooks see no named arguments
                self._hook = None
        self._meter.tell(state.global_step, state.max_steps, {})

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if not state.is_world_process_zero:
            return
        if self._hook is None:
            self._meter.samples += args.train_batch_size * args.gradient_accumulation_steps * self._world
        if self._meter.due():
            self._meter.tell(state.global_step, state.max_steps, {})

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if not state.is_world_process_zero or not logs or SUMMARY in logs:
            return
        metrics = {name: value for name, value in _meter.numbers(logs).items() if not name.endswith(ITSELF)}
        self._values.update((name, value) for name, value in metrics.items() if name not in SETTINGS)
        if self._ended:  # an evaluation of what was trained
            spillway.result(**self._values)
            return
        if self._meter.last != state.global_step:
            self._fresh = {}
        self._fresh.update(metrics)
        self._meter.tell(state.global_step, state.max_steps, self._fresh)

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        saved = os.path.join(args.output_dir, f"checkpoint-{state.global_step}")
        if state.is_world_process_zero and os.path.isdir(saved):
            spillway.checkpoint(saved)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if not state.is_world_process_zero:
            return
        self._ended = True
        self._meter.tell(state.global_step, state.max_steps, self._fresh)
        if self._values:
            spillway.result(**self._values)

    def _count(self, model: Any, positional: Any, named: Any) -> None:
        if not model.training:
            return
        samples, tokens = _meter.size(named or positional)
        self._meter.samples += samples * self._world
        self._meter.tokens += tokens * self._world
