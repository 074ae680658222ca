from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
from torch import fx, nn

from spillway_runner.model import Model
from spillway_runner.parts import LOSS, Split, add_loss
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.tracing import trace

# What chunk returns has two items; what first returns is read again at the end.
TEXT = """
import torch
from torch import nn

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(3, 6)

    def forward(self, x):
        y = self.first(x)
        halves = torch.chunk(y, 2, 1)
        return self.second(halves[0] * halves[1]) + y

def build():
    return Whole(), torch.ones(3, 4)

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x):
        return self.two(self.one(x).relu())

def tied():
    return Tied(), torch.ones(3, 4)
"""
OPERATIONS = ["first", "chunk", "getitem", "getitem_1", "mul", "second", "add"]


def traced(file: Source, function: str = "build") -> tuple[Model, fx.Graph]:
    model = Model(file, {"device": "cpu", "function": function, "batch": 3})
    graph, _ = trace(model)
    add_loss(graph, lambda output: output.sum())
    return model, graph


def split(file: Source, parts: list[list[str] | None], function: str = "build") -> Split:
    model, graph = traced(file, function)
    return Split(graph, model.module, parts, model.names())


@pytest.fixture
def file(source: Callable[[str], Source]) -> Source:
    return source(TEXT)


def owned(made: Split, part: int) -> list[str]:
    return [n.name for n, p in made.owner.items() if p == part]


def test_operations_have_the_lines_of_the_file(file: Source) -> None:
    _, graph = traced(file)
    lines = {n.name: n.meta["at"].rpartition(":")[2] for n in graph.nodes if n.name in OPERATIONS}
    assert lines == {"first": "11", "chunk": "12", **dict.fromkeys(OPERATIONS[2:], "13")}


def test_one_part_has_all(file: Source) -> None:
    assert owned(split(file, [None]), 0) == [*OPERATIONS, LOSS]


def test_the_last_part_has_the_loss(file: Source) -> None:
    made = split(file, [OPERATIONS[:5], OPERATIONS[5:]])
    assert owned(made, 0) == OPERATIONS[:5]
    assert owned(made, 1) == ["second", "add", LOSS]
    assert [[n.name for n in nodes] for nodes in made.exports] == [["first", "mul"], []]


def test_items_go_where_their_value_is(file: Source) -> None:
    made = split(file, [["first", "chunk"], OPERATIONS[2:]])
    assert owned(made, 0) == ["first", "chunk", "getitem", "getitem_1"]
    assert [n.name for n in made.exports[0]] == ["first", "getitem", "getitem_1"]


@pytest.mark.parametrize("cut", range(1, len(OPERATIONS)))
def test_parts_in_turn_compute_what_the_model_does(cut: int, file: Source) -> None:
    model, graph = traced(file)
    made = Split(graph, model.module, [OPERATIONS[:cut], OPERATIONS[cut:]], model.names())
    x = torch.rand(3, 4)
    entered: list[str] = []

    def enter(name: str) -> None:
        entered.append(name)

    exports: list[tuple[Any, ...]] = []
    value: Any = None
    for part in range(2):
        module, sources = made.module(part, enter, torch.device("cpu"))
        value = module(*(x if where == "batch" else exports[where][what] for where, what in sources))
        exports.append(value)
    assert torch.equal(value, model.module(x).sum())
    assert sorted(entered) == sorted([*OPERATIONS, LOSS])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([OPERATIONS[:3], [*OPERATIONS[3:], "third"]], "part 1 has an operation third, which the model has not"),
        ([OPERATIONS, ["add"]], "operation add is in part 0 and in part 1"),
        ([["first"], OPERATIONS[2:]], "operation chunk is in no part"),
        ([["mul", "second", "add"], OPERATIONS[:4]], "operation mul of part 0 reads getitem of part 1"),
        ([[*OPERATIONS, LOSS], []], "the loss is in part 0 of 2"),
    ],
)
def test_parts_that_do_not_fit_the_graph_are_refused(parts: list[list[str] | None], message: str, file: Source) -> None:
    with pytest.raises(Refusal) as caught:
        split(file, parts)
    assert caught.value.fields["kind"] == "split"
    assert caught.value.fields["message"] == message


def test_a_parameter_that_several_parts_read_is_tied_and_the_first_one_s(file: Source) -> None:
    assert split(file, [["one"], ["relu"], ["two"]], "tied").tied() == {"one.weight": [0, 2]}
    assert split(file, [["one", "relu", "two"]], "tied").tied() == {}


def test_a_digest_is_of_names_shapes_and_types(file: Source) -> None:
    model, _ = traced(file)
    digest = model.digest()
    nn.init.zeros_(model.module.first.weight)
    assert model.digest() == digest  # whatever the numbers
    model.module.first.double()
    assert model.digest() != digest
