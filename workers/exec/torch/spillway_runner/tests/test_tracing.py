from __future__ import annotations

from typing import Any, Callable

import pytest
import torch

from spillway_runner.model import Model
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.tracing import Tracer, trace

MakeSource = Callable[[str], Source]
TEXT = """
import torch
from torch import nn

class Whole(nn.Module):
    def forward(self, x):
{forward}

def build():
    return Whole(), torch.arange(12.0).view(4, 3)
"""


def model(source: MakeSource, *lines: str) -> Model:
    text = TEXT.format(forward="\n".join("        " + line for line in lines))
    return Model(source(text), {"device": "cpu", "function": "build", "batch": 4})


@pytest.mark.parametrize(
    "lines",
    [
        ["a, b = torch.chunk(x, 2)", "return a * b"],
        ["a, b = x.shape", "return x / a + b"],
        ["a, *_ = (x, 1, 2)", "b, c, d, e = x.unbind(0)", "return b - c + d - e + a.sum()"],
        ["a = b = x * 2"] * 40 + ["a, b, c = x.split((1, 1, 2))", "d, e = c", "return a + b + d + e"],
        ["a, b = x.split(2)", "c, d = a", "e, f = b"] + ["x = x + 1"] * 40 + ["return c + d + e + f + x"],
    ],
)
def test_what_is_unpacked_has_as_many_items_as_names(lines: list[str], source: MakeSource) -> None:
    made = model(source, *lines)
    graph, placeholders = trace(made)
    want = made.run()
    got: Any = torch.fx.GraphModule(made.module, graph)(**placeholders)
    assert torch.equal(got, want)


def test_what_depends_on_numbers_is_refused_with_its_line(source: MakeSource) -> None:
    with pytest.raises(Refusal, match="at `if x.sum") as caught:
        trace(model(source, "if x.sum() > 0:", "    return -x", "return x"))
    assert caught.value.fields["kind"] == "untraceable"
    assert caught.value.fields["at"].endswith("model0.py:7")


def test_a_loop_over_a_tensor_is_noted_as_it_ran(source: MakeSource) -> None:
    made = model(source, "for y in x.unbind(1)[0].split(2):", "    x = x + y.sum()", "return x")
    graph, placeholders = trace(made)
    assert torch.equal(torch.fx.GraphModule(made.module, graph)(**placeholders), made.run())


def test_inputs_without_a_tensor_are_fixed() -> None:
    class Whole(torch.nn.Module):
        def forward(self, x: Any, times: int) -> Any:
            return x * times

    graph = Tracer({"x": torch.ones(1), "times": 3}).trace(Whole())
    assert [n.name for n in graph.nodes if n.op == "placeholder"] == ["x"]
