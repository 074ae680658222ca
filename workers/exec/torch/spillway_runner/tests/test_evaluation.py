"""What an evaluation takes from validation data, and what it leaves behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from spillway_runner import holding
from spillway_runner.ahead import anonymous
from spillway_runner.arena import STRETCH, Arena
from spillway_runner.evaluation import Evaluation
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.train import Part

FILE = Path(__file__).parents[2] / "testdata" / "validated.py"
MODEL = "import torch\nfrom torch import nn\ndef build():\n    return nn.Linear(6, 2)\n"
REQUEST = {
    "function": "build",
    "data": "",
    "device": "cpu",
    "threads": 1,
    "memory": 0,
    "precision": "float32",
    "batch": 8,
    "micro_batches": 1,
    "recompute": False,
    "in_flight": 2,
    "seed": 3,
    "optimizer": {},
    "lent": None,
}
CUT = ["x one norm dropout dropout_1 add two", "relu frozen drop last loss"]


class Parts:
    """A model in parts, in this process, which share memory as processes do."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path, cut: list[str] | None = None, **more: Any) -> None:
        self.file = anonymous()
        os.ftruncate(self.file, STRETCH * 3)
        monkeypatch.setattr(holding, "warm_up", lambda: None)
        monkeypatch.setattr(holding, "Arena", lambda part, pinned: Arena(part, pinned, self.file))
        parts = [names.split() for names in cut] if cut else [None]
        request = {**REQUEST, **more, "file": str(path), "parts": parts}
        self.parts = [Part({**request, "index": 0, "example": ""})]
        sizes = self.evaluation(0).description(self.parts[0])["sizes"]
        later = {**request, "example": self.parts[0].example, "validation_sizes": sizes}
        self.parts += [Part({**later, "index": i}) for i in range(1, len(parts))]

    def evaluation(self, part: int) -> Evaluation:
        found = self.parts[part].evaluation
        assert found is not None
        return found

    def evaluate(self) -> dict[str, Any]:
        number, first = 0, 0
        while True:
            read = self.evaluation(0).fetch(self.parts[0], {"piece": number, "window": 2})
            if read is None:
                break
            made: dict[str, Any] = {}
            for i, part in enumerate(self.parts):
                request = {"piece": number, "first": first, "samples": read["samples"], "from": made}
                message = self.evaluation(i).evaluate(part, {**request, "batch": read.get("message")})
                made = {**made, str(i): message}
            number, first = number + 1, first + read["samples"]
        last = len(self.parts) - 1
        found = self.evaluation(last).means(self.parts[last])
        for i, part in enumerate(self.parts):
            self.evaluation(i).end(part, {"numbers": {}})
        return found


def test_evaluations_hold_on_to_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Parts(monkeypatch, FILE, CUT)
    first = halves.evaluate()
    assert first["samples"] == 23
    held = [(part.arena.end, sorted(part.arena.mapped)) for part in halves.parts]
    for _ in range(3):
        assert halves.evaluate() == first
    assert [(part.arena.end, sorted(part.arena.mapped)) for part in halves.parts] == held
    slots = {slot.at for slot in halves.evaluation(0).slots.values()}
    assert slots and not slots & set(halves.parts[1].arena.mapped)


ONCE = """
def data():
    return torch.ones(16, 6), torch.zeros(16).long()
class Once(torch.utils.data.IterableDataset):
    passes = 0
    def __iter__(self):
        Once.passes += 1
        return iter([(torch.ones(6), torch.tensor(1))] * 5 if Once.passes <= 2 else [])
def validation():
    return Once()
"""


