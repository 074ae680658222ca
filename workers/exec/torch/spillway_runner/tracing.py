"""The graph of a model's operations."""

from __future__ import annotations

import dis
import inspect
import sys
from functools import partial
from itertools import zip_longest
from types import FrameType
from typing import Any, Callable, Iterator

import torch
from torch import fx, nn

from spillway_runner.model import Block, Chain, Model
from spillway_runner.recording import record
from spillway_runner.refusal import Refusal
from spillway_runner.source import users
from spillway_runner.values import each, tensors


class Unpacked(fx.Proxy):
    """What stands for a value while the model is traced.

    Its tracer finds how many items are asked for. Torch 1.13 takes instructions for two bytes each, so that in Python
    3.11, where some have more, it finds another instruction than that which runs, or none.
    """

    def __iter__(self) -> Iterator[fx.Proxy]:
        return self.tracer.iter(self)

    def __getattr__(self, name: str) -> fx.Proxy:
        return UnpackedAttribute(self, name)


class UnpackedAttribute(fx.proxy.Attribute):
    """What stands for an attribute, such as a shape."""

    def __iter__(self) -> Iterator[fx.Proxy]:
        return self.tracer.iter(self)


class Tracer(fx.Tracer):
    """Enters the user's modules and notes the user's line of each operation. Modules of torch.nn stay whole, but for
    containers.

    What is no tensor and holds none is fixed, as are defaults of arguments that are not given.
    """

    def __init__(self, inputs: dict[str, Any]) -> None:
        super().__init__()
        self.inputs = inputs

    def create_args_for_root(
        self, forward: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[[], Any], list[Any]]:
        def call() -> Any:
            given = {
                n: self.create_proxy("placeholder", n, (), {}) if any(True for _ in tensors(v)) else v
                for n, v in self.inputs.items()
            }
            encoded = encode(self.root, (), given)
            return forward(self.root, **given) if encoded is None else encoded

        return call, []

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        node = super().create_node(*args, **kwargs)
        node.meta["at"] = caller()
        return node

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return Unpacked(node, self)

    def iter(self, value: fx.Proxy) -> Iterator[fx.Proxy]:
        """Lets `a, b = value` through: the instruction tells how many there are."""
        frame = sys._getframe(2)  # of the user, who called __iter__
        for instruction in dis.get_instructions(frame.f_code):
            if instruction.offset == frame.f_lasti and instruction.opname == "UNPACK_SEQUENCE":
                return (value[i] for i in range(instruction.argval))
        return super().iter(value)

    def call_module(self, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        encoded = encode(module, args, kwargs)
        return super().call_module(module, forward, args, kwargs) if encoded is None else encoded


def encode(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """The layers of PyTorch's encoder in turn; None for every other module.

    Its forward looks at its input to choose a faster way for inference, which cannot be traced. In training it is this
    loop.
    """
    if type(module) is not nn.TransformerEncoder:
        return None
    try:
        given = (
            inspect.signature(lambda src, mask=None, src_key_padding_mask=None: None).bind(*args, **kwargs).arguments
        )
    except TypeError:
        return None
    value = given.pop("src")
    masks = {"src_mask": given.get("mask"), "src_key_padding_mask": given.get("src_key_padding_mask")}
    for layer in module.layers:
        value = layer(value, **{k: v for k, v in masks.items() if v is not None})
    return value if module.norm is None else module.norm(value)


def caller() -> str:
    """The user's place that is being run, or nothing."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if users(name):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def trace(model: Model) -> tuple[fx.Graph, dict[str, Any]]:
    """The graph of operations and the values of its placeholders by name."""
    return symbolic(model) or record(model, caller), model.binder.placeholders(model.inputs)


def traces(model: Model, sizes: list[int]) -> dict[int, fx.Graph]:
    """The graph for micro-batches of each number of samples; the model's inputs are those of one sample. They are one
    graph where it does not depend on that, and have the same operations."""
    graph = symbolic(model)
    if graph is not None:
        return dict.fromkeys(sizes, graph)
    one, graphs = model.inputs, {}
    for size in sizes:
        model.inputs = each(one, partial(repeated, size))
        graphs[size] = record(model, caller)
    model.inputs = one
    few, many = min(sizes), max(sizes)
    for a, b in zip_longest(graphs[few].nodes, graphs[many].nodes):
        if a is None or b is None or (a.op, a.name) != (b.op, b.name):
            raise Refusal(
                "untraceable",
                f"the model has other operations with {few} samples than with {many}",
                (a or b).meta.get("at", "") or model.source.path,
                f"choose a number of micro-batches that divides the batch, so that all have {many} samples",
            )
    return graphs


def repeated(times: int, sample: torch.Tensor) -> torch.Tensor:
    return sample.repeat_interleave(times, 0) if sample.dim() else sample


def symbolic(model: Model) -> fx.Graph | None:
    """The graph for inputs of any size, or None where torch.fx cannot follow the model."""
    if isinstance(model.module, Chain):
        return model.module.graph(len(model.binder.placeholders(model.inputs)))
    try:
        graph = Tracer(model.inputs).trace(model.module)
    except Exception:  # of a library's decorators, say, or a choice by the sizes of tensors
        return None
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)
    return graph


def attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


class Operation:
    """One node of the graph and what it computes with."""

    def __init__(self, node: fx.Node, root: nn.Module) -> None:
        self.node, self.root, self.name = node, root, node.name
        self.held: list[torch.Tensor] = []  # parameters and buffers that it reads
        self.own_buffers: list[torch.Tensor] = []  # those of its module, which it may write
        if node.op == "call_module":
            self.module = attribute(root, node.target)
            self.held = list(self.module.parameters())
            self.own_buffers = list(self.module.buffers())
        for source in node.all_input_nodes:
            if source.op == "get_attr":
                value = attribute(root, source.target)
                self.held += value.parameters() if isinstance(value, nn.Module) else tensors(value)

    def all_held(self) -> list[torch.Tensor]:
        return self.held + self.own_buffers

    def kind(self) -> str:
        node = self.node
        if node.op == "call_module":
            module = self.module.module if isinstance(self.module, Block) else self.module
            return type(module).__name__
        if node.op == "placeholder":
            return node.op
        return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))

    def title(self) -> str:
        if self.node.op == "call_module":
            return f"{self.node.target} {self.kind()}"
        return "input" if self.node.op == "placeholder" else self.kind()

    def arguments(self, values: dict[fx.Node, Any]) -> tuple[Any, Any]:
        """args and kwargs from the values of earlier nodes."""
        look = values.__getitem__
        return fx.node.map_arg(self.node.args, look), fx.node.map_arg(self.node.kwargs, look)

    def call(self, args: Any, kwargs: Any) -> Any:
        if self.node.op == "call_module":
            return self.module(*args, **kwargs)
        if self.node.op == "call_method":
            return getattr(args[0], self.node.target)(*args[1:], **kwargs)
        return self.node.target(*args, **kwargs)
