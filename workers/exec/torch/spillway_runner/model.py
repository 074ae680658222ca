"""The model of the user: what their function returned."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import random
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from spillway_runner.arrays import numpy
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.values import each, shape, tensors

FACTORIES = {
    getattr(torch, name)
    for name in (
        "arange empty empty_strided eye full linspace logspace ones rand randint randn randperm tensor tril_indices "
        "triu_indices zeros"
    ).split()
}


class Weightless(TorchFunctionMode):
    """Within it, tensors that are made without a device have no memory: on the device meta, they are shapes alone."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func in FACTORIES and given.get("device") is None:
            given["device"] = "meta"
        return func(*args, **given)


class Model:
    """What the user's function returned, on its device, in training mode, with example inputs by name of the
    argument."""

    def __init__(self, source: Source, request: dict[str, Any], inputs: Any = None) -> None:
        """inputs are examples in place of those that the file gives."""
        self.source, self.device = source, torch.device(request["device"])
        self.half = request.get("precision") == "bfloat16"  # products are computed in it
        name = request["function"]
        seed = request.get("seed", 0)
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        weightless = self.device.type == "meta"
        with self.source.blamed("function", f"{name}() fails", "it is called without arguments and returns the model"):
            with Weightless() if weightless else contextlib.nullcontext():
                made = self.source.function(name)()
        if isinstance(made, tuple) and len(made) == 2:
            made, inputs = made[0], made[1] if inputs is None else inputs
        if not isinstance(made, nn.Module):
            raise Refusal(
                "module",
                f"{name}() returns {type(made).__name__}, not a torch.nn.Module",
                self.source.path,
                "return the model, or (model, example inputs)",
            )
        self.whole = self.module = made.to(self.device).train()
        self.blocks = self.find_blocks(name)
        if self.blocks is not None:
            self.module = Chain(self.blocks).to(self.device)  # of modules that are in their modes
        self.binder = Binder(self.module, self.source)
        self.inputs = self.binder.bind(self.find_inputs(inputs, request), self.device)
        self.batch = next((t.shape[0] for t in tensors(self.inputs) if t.dim()), 0)

    def find_blocks(self, name: str) -> list[tuple[str, nn.Module]] | None:
        """The named modules of the file's blocks(), or None. They must hold the same parameters as the model."""
        function = self.source.optional("blocks")
        if function is None:
            return None
        with self.source.blamed("blocks", "blocks() fails", "it takes the model or nothing, and returns named modules"):
            made = function(self.module) if inspect.signature(function).parameters else function()
            items = (
                made.items()
                if isinstance(made, dict)
                else made.named_children()
                if isinstance(made, nn.Module)
                else made
            )
            blocks = [item if isinstance(item, tuple) else (f"block{i}", item) for i, item in enumerate(items)]
        names = [n for n, _ in blocks]
        wrong = [n for n, m in blocks if not isinstance(n, str) or not n or "." in n or not isinstance(m, nn.Module)]
        if wrong or not blocks or len(set(names)) < len(names):
            raise Refusal(
                "blocks",
                f"blocks() returns {names if blocks else 'nothing'}",
                self.source.path,
                "return a list of (name, torch.nn.Module) with different names without dots",
            )
        own, theirs = weight(self.module), weight(nn.ModuleList(m for _, m in blocks))
        if own != theirs:
            raise Refusal(
                "blocks",
                f"blocks() holds {theirs} bytes of parameters, and the model of {name}() holds {own}",
                self.source.path,
                "return modules that together are the whole model",
            )
        return blocks

    def find_inputs(self, inputs: Any, request: dict[str, Any]) -> Any:
        if inputs is not None:
            return inputs
        batch, function = request["batch"], self.source.optional("example_inputs")
        if function is not None:
            with self.source.blamed(
                "inputs",
                f"example_inputs({batch}) fails",
                "it takes the batch size and returns the inputs of the model",
            ):
                return function(batch)
        if request.get("shape") is not None:
            return self.random((batch, *request["shape"]), request.get("dtype") or "float32")
        if request.get("dtype"):
            raise Refusal("inputs", "a type of elements was given and no shape", self.source.path, "give both")
        first = next((m for m in self.module.modules() if not list(m.children())), None)
        if isinstance(first, nn.Linear) and len(positional(self.module)) == 1:
            return self.random((batch, first.in_features), "float32")
        raise Refusal(
            "inputs",
            "the shapes of the model's inputs are not known",
            self.source.path,
            "define example_inputs(batch) in the file, return (model, inputs) from the function, or give a shape",
        )

    def random(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise Refusal(
                "inputs", f"torch has no type {dtype}", hint="give float32, int64 or another of torch's types"
            )
        if kind.is_floating_point:
            return torch.randn(shape).to(kind)
        most = min([m.num_embeddings for m in self.module.modules() if isinstance(m, nn.Embedding)] or [2])
        return torch.randint(0, most, shape).to(kind)

    def names(self) -> dict[int, str]:
        """The names of parameters and buffers by identity, in the order of the model's: the first where a tensor has
        several."""
        names: dict[int, str] = {}
        for module in (self.whole, self.module):
            for name, tensor in list(module.named_parameters()) + list(module.named_buffers()):
                names.setdefault(id(tensor), readable(name))
        return names

    def held(self) -> dict[str, torch.Tensor]:
        """Parameters, then buffers, by name; each once."""
        names = self.names()
        found: dict[str, torch.Tensor] = {}
        for module in (self.module, self.whole):
            for tensor in (*module.parameters(), *module.buffers()):
                found.setdefault(names[id(tensor)], tensor)
        return found

    def digest(self) -> str:
        """The same for models whose parameters and buffers have the same names, shapes and types."""
        lines = sorted(f"{name} {shape(tensor)} {tensor.dtype}" for name, tensor in self.held().items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def to(self, device: torch.device) -> None:
        """Puts the model and its inputs on another device."""
        self.device = device
        self.whole, self.module = self.whole.to(device), self.module.to(device)
        self.inputs = each(self.inputs, lambda t: t.to(device))

    def run(self) -> Any:
        if isinstance(self.module, Chain):
            return self.module(*self.inputs["inputs"])
        return self.module(**self.inputs)


class Binder:
    """Gives inputs the names of a model's arguments. It holds no model."""

    def __init__(self, module: nn.Module, source: Source) -> None:
        self.signature, self.chain, self.source = inspect.signature(module.forward), isinstance(module, Chain), source

    def bind(self, inputs: Any, device: torch.device | str) -> dict[str, Any]:
        """The inputs by name of the argument: a tensor, arguments in order or arguments by name."""
        signature = self.signature
        inputs = each(inputs, lambda t: t.detach().to(device))
        try:
            if isinstance(inputs, dict):
                bound = signature.bind(**inputs)
            elif isinstance(inputs, (tuple, list)):
                bound = signature.bind(*inputs)
            else:
                bound = signature.bind(inputs)
        except TypeError as error:
            raise Refusal(
                "inputs",
                f"the example inputs do not fit forward{signature}: {error}",
                self.source.path,
                "give a tensor, a tuple of the arguments in order, or a dict of them by name",
            ) from error
        for name, value in list(bound.arguments.items()):
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                raise Refusal(
                    "inputs",
                    f"the inputs {sorted(value)} have no names in forward{signature}",
                    self.source.path,
                    "name the arguments of forward",
                )
            if kind is inspect.Parameter.VAR_POSITIONAL and not self.chain:
                raise Refusal(
                    "inputs",
                    f"forward{signature} does not say how many inputs there are",
                    self.source.path,
                    "name the arguments of forward",
                )
        if not any(True for _ in tensors(bound.arguments)):
            raise Refusal(
                "inputs", "the example inputs hold no tensor", self.source.path, "return the inputs of the model"
            )
        return dict(bound.arguments)

    def placeholders(self, bound: dict[str, Any]) -> dict[str, Any]:
        """What bind returned, by the names that the graph has for it."""
        return {f"input{i}": v for i, v in enumerate(bound["inputs"])} if self.chain else bound


class Chain(nn.Module):
    """The user's blocks in turn; a tuple that one returns is the arguments of the next."""

    def __init__(self, blocks: list[tuple[str, nn.Module]]) -> None:
        super().__init__()
        self.names = [name for name, _ in blocks]
        for name, module in blocks:
            self.add_module("block " + name, Block(module))

    def forward(self, *inputs: Any) -> Any:
        value = inputs
        for block in self.children():
            value = block(value)
        return value

    def graph(self, count: int) -> fx.Graph:
        graph = fx.Graph()
        value = tuple(graph.placeholder(f"input{i}") for i in range(count))
        for name in self.names:
            value = graph.create_node("call_module", "block " + name, (value,), name=name)
        graph.output(value)
        return graph


class Block(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, value: Any) -> Any:
        return self.module(*value) if isinstance(value, tuple) else self.module(value)


def positional(module: nn.Module) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(module.forward).parameters.values() if p.default is p.empty]


def readable(name: str) -> str:
    """A name without what Chain and Block add."""
    return name.replace("block ", "", 1).replace(".module.", ".", 1) if name.startswith("block ") else name


def weight(module: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in module.parameters())