def test_data_that_have_come_to_an_end_are_no_loss_of_zero(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Parts(monkeypatch, Path(source(MODEL + ONCE).path))
    assert whole.evaluate()["samples"] == 5
    with pytest.raises(Refusal) as caught:
        whole.evaluate()
    assert caught.value.fields["kind"] == "validation"
    assert "has no samples, and had some when the training began" in caught.value.fields["message"]


HANGS = """
import time
def data():
    return torch.ones(16, 6), torch.zeros(16).long()
class Hangs:
    def __len__(self):
        return 12
    def __getitem__(self, i):
        if i == 9:
            time.sleep(3600)
        return torch.ones(6), torch.tensor(1)
def validation():
    return Hangs()
"""


def test_a_piece_that_hangs_is_told_with_its_line(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = source(MODEL + HANGS)
    whole = Parts(monkeypatch, Path(file.path))
    validation = whole.parts[0].validation
    assert validation is not None and validation.data.patience == 600
    validation.data.patience = 2.0
    with pytest.raises(Refusal) as caught:
        whole.evaluate()
    told = caught.value.fields
    assert told["message"] == (
        "the validation data: sample 9 cannot be read: TooLong: it takes more than 2 s (--data-timeout)"
    )
    assert told["kind"] == "validation" and told["at"] == f"{file.path}:14"


def test_the_time_of_a_piece_is_that_of_a_batch(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Parts(monkeypatch, Path(source(MODEL + HANGS).path), data_timeout=7.5)
    validation = whole.parts[0].validation
    assert validation is not None and validation.data.patience == 7.5


IGNORED = """
def data():
    return torch.ones(16, 6), torch.zeros(16).long()
def validation():
    draw = torch.Generator().manual_seed(1)
    targets = torch.randint(0, 2, (20,), generator=draw)
    targets[8:16] = -100
    return torch.randn(20, 6, generator=draw), targets
def metrics(output, target):
    return {"accuracy": (output.argmax(-1) == target)[target != -100].float().mean()}
"""


def test_a_piece_without_a_target_that_counts_counts_for_nothing(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Parts(monkeypatch, Path(source(MODEL + IGNORED).path))  # pieces of eight samples
    found = whole.evaluate()
    assert found["samples"] == 20
    part = whole.parts[0]
    assert part.validation is not None
    pieces = list(part.validation.pieces())
    inputs = torch.cat([inputs[0] if isinstance(inputs, list) else inputs for inputs, _ in (pieces[0], pieces[2])])
    target = torch.cat([target for _, target in (pieces[0], pieces[2])])
    weight, bias = part.parameters["weight"], part.parameters["bias"]
    want = torch.nn.functional.cross_entropy(inputs @ weight.t() + bias, target)
    assert float(found["loss"]) == pytest.approx(want.item(), rel=1e-5)
    assert 0 <= float(found["metrics"]["accuracy"]) <= 1


def test_validation_data_without_any_target_that_counts_are_refused(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Parts(monkeypatch, Path(source(MODEL + IGNORED.replace("[8:16]", "[:]")).path))
    with pytest.raises(Refusal) as caught:
        whole.evaluate()
    assert caught.value.fields["message"] == "every target of the validation data is -100, which losses leave out"


UNKNOWN = """
def data():
    return torch.ones(16, 6), torch.zeros(16, 2)
def validation():
    targets = torch.zeros(20, 2)
    targets[13, 1] = float("nan")
    return torch.ones(20, 6), targets
"""


def test_a_target_that_is_no_number_is_told(source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refusal) as caught:
        Parts(monkeypatch, Path(source(MODEL + UNKNOWN).path)).evaluate()
    told = caught.value.fields
    assert told["kind"] == "validation"
    assert told["message"] == ("the target of sample 13 of the validation data, counted from 0, has 1 nan of 2 values")


def test_an_evaluation_that_is_left_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Parts(monkeypatch, FILE)
    want = whole.evaluate()
    part = whole.parts[0]
    read = whole.evaluation(0).fetch(part, {"piece": 0, "window": 2})
    assert read is not None
    whole.evaluation(0).evaluate(part, {"piece": 0, "first": 0, "samples": read["samples"], "from": {}})
    whole.evaluation(0).end(part, {})
    assert whole.evaluate() == want
