"""Graphs of models that torch.fx cannot follow, noted while they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from spillway_runner.model import Model
from spillway_runner.parts import Split
from spillway_runner.recording import recorded
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.tracing import trace, traces

MakeSource = Callable[[str], Source]

# forward takes whatever it gets, as behind decorators of libraries, and asks for shapes as numbers.
TEXT = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x, mask, scale=1.0):
        if mask.sum() > 1000:  # nobody follows this
            return x
        return torch.tanh(self.inner(x)) * mask * scale

class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2

class Choosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, x):
        with torch.no_grad():
            chosen = x.abs().sum() >= 0
        return self.one(x) if chosen else x

class Careful(nn.Module):
    def forward(self, x):
        if torch.is_autocast_cpu_enabled():
            with torch.autocast("cpu", enabled=False):
                return x @ x.mT
        return x @ x.mT

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.choosing, self.head, self.norm = Choosing(), nn.Linear(3, 3), nn.BatchNorm1d(2)
        self.careful = Careful()
        self.head.weight = self.layers[0].inner.weight
        self.register_buffer("places", torch.arange(6.0).view(1, 2, 3))

    def forward(self, *args, **kwargs):
        return self.call(*args, **kwargs)

    def call(self, x, keep):
        for i in range(int(x.shape[0])):  # torch.fx stops here
            assert i < 9
{lines}

    def layered(self, x, mask):
        for layer in self.layers:
            x = layer(x, mask=mask, scale=0.5)
        return x

def build():
    return Whole()
"""
USUAL = (
    "mask = torch.ones(x.shape[0], 2, 1, device=x.device)",
    "mask[:, -1] = 0.5",
    "mask = mask * keep.view(x.shape[0], 1, 1)",
    "x = self.layered(x + self.places, mask)",
    "return {'out': self.head(self.choosing(Double.apply(x))), 'rest': x.mT}",
)


def model(source: MakeSource, *lines: str, device: str = "cpu") -> Model:
    file = source(TEXT.format(lines="\n".join("        " + line for line in lines)))
    made = Model(file, {"device": device, "function": "build", "batch": 4}, [torch.zeros(1), torch.zeros(1)])
    return made


