from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from spillway_runner.arrays import numpy
from spillway_runner.data import Data, Order
from spillway_runner.readers import is_number, read_csv, read_npz, read_pt
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.values import each, tensors

MakeSource = Callable[[str], Source]

KINDS = """
import random
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Numbers(Dataset):
    def __len__(self):
        return 11
    def __getitem__(self, i):
        return torch.rand(2), i

class Endless(IterableDataset):
    def __iter__(self):
        return ((torch.rand(2), random.randrange(100)) for _ in range(11))

def data(kind):
    return {
        "rows": lambda: (torch.arange(11.0)[:, None], torch.arange(11)),
        "samples": Numbers,
        "loader": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True),
        "processes": lambda: DataLoader(Numbers(), batch_size=4, num_workers=2),
        "iterable": Endless,
        "generator": lambda: ((torch.rand(4), torch.full((4,), random.randrange(100))) for _ in range(2)),
    }[kind]()
"""


BROKEN = """
class Broken:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return [0, 1, None.x][i]

data = Broken
"""


def batch(data: Data, step: int) -> list[list[float]]:
    return [t.tolist() for t in tensors(list(data.batch(step)))]


def test_a_loader_with_more_processes_than_a_part_has_cores_is_taken_without_a_word(
    source: MakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="This DataLoader")
        assert len(batch(Data(source(KINDS), "processes", 4, 0), 0)) == 2


# The order.


def test_an_epoch_is_a_permutation_and_the_next_is_another() -> None:
    order = Order(7, 10, 3)
    assert order.steps_per_epoch == 3
    epochs = [[n for step in range(3) for n in order.numbers(3 * epoch + step).tolist()] for epoch in range(2)]
    for epoch in epochs:
        assert len(set(epoch)) == 9 and set(epoch) <= set(range(10))
    assert epochs[0] != epochs[1]


def test_the_order_is_of_its_seed_alone() -> None:
    forwards = [Order(7, 10, 3).numbers(step).tolist() for step in range(7)]
    order = Order(7, 10, 3)
    backwards = [order.numbers(step).tolist() for step in reversed(range(7))]
    assert forwards == backwards[::-1]
    assert [Order(8, 10, 3).numbers(step).tolist() for step in range(7)] != forwards


# Batches.


@pytest.mark.parametrize("kind", ["rows", "samples", "loader", "iterable", "generator"])
def test_a_step_has_its_batch_whatever_was_asked_before(kind: str, source: MakeSource) -> None:
    file = source(KINDS)
    one, other = Data(file, kind, 4, 7), Data(file, kind, 4, 7)
    batches = [batch(one, step) for step in range(7)]
    for step in (5, 6, 1, 1, 0, 3, 2, 4):
        assert batch(other, step) == batches[step]
    one.example(6)
    assert batch(one, 3) == batches[3]
    assert other.steps_per_epoch == 2
    assert batches[0] != batches[2]
    assert batch(Data(file, kind, 4, 8), 0) != batches[0]


def test_an_example_starts_again_where_there_are_too_few_samples(source: MakeSource) -> None:
    data = Data(source("import torch\ndef data(): return torch.arange(3.0)"), None, None, 0)
    assert data.example(5)[0].tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize(
    ("returned", "inputs", "target"),
    [
        ("a", [[0, 0]], None),
        ("(a, b)", [[0, 0]], [1, 1]),
        ("((a, c), b)", [[0, 0], [2, 2]], [1, 1]),
        ("({'x': a, 'y': c}, b)", {"x": [0, 0], "y": [2, 2]}, [1, 1]),
        ("{'inputs': {'x': a}, 'targets': b}", {"x": [0, 0]}, [1, 1]),
    ],
)
def test_inputs_and_target_are_told_apart(returned: str, inputs: Any, target: Any, source: MakeSource) -> None:
    text = "import torch\na, b, c = (torch.full((2,), n) for n in (0, 1, 2))\ndef data(): return " + returned
    got = each(Data(source(text), None, 2, 0).batch(0), torch.Tensor.tolist)
    assert got == (inputs, target)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def data(): pass", "data() returns a NoneType"),
        ("def data(): return torch.rand(4), torch.rand(5)", "the data is ((4), (5))"),
        ("def data(): return torch.rand(3)", "the data has 3 samples, fewer than one batch of 4"),
        ("def data(path): return path", "data(path) needs a path, and none was given"),
        ("", "there is no data"),
    ],
)
def test_what_is_no_data_is_refused(text: str, message: str, source: MakeSource) -> None:
    with pytest.raises(Refusal) as caught:
        Data(source("import torch\n" + text), "", 4, 0)
    assert caught.value.fields["kind"] == "data"
    assert caught.value.fields["message"] == message


def test_a_sample_that_cannot_be_read_is_named_with_the_line(source: MakeSource) -> None:
    data = Data(source(BROKEN), None, 4, 0)
    with pytest.raises(Refusal, match="sample . cannot be read: AttributeError") as caught:
        data.batch(0)
    assert caught.value.fields["at"].endswith(".py:6")


# Files.


def test_a_csv_has_its_target_in_the_last_column(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("a,b,class\n1,2.5,0\n\n3,4,+1\n")
    inputs, target = read_csv(str(path))
    assert inputs.tolist() == [[1, 2.5], [3, 4]]
    assert target.tolist() == [0, 1] and target.dtype == torch.int64
    path.write_text("1,2\n3,4.5\n")
    inputs, target = read_csv(str(path))
    assert inputs.tolist() == [[1], [3]]
    assert target.tolist() == [[2], [4.5]] and target.dtype == torch.float32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "there are no numbers"),
        ("a,b\n", "there are no numbers"),
        ("1,2\n3,x\n", "row 2 of numbers is 3,x"),
        ("1,2\n3,4,5\n", "row 2 of numbers is 3,4,5"),
        ("1\n2\n", "row 1 of numbers is 1"),
    ],
)
def test_a_csv_of_something_else_is_refused_with_its_row(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text(text)
    with pytest.raises(Refusal) as caught:
        read_csv(str(path))
    assert caught.value.fields["message"] == message
    assert caught.value.fields["at"] == str(path)


@pytest.mark.skipif(numpy is None, reason="numpy is not installed")
def test_an_npz_has_x_and_y_or_its_first_two(tmp_path: Path) -> None:
    path = str(tmp_path / "arrays.npz")
    numpy.savez(path, other=[0], y=[1], x=[2])
    assert [a.tolist() for a in read_npz(path)] == [[2], [1]]
    numpy.savez(path, inputs=[3], targets=[4], more=[5])
    assert [a.tolist() for a in read_npz(path)] == [[3], [4]]


def test_a_pt_has_what_was_saved(tmp_path: Path) -> None:
    path = str(tmp_path / "tensors.pt")
    torch.save((torch.arange(3), torch.ones(3)), path)
    assert [t.tolist() for t in read_pt(path)] == [[0, 1, 2], [1, 1, 1]]


def test_a_number_is_what_float_reads() -> None:
    assert all(map(is_number, ("1", "-2.5e3", " 4 ", "nan")))
    assert not any(map(is_number, ("", "x", "1,5")))
