"""Trains a part of a model."""

from __future__ import annotations

import json
import math
import os
from typing import Any, Callable

import torch

from spillway_runner.arena import TYPE_NAMES, Place
from spillway_runner.files import FORMAT, Files, replace, save
from spillway_runner.forms import flatten
from spillway_runner.passes import Passes
from spillway_runner.refusal import Refusal
from spillway_runner.values import each, shape, shapes


class Part(Passes):
    """A part that is trained: its steps, and what outlives its process."""

    # A step.

    def batch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fetches a batch and returns what other parts read of each micro-batch."""
        assert self.data is not None, "the engine asks the first part alone"
        inputs, target = self.data.batch(request["step"], 0, self.batch_samples)
        inputs = self.binder.bind(inputs, "cpu")
        self.check_shapes(inputs, request["step"])
        tokens = tokens_of(inputs)
        inputs = self.binder.placeholders(inputs)
        spans = [self.span(m) for m in range(self.micro_batches)]

        def rows(begin: int, end: int) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda t: t[begin:end] if t.dim() and t.shape[0] == self.batch_samples else t

        self.micro = {}
        for m, span in enumerate(spans):
            own = each({"inputs": inputs, "target": target if self.last else None}, rows(*span))
            self.micro[m] = each(own, lambda t: t.to(self.device, non_blocking=True))
        samples = [end - begin for begin, end in spans]
        if self.last:
            return {"micro_batches": [None] * len(spans), "samples": samples, "tokens": tokens}
        found: list[torch.Tensor] = []
        forms = {name: flatten(inputs[name], found) for name in sorted(self.shared_inputs)}
        target = flatten(target, found)
        _, places = self.batch_slot.write(found)
        messages = []
        for begin, end in spans:
            cut = [self.rows_of(place, begin, end) for place in places]
            messages.append(
                {
                    "at": self.batch_slot.at,
                    "bytes": self.batch_slot.count,
                    "inputs": forms,
                    "target": target,
                    "tensors": cut,
                }
            )
        return {"micro_batches": messages, "samples": samples, "tokens": tokens}

    def check_shapes(self, inputs: dict[str, Any], step: int) -> None:
        """Refuses a batch of other shapes than the graph was made for."""
        if self.shapes is None:
            return
        for name, value in inputs.items():
            found = each(value, lambda t: t.shape[1:])
            if found != self.shapes.get(name):
                raise Refusal(
                    "inputs",
                    f"{name} of step {step} is {shapes(value)}, and the model was traced with samples of "
                    f"{self.shapes.get(name)}: its graph belongs to them",
                    self.source.path,
                    "pad all batches to one length in data(), or define blocks(model), which take any length",
                )

    def rows_of(self, place: Place, begin: int, end: int) -> Place:
        """Where the rows of a micro-batch are in a tensor that was written."""
        offset, kind, shape = place
        if not shape or shape[0] != self.batch_samples:
            return place
        row = math.prod(shape[1:]) * torch.empty(0, dtype=TYPE_NAMES[kind]).element_size()
        return [offset + begin * row, kind, [end - begin] + shape[1:]]

    def gradient_squares(self) -> float:
        """The sum of the squares of the gradients, in double precision and in the order of the parameters."""
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float64) for _, p in self.trained if p.grad is not None]
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return math.fsum((n / scale) ** 2 for n in torch.stack(norms).tolist()) if norms else 0.0

    def step(self, scale: float) -> float:
        if self.flights:
            raise Refusal(
                "order", f"part {self.index}: a step with {len(self.flights)} micro-batches between their passes"
            )
        made = scale > 0  # else gradients overflowed, here or in another part
        if self.scaler is not None:
            scale /= self.scaler.scale
            self.scaler.stepped() if made else self.scaler.overflowed()
        if made and scale != 1:
            for _, p in self.trained:
                if p.grad is not None:
                    p.grad.mul_(scale)
        if made:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step(made)
        self.optimizer.zero_grad(set_to_none=True)
        self.finish()
        loss = sum(torch.stack(self.losses).double().tolist()) if self.losses else 0.0
        self.losses = []
        return loss

    # What outlives the process.

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """A copy of what was learnt, and what describes it."""
        found, metadata = self.learnt()
        return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in found.items()}, metadata

    def learnt(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """What was learnt, by its name in a file, and what describes it."""
        found = {"parameter/" + n: t for n, t in self.parameters.items() if n not in self.copies}
        found.update(("buffer/" + n, t) for n, t in self.buffers.items() if n not in self.copies)
        found.update(self.recipe.optimizer_state(self.optimizer, self.trained))
        metadata = {
            "format": FORMAT,
            "model": self.digest,
            "groups": json.dumps(self.recipe.optimizer_groups(self.optimizer, self.trained)),
            "scheduler": json.dumps(self.recipe.scheduler_state(self.scheduler)),
        }
        if self.scaler is not None:
            metadata["scaler"] = json.dumps(self.scaler.state())
        return found, metadata

    def like(self, _: torch.Tensor, loaded: torch.Tensor) -> torch.Tensor:
        """What was loaded, as the tensor is kept that it is to replace."""
        return loaded

    def load(self, paths: list[str]) -> None:
        """Replaces parameters, buffers and the optimizer's state by those in files of any split."""
        found = Files(paths, self.digest)
        mine = dict(self.trained)
        state = {
            key: self.like(mine[key.split("/", 2)[2]], found.read(key))
            for key in found.where
            if key.startswith("optimizer/") and key.split("/", 2)[2] in mine
        }
        pairs = []  # all is read before anything is replaced
        for prefix, own in (("parameter/", self.parameters), ("buffer/", self.buffers)):
            for name, tensor in own.items():
                loaded = found.read(prefix + name)
                if loaded.shape != tensor.shape or loaded.dtype != tensor.dtype:
                    raise Refusal(
                        "state",
                        f"{name} is {shape(loaded)} of {loaded.dtype} in the file, and {shape(tensor)} of "
                        f"{tensor.dtype} in the model",
                        found.where[prefix + name][0],
                        "use the files of this model",
                    )
                pairs.append((tensor, loaded))
        for tensor, loaded in pairs:
            tensor.data.copy_(self.like(tensor, loaded))
        self.recipe.load_optimizer_state(self.optimizer, self.trained, state)
        groups = [json.loads(m.get("groups", "[]")) for m in found.metadata]
        self.recipe.load_optimizer_groups(self.optimizer, self.trained, [g for of_part in groups for g in of_part])
        # A scheduler keeps the rates that its groups began with: of a part without parameters these are another one's.
        of_mine = [any(name in mine for g in of_part for name in g["parameters"]) for of_part in groups]
        schedulers = [(own, m["scheduler"]) for own, m in zip(of_mine, found.metadata) if "scheduler" in m]
        if schedulers:
            _, said = max(schedulers, key=lambda s: s[0])
            self.recipe.load_scheduler_state(self.scheduler, json.loads(said))
        scalers = [json.loads(m["scaler"]) for m in found.metadata if "scaler" in m]
        if scalers and self.scaler is not None:
            self.scaler.load(scalers[0])
        self.slots += [f.slot for f in self.flights.values() if f.slot is not None]
        self.flights, self.losses = {}, []
        self.optimizer.zero_grad(set_to_none=True)

    def write(self, paths: list[str], path: str) -> None:
        """Makes the state_dict of the unsplit model, as torch.load reads it, and the same beside it as safetensors, for
        which nobody needs pickle. What is tied is in that under each of its names."""
        found = Files(paths, self.digest)
        made, whole = {}, {}
        for key, name in self.keys:
            if name not in made:
                made[name] = found.read("parameter/" + name if "parameter/" + name in found.where else "buffer/" + name)
            whole[key] = made[name]
        replace(path, lambda file: torch.save(whole, file))
        save(os.path.splitext(path)[0] + ".safetensors", whole, {"format": "pt"})


def tokens_of(inputs: dict[str, Any]) -> int:
    """How many tokens a batch has: the numbers of its input_ids or, without, of its first input, where that has a whole
    number for each place of a sequence; else 0."""
    ids = inputs.get("input_ids", next(iter(inputs.values()), None))
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
        return 0
    return ids.numel()
