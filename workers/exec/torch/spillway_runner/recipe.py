"""What the user's file says about training: loss, optimizer and scheduler, with defaults for what it does not say.

loss(output, target)   the mean over the samples; or loss(output)
optimizer(parameters)  a torch.optim.Optimizer; an argument named named_parameters gets (name, parameter) each, and one
                       named model what has named_parameters() and parameters()
scheduler(optimizer)   a torch.optim.lr_scheduler, stepped after each step, or {"scheduler": one, "interval": "epoch"};
                       an argument total_steps gets the number of steps; a ReduceLROnPlateau goes by validation data
metrics(output, target)  numbers by name, means over the samples, of validation data
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from spillway_runner.refusal import Refusal
from spillway_runner.schedules import STEPPED, UNKNOWN, Course, Named, Schedule, arguments_of, given, rebased
from spillway_runner.source import Source, takes
from spillway_runner.values import described_tensor, shapes

KINDS = ("sgd", "momentum", "adam", "adamw")
NUMBERS = (bool, int, float)
OWN = ("params", "param_names")  # of a group, by the split
# Names of what a training tells itself, beside metrics.
TOLD = ("loss", "validation_loss", "samples_per_second", "tokens_per_second", "step_seconds", "mfu")


class Recipe:
    """The loss, the optimizer and the scheduler."""

    def __init__(self, source: Source, config: dict[str, Any] | None) -> None:
        """config is the optimizer that was asked for, as JSON: kind, learning_rate, momentum, beta1, beta2, epsilon,
        weight_decay; without a kind, the file's own."""
        self.source, self.config = source, config or {}
        self.user_loss = source.optional("loss")
        self.loss_takes_target = self.user_loss is not None and takes(
            getattr(self.user_loss, "forward", self.user_loss), 2
        )
        self.user_metrics = source.optional("metrics")
        kind = self.config.get("kind") or ""
        if kind and kind not in KINDS:
            raise Refusal("optimizer", f"there is no optimizer {kind}", hint=f"choose one of {', '.join(KINDS)}")

    # The loss.

    def loss(self, output: Any, target: Any = None) -> torch.Tensor:
        """The mean loss of the samples, a scalar tensor.

        Without loss() in the file it is the cross entropy where targets are integers (numbers of classes, which are the
        last dimension of output, or the second where only that fits), the mean squared error where they are not, and
        the output itself where there is no target; of a dict, its "logits", or its "loss". Nothing is broadcast. The
        cross entropy leaves targets of -100 out of its mean, as torch does; where there are some, the loss of a batch
        depends on how it is cut, since each micro-batch counts by its samples.
        """
        if self.user_loss is None:
            return default_loss(output, target, self.source)
        with self.source.blamed(
            "loss",
            f"loss() fails on an output {shapes(output)} and a target {shapes(target)}",
            "it takes the model's output and the target, and returns a scalar tensor",
        ):
            value = self.user_loss(output, target) if self.loss_takes_target else self.user_loss(output)
        return scalar(value, self.source, "loss() returns", "return the mean over the samples, with a gradient")

    def metrics(self, output: Any, target: Any) -> dict[str, float]:
        """What the file's metrics() says of an output, by name; nothing without it."""
        if self.user_metrics is None:
            return {}
        with self.source.blamed(
            "metrics",
            f"metrics() fails on an output {shapes(output)} and a target {shapes(target)}",
            "it takes the model's output and the target, and returns a dict of numbers",
        ):
            made = self.user_metrics(output, target)
        hint = 'return a dict of means over the samples, such as {"accuracy": 0.9}'
        if not isinstance(made, Mapping):
            raise Refusal(
                "metrics", f"metrics() returns a {type(made).__name__}, not a dict of numbers", self.source.path, hint
            )
        return {self.metric_name(name): self.metric(name, value, hint) for name, value in made.items()}

    def metric_name(self, name: Any) -> str:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", name) or name in TOLD:
            raise Refusal(
                "metrics",
                f"metrics() names one {name!r}",
                self.source.path,
                f"give names of letters, digits and underscores, other than {', '.join(TOLD)}",
            )
        return name

    def metric(self, name: str, value: Any, hint: str) -> float:
        if hasattr(value, "item") and getattr(value, "size", None) is not None:
            one = value.numel() if isinstance(value, torch.Tensor) else value.size
            value = value.item() if one == 1 else value
        if not isinstance(value, NUMBERS):
            what = described_tensor(value) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise Refusal("metrics", f"metrics() returns {what} as {name}, not a number", self.source.path, hint)
        return float(value)

    # The optimizer.

    def optimizer(self, named_parameters: Named, config: dict[str, Any] | None = None) -> torch.optim.Optimizer:
        """An optimizer of the parameters, (name, parameter) each: the one that was asked for, else the file's, else
        Adam at 0.001."""
        config = self.config if config is None else config
        parameters = [p for _, p in named_parameters]
        if not parameters:
            # A part may have none.
            return torch.optim.SGD([{"params": []}], lr=0.0)
        function = self.source.optional("optimizer")
        if config.get("kind"):
            return made_optimizer(config, parameters)
        if function is None:
            return made_optimizer({"kind": "adam"}, parameters)
        with self.source.blamed(
            "optimizer",
            "optimizer() fails",
            "it takes a list of parameters and returns a torch.optim.Optimizer of them",
        ):
            made = function(given(function, named_parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise Refusal(
                "optimizer",
                f"optimizer() returns {type(made).__name__}, not a torch.optim.Optimizer",
                self.source.path,
                "return one such as torch.optim.AdamW(parameters)",
            )
        if isinstance(made, torch.optim.LBFGS):
            raise Refusal(
                "optimizer",
                "LBFGS runs the model several times a step, which a pipeline cannot",
                self.source.path,
                "return another optimizer",
            )
        own = {id(p) for p in parameters}
        if any(id(p) not in own for group in made.param_groups for p in group["params"]):
            raise Refusal(
                "optimizer",
                "optimizer() holds a parameter that it was not given",
                self.source.path,
                "use its argument only: it is called for each part of the model with that part's parameters",
            )
        return made

    def scheduler(self, optimizer: torch.optim.Optimizer, course: Course = UNKNOWN) -> Schedule | None:
        """The file's scheduler of this optimizer, or None, as of one without parameters. It is told of each step."""
        function = self.source.optional("scheduler")
        if function is None or not any(group["params"] for group in optimizer.param_groups):
            return None
        with self.source.blamed(
            "scheduler",
            "scheduler() fails",
            "it takes an optimizer and returns a scheduler of torch.optim.lr_scheduler",
        ):
            if "total_steps" not in arguments_of(function):
                made = function(optimizer)
            elif course.steps:
                made = function(optimizer, total_steps=course.steps)
            else:
                raise Refusal(
                    "scheduler",
                    "scheduler(optimizer, total_steps) asks for the number of steps, which is not known",
                    self.source.path,
                    "give the number of steps with --steps",
                )
        return Schedule(made, course, self.source)

    # What outlives a process.

    def optimizer_state(self, optimizer: torch.optim.Optimizer, named_parameters: Named) -> dict[str, torch.Tensor]:
        """{"optimizer/SLOT/NAME": tensor} of what the optimizer keeps for each parameter. Numbers become tensors
        without dimensions: int64, or float64."""
        state = optimizer.state_dict()["state"]
        found = {}
        for index, name in numbered(optimizer, named_parameters):
            for slot, value in state.get(index, {}).items():
                if value is None:
                    continue
                if isinstance(value, NUMBERS):
                    value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
                if not isinstance(value, torch.Tensor) or "/" in slot:
                    raise Refusal(
                        "optimizer",
                        f"{type(optimizer).__name__} keeps {slot} as a {type(value).__name__}, which cannot be saved",
                        self.source.path,
                        "use an optimizer that keeps tensors and numbers for each parameter",
                    )
                found[f"optimizer/{slot}/{name}"] = value.detach()
        return found

    def load_optimizer_state(
        self, optimizer: torch.optim.Optimizer, named_parameters: Named, tensors: dict[str, torch.Tensor]
    ) -> None:
        """Replaces what the optimizer keeps by tensors of optimizer_state, whatever the split that they come from.
        Parameters without any start anew."""
        slots: dict[str, dict[str, torch.Tensor]] = {}  # by parameter
        for key, value in tensors.items():
            prefix, slot, name = key.split("/", 2)
            if prefix != "optimizer":
                raise Refusal("optimizer", f"{key} is no state of an optimizer")
            slots.setdefault(name, {})[slot] = value
        by_name = dict(named_parameters)
        state: dict[int, dict[str, Any]] = {}
        for index, name in numbered(optimizer, named_parameters):
            for slot, value in slots.get(name, {}).items():
                if value.dim() and value.shape != by_name[name].shape:
                    raise Refusal(
                        "optimizer",
                        f"optimizer/{slot}/{name} has shape {shapes(value)}, and the parameter {shapes(by_name[name])}",
                    )
                state.setdefault(index, {})[slot] = number_again(value, by_name[name])
        whole = optimizer.state_dict()
        whole["state"] = state
        optimizer.load_state_dict(whole)

    def optimizer_groups(self, optimizer: torch.optim.Optimizer, named_parameters: Named) -> list[dict[str, Any]]:
        """What the optimizer's groups say, such as the learning rate that a scheduler set, as JSON: [{"parameters":
        [NAME, ...], "lr": 0.1, ...}, ...]."""
        names = {id(p): n for n, p in named_parameters}
        groups = []
        for group in optimizer.param_groups:
            values = {k: float(v) if isinstance(v, torch.Tensor) else v for k, v in group.items() if k not in OWN}
            groups.append({"parameters": [names[id(p)] for p in group["params"]], **plain(values)})
        return groups

    def load_optimizer_groups(
        self, optimizer: torch.optim.Optimizer, named_parameters: Named, groups: list[dict[str, Any]]
    ) -> None:
        """Sets each group to what optimizer_groups said of its first parameter, whatever the split that it comes
        from."""
        said = {name: group for group in groups for name in group["parameters"]}
        names = {id(p): n for n, p in named_parameters}
        for group in optimizer.param_groups:
            values = said.get(names[id(group["params"][0])], {}) if group["params"] else {}
            for key, value in values.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                elif key != "parameters" and key not in OWN:
                    group[key] = tuple(value) if isinstance(value, list) else value

    def scheduler_state(self, scheduler: Schedule | None) -> Any:
        """The scheduler's state as JSON, without what JSON has no form for, such as functions: those the file makes
        again."""
        return None if scheduler is None else {**plain(scheduler.made.state_dict()), STEPPED: scheduler.seen}

    def load_scheduler_state(self, scheduler: Schedule | None, state: Any) -> None:
        """Sets the scheduler to what scheduler_state returned. Lists of one value for each group are left alone where
        this part has another number of groups."""
        if scheduler is not None and state is not None:
            state = dict(state)
            scheduler.seen = state.pop(STEPPED, scheduler.seen)
            scheduler.made.load_state_dict(merged(scheduler.made.state_dict(), state))
            rebased(scheduler.made)


def default_loss(output: Any, target: Any, source: Source) -> torch.Tensor:
    if isinstance(output, dict):  # as of the transformers library
        wanted = "loss" if target is None else "logits"
        if not isinstance(output.get(wanted), torch.Tensor):
            raise Refusal(
                "loss",
                f"the model returns {shapes(output)}, without {wanted}",
                source.path,
                "give it its labels among the inputs, so that it returns its loss, or define loss(output, target)",
            )
        output = output[wanted]
    if target is None:
        return scalar(
            output,
            source,
            "there is no target, and the model returns",
            "return the loss from the model, or have data() return (inputs, targets)",
        )
    if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
        raise Refusal(
            "loss",
            f"the output is {shapes(output)} and the target is {shapes(target)}",
            source.path,
            "define loss(output, target): without it both are one tensor",
        )
    if target.is_floating_point():
        if output.shape != target.shape:
            raise Refusal(
                "loss",
                f"the output has shape {shapes(output)} and the target {shapes(target)}",
                source.path,
                "give them equal shapes, or define loss(output, target)",
            )
        return nn.functional.mse_loss(output, target)
    if output.dim() < 2 or target.dtype == torch.bool or target.is_complex() or not output.is_floating_point():
        raise Refusal(
            "loss",
            f"an output {described_tensor(output)} and a target {described_tensor(target)} have no usual loss",
            source.path,
            "define loss(output, target)",
        )
    if output.shape[:-1] == target.shape:
        classes, output, target = output.shape[-1], output.reshape(-1, output.shape[-1]), target.reshape(-1)
    elif output.shape[:1] + output.shape[2:] == target.shape:
        classes = output.shape[1]
    else:
        raise Refusal(
            "loss",
            f"the output has shape {shapes(output)} and the target, of classes, {shapes(target)}",
            source.path,
            "give the target one number for each row of the output, or define loss(output, target)",
        )
    if classes < 2:
        raise Refusal(
            "loss",
            f"the output has shape {shapes(output)}: with one class the cross entropy is always 0",
            source.path,
            "return two classes, or define loss(output, target) with binary_cross_entropy_with_logits",
        )
    with source.blamed(
        "loss", f"the cross entropy of an output {shapes(output)} fails", f"targets are from 0 to {classes - 1}"
    ):
        return nn.functional.cross_entropy(output, target.long())


def scalar(value: Any, source: Source, what: str, hint: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
        raise Refusal("loss", f"{what} {described_tensor(value)}, not a floating scalar", source.path, hint)
    return value.reshape(())


def made_optimizer(config: dict[str, Any], parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """One of KINDS; 0 and what is not given stand for the default."""
    kind, decay = config["kind"], config.get("weight_decay") or 0.0
    if kind in ("sgd", "momentum"):
        momentum = (config.get("momentum") or 0.9) if kind == "momentum" else 0.0
        return torch.optim.SGD(
            parameters, lr=config.get("learning_rate") or 0.01, momentum=momentum, weight_decay=decay
        )
    values = {
        "lr": config.get("learning_rate") or 0.001,
        "betas": (config.get("beta1") or 0.9, config.get("beta2") or 0.999),
        "eps": config.get("epsilon") or 1e-8,
    }
    if kind == "adam":
        return torch.optim.Adam(parameters, weight_decay=decay, **values)
    return torch.optim.AdamW(parameters, weight_decay=decay or 0.01, **values)


def numbered(optimizer: torch.optim.Optimizer, named_parameters: Named) -> list[tuple[int, str]]:
    """The parameters' numbers in the optimizer's state_dict, with their names."""
    names = {id(p): n for n, p in named_parameters}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [(i, names[id(p)]) for i, p in enumerate(parameters)]


def number_again(value: torch.Tensor, parameter: nn.Parameter) -> Any:
    """A number that optimizer_state made a tensor of; torch keeps its own counts as floating tensors."""
    if value.dim() == 0 and (value.dtype == torch.int64 or value.dtype == torch.float64 != parameter.dtype):
        return value.item()
    return value


def plain(value: Any) -> Any:
    """value without what JSON has no form for."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if isinstance(k, str) and expressible(v)}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def expressible(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(k, str) for k in value)
    if isinstance(value, (list, tuple)):
        return all(expressible(v) for v in value)
    return value is None or isinstance(value, NUMBERS + (str,))


def merged(own: Any, loaded: Any) -> Any:
    """own with what was loaded in its place, within dicts and lists, where lengths agree."""
    if isinstance(own, dict) and isinstance(loaded, dict):
        return {**own, **{k: merged(own[k], v) if k in own else v for k, v in loaded.items()}}
    if isinstance(own, (list, tuple)) and isinstance(loaded, list):
        return type(own)(merged(o, n) for o, n in zip(own, loaded)) if len(own) == len(loaded) else own
    return loaded