def run(made: Model, graph: Any, inputs: dict[str, torch.Tensor]) -> Any:
    order = [n.target for n in graph.nodes if n.op == "placeholder"]
    return torch.fx.GraphModule(made.module, graph)(*(inputs[name] for name in order))


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that a signature does not tell are bound by these names."""
    monkeypatch.setattr(
        "spillway_runner.model.Binder.bind",
        lambda self, inputs, device: dict(zip(("x", "keep"), inputs)) if isinstance(inputs, list) else inputs,
    )


def inputs(samples: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(samples)
    return {
        "x": torch.rand(samples, 2, 3, generator=generator),
        "keep": torch.randint(0, 2, (samples,), generator=generator).float(),
    }


def test_the_graph_computes_what_the_model_does_for_each_size(source: MakeSource) -> None:
    made = model(source, *USUAL)
    made.inputs = {name: t[:1] for name, t in inputs(1).items()}
    graphs = traces(made, [3, 5])
    for samples, graph in graphs.items():
        assert recorded(graph)
        given = inputs(samples)
        want = made.module(**given)
        got = run(made, graph, given)
        assert torch.equal(got["out"], want["out"]) and torch.equal(got["rest"], want["rest"])


def test_repeated_modules_are_one_operation_and_so_are_those_that_choose(source: MakeSource) -> None:
    made = model(source, *USUAL)
    made.inputs = inputs(2)
    graph, _ = trace(made)
    called = [n.target for n in graph.nodes if n.op == "call_module"]
    assert called == ["layers.0", "layers.1", "layers.2", "choosing", "head"]
    places = [n.meta["at"].rpartition("/")[2] for n in graph.nodes if n.op == "call_module"]
    text, want = Path(made.source.path).read_text().splitlines(), "x = layer(x, mask=mask, scale=0.5)"
    assert [text[int(p.partition(":")[2]) - 1].strip() for p in places[:3]] == [want] * 3


def test_parts_of_a_recorded_graph_share_what_is_tied_and_are_made_on_their_device(source: MakeSource) -> None:
    made = model(source, *USUAL)
    made.inputs = inputs(2)
    graph, _ = trace(made)
    names = [n.name for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    cut = names.index("layers_2")
    split = Split(graph, made.module, [names[:cut], names[cut:]], made.names())
    assert split.tied() == {"layers.0.inner.weight": [0, 1]}
    module, _ = split.module(0, lambda name: None, torch.device("meta"))
    assert [n.kwargs["device"] for n in module.graph.nodes if n.name == "ones"] == [torch.device("meta")]


@pytest.mark.parametrize(
    ("lines", "text", "why"),
    [
        (["if x.sum() > 0:", "    return -x", "return x"], "if x.sum() > 0:", "looks at the values of a tensor"),
        (["return x * x.max().item()"], "return x * x.max().item()", "looks at the values of a tensor"),
        (["return x[x > 0.5].sum() + len(x.nonzero())"], "return x", "looks at the values of a tensor"),
        (["y = x[x > 0.5]", "return y.sum() / y.shape[0]"], "return y.sum()", "chosen by values"),
        (["import random", "return x * random.random()"], "", "random numbers from another generator"),
        (["with torch.no_grad():", "    return self.head(x)"], "return self.head(x)", "gradients are switched off"),
        (["with torch.autocast('cpu'):", "    return self.head(x)"], "with torch.autocast", "precision of products"),
        (["return self.head(x.double())"], "return self.head(x.double())", "dtype"),
        (["y = self.choosing.one(x)", "return y if 1 / int(x.shape[0] * 0) else x"], "return y if", "ZeroDivision"),
    ],
)
def test_what_the_model_itself_chooses_by_values_is_refused_with_its_line(
    lines: list[str], text: str, why: str, source: MakeSource
) -> None:
    made = model(source, *lines)
    made.inputs = inputs(2)
    with pytest.raises(Refusal) as caught:
        trace(made)
    assert caught.value.fields["kind"] == "untraceable"
    assert text == "" or f"`{text}" in caught.value.fields["message"] and why in caught.value.fields["message"]
    assert "blocks(model)" in caught.value.fields["hint"]


def test_values_may_choose_what_nobody_asks_the_size_of(source: MakeSource) -> None:
    made = model(source, "return (x[x > 0.5] * 2).sum() / x.shape[0]")
    made.inputs = inputs(2)
    graph, _ = trace(made)
    other = {"x": torch.rand(2, 2, 3), "keep": torch.ones(2)}
    assert torch.equal(run(made, graph, other), made.module(**other))


@pytest.mark.parametrize(("half", "called"), [(False, ["head"]), (True, ["careful", "head"])])
def test_a_module_that_keeps_out_of_autocast_is_one_operation(
    half: bool, called: list[str], source: MakeSource
) -> None:
    made = model(source, "self.careful(x)", "return self.head(x)")
    made.inputs, made.half = inputs(2), half
    graph, _ = trace(made)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == called


def test_what_leaves_an_operation_by_another_way_is_refused(source: MakeSource) -> None:
    text = TEXT.replace("return torch.tanh", "self.kept = torch.tanh(x)\n        return torch.tanh")
    file = source(text.format(lines="        return self.layered(x, keep.view(-1, 1, 1)) + self.layers[0].kept"))
    made = Model(file, {"device": "cpu", "function": "build", "batch": 4}, [torch.zeros(1), torch.zeros(1)])
    made.inputs = inputs(2)
    with pytest.raises(Refusal, match="made in a way that cannot be noted, or within a module"):
        trace(made)


def test_a_recording_is_no_step_of_a_training(source: MakeSource) -> None:
    made = model(source, "return self.norm(x)")
    made.inputs = inputs(4)
    before = {name: buffer.clone() for name, buffer in made.module.named_buffers()}
    graph, _ = trace(made)
    assert [n.target for n in graph.nodes if n.op == "call_module"] == ["norm"]
    assert all(torch.equal(buffer, before[name]) for name, buffer in made.module.named_buffers())
    made.run()
    assert not torch.equal(made.module.norm.running_mean, before["norm.running_mean"])


def test_patches_end_with_the_recording(source: MakeSource) -> None:
    before = torch.nn.Module.__call__, torch.autograd.Function.__dict__.get("apply"), torch.jit.is_tracing
    made = model(source, *USUAL)
    made.inputs = inputs(2)
    trace(made)
    assert before == (
        torch.nn.Module.__call__,
        torch.autograd.Function.__dict__.get("apply"),
        torch.jit.is_tracing,
    )
