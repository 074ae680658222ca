from __future__ import annotations

from collections import OrderedDict, namedtuple

import torch

from spillway_runner.values import described_tensor, each, shape, shapes, size, tensors

Pair = namedtuple("Pair", ["first", "second"])


def test_each_keeps_the_form_of_what_holds_tensors() -> None:
    one = torch.ones(1)
    value = {"a": [one, (one, 2)], "b": Pair(one, "x"), "c": slice(one, None, one), "d": OrderedDict(e=one)}
    got = each(value, lambda t: t + 1)
    assert got["a"][0].item() == 2 and got["a"][1][0].item() == 2 and got["a"][1][1] == 2
    assert isinstance(got["a"][1], tuple) and isinstance(got["b"], Pair)
    assert got["b"].first.item() == 2 and got["b"].second == "x"
    assert got["c"].start.item() == 2 and got["c"].stop is None and got["c"].step.item() == 2
    assert got["d"] is value["d"]  # only plain dicts are entered
    assert one.item() == 1


def test_tensors_come_in_order() -> None:
    value = {"a": [torch.tensor(0), (torch.tensor(1), "x")], "b": torch.tensor(2)}
    assert [t.item() for t in tensors(value)] == [0, 1, 2]


def test_size_counts_elements_and_one_number_for_all_else() -> None:
    assert size(torch.zeros(3, 2)) == 24
    assert size(torch.zeros(3, dtype=torch.bool)) == 3
    assert size([torch.zeros(1), {"a": 1, "b": 2.5, "c": "text"}]) == 4 + 16


def test_shapes_are_written_for_people() -> None:
    assert shape(torch.zeros(3, 2)) == "(3, 2)"
    assert shape((torch.zeros(3), 7)) == "[(3), 7]"
    assert shape("x" * 100) == "'" + "x" * 39
    assert shapes({"x": torch.zeros(3), "y": [torch.zeros(()), 1]}) == "{x: (3), y: ((), int)}"
    assert described_tensor(torch.zeros(2, dtype=torch.int64)) == "(2) of int64"
    assert described_tensor(3.0) == "a float"
