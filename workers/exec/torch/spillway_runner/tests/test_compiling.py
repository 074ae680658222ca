"""Which operations are compiled together."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

from spillway_runner import compiling
from spillway_runner.compiling import LEAST_TORCH, check_compiler, compiled
from spillway_runner.refusal import Refusal
from spillway_runner.requirements import version

OLD = version(torch.__version__) < LEAST_TORCH


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bias = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        first = self.first(x) + self.bias
        second = torch.relu(self.second(first))
        return second * y + first


def entered(module: nn.Module, entries: list[str]) -> tuple[fx.GraphModule, Any]:
    """The graph of a module with a call before each operation, as a part has it."""
    graph = fx.Graph()
    here: dict[fx.Node, fx.Node] = {}

    def enter(name: str) -> None:
        entries.append(name)

    for node in fx.Tracer().trace(module).nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            graph.call_function(enter, (node.name,))
        here[node] = graph.node_copy(node, lambda n: here[n])
    return fx.GraphModule(module, graph), enter


@pytest.mark.skipif(OLD, reason="this torch is too old to compile")
@pytest.mark.parametrize(
    ("eager", "entries"),
    [
        ([], ["first"]),
        (["relu"], ["first", "relu", "mul"]),
        (["first", "add"], ["first", "add", "second"]),
        (["add_1", "second"], ["first", "second", "relu", "add_1"]),
        (["first", "add", "second", "relu", "mul", "add_1"], ["first", "add", "second", "relu", "mul", "add_1"]),
    ],
)
def test_stretches_between_what_draws_masks_are_compiled(
    eager: list[str], entries: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    together: list[fx.GraphModule] = []

    def compile(module: fx.GraphModule, **_: Any) -> fx.GraphModule:
        together.append(module)
        return module

    monkeypatch.setattr(compiling.torch, "compile", compile)
    entered_now: list[str] = []
    module, enter = entered(Inner(), entered_now)
    made = compiled(module, set(eager), enter)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    want = module(x, y)
    entered_now.clear()
    torch.testing.assert_close(made(x, y), want)
    assert entered_now == entries
    assert len(together) == len([e for e in entries if e not in eager])
    assert {id(p) for p in made.parameters()} == {id(p) for p in module.parameters()}


@pytest.mark.skipif(not OLD, reason="this torch compiles")
def test_a_torch_that_is_too_old_is_refused() -> None:
    with pytest.raises(Refusal, match="does not compile models well enough"):
        check_compiler(torch.device("cpu"))


@pytest.mark.skipif(OLD, reason="this torch is too old to compile")
def test_what_fails_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        def call(*_: Any) -> Any:
            raise torch._dynamo.exc.Unsupported("a generator\n\nand much more")

        return call

    monkeypatch.setattr(compiling.torch, "compile", fails)
    with pytest.raises(Refusal, match="torch cannot compile for cpu: Unsupported: a generator and much more") as door:
        check_compiler(torch.device("cpu"))
    assert "g++ python3-dev" in door.value.fields["hint"]
    module, enter = entered(Inner(), [])
    with pytest.raises(Refusal, match="torch.compile fails at operation first or one after it: Unsupported: a "):
        compiled(module, set(), enter)(torch.ones(2, 4), torch.ones(2, 4))
