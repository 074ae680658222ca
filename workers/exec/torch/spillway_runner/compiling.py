"""torch.compile of a part's operations, but for those that draw masks of dropout: these belong to the samples, which a
compiled graph does not know."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import fx, nn

from spillway_runner.refusal import Refusal
from spillway_runner.requirements import version
from spillway_runner.source import described, traced

LEAST_TORCH = (2, 4)


def check_compiler(device: torch.device) -> None:
    """Refuses a torch that is too old, and one that finds no compiler, by a function that is compiled."""
    if version(torch.__version__) < LEAST_TORCH:
        raise Refusal(
            "compile",
            f"torch {torch.__version__} does not compile models well enough",
            hint=f"install torch {'.'.join(map(str, LEAST_TORCH))} or later, or leave --compile out",
        )
    import torch._inductor.config as inductor

    inductor.compile_threads = 1  # in this process: others would outlive it
    inductor.fallback_random = True  # a recomputation draws the same numbers again
    try:
        torch.compile(lambda x: x.sin() + 1, dynamic=False)(torch.ones(4, device=device))
    except Exception as error:
        needs = "a C++ compiler and Python's headers (Debian: g++ python3-dev; CXX names another)"
        raise Refusal(
            "compile",
            f"torch cannot compile for {device.type}: {summary(error)}",
            hint=f"install {needs if device.type == 'cpu' else 'Triton and a C compiler'}, or leave --compile out",
            trace=traced(error),
        ) from error


class Segment(nn.Module):
    """Operations that are compiled together."""

    def __init__(self, operations: nn.Module, first: str, enter: Callable[[str], None]) -> None:
        super().__init__()
        self.first, self.enter = first, enter
        self.compiled = torch.compile(operations, dynamic=False)

    def forward(self, *args: Any) -> Any:
        self.enter(self.first)
        try:
            return self.compiled(*args)
        except Exception as error:
            if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "torch._functorch")):
                raise
            raise Refusal(
                "compile",
                f"torch.compile fails at operation {self.first} or one after it: {summary(error)}",
                hint="leave --compile out, or keep what it cannot follow out of the model's forward",
                trace=traced(error),
            ) from error


def compiled(module: fx.GraphModule, eager: set[str], enter: Callable[[str], None]) -> fx.GraphModule:
    """The module of a part with its operations compiled, as many together as there are between two of eager, which stay
    as they are. It has the tensors of the module."""
    from torch.fx.passes.split_module import split_module

    names: dict[fx.Node, str] = {}  # of operations and of what says that they begin
    now = ""
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target == enter:
            now = node.args[0]
        names[node] = now
    place: dict[fx.Node, int] = {}
    firsts: dict[int, str] = {}  # the first operation of each stretch that is compiled
    number, compiling = -1, None
    for node, name in names.items():
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if number < 0 or compiling != (name not in eager):
            number, compiling = number + 1, name not in eager
            if compiling:
                firsts[number] = name
        place[node] = number
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    graph.output(graph.graph_copy(module.graph, twins))
    placed = {twins[node]: number for node, number in place.items()}
    for node, twin in twins.items():
        if node.op == "call_function" and node.target == enter and names[node] not in eager:
            del placed[twin]
            graph.erase_node(twin)
    copy = fx.GraphModule(module, graph)
    split = split_module(copy, copy, lambda node: placed[node], keep_original_order=True)
    for number, first in firsts.items():
        setattr(split, f"submod_{number}", Segment(getattr(split, f"submod_{number}"), first, enter))
    return split


def summary(error: BaseException) -> str:
    """The first lines of an error that say something, on one."""
    lines = [line.strip() for line in described(error).splitlines() if line.strip()]
    return " ".join(lines[:3])[:400]
