"""When a part waits for its device. The device is the CPU; who waits for it is written down."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from spillway_runner import holding, passes, probe
from spillway_runner.arena import Arena
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.train import Part

REQUEST = {
    "index": 0,
    "parts": [None],
    "batch": 4,
    "micro_batches": 2,
    "recompute": False,
    "in_flight": 1,
    "seed": 3,
    "optimizer": {},
    "lent": None,
    "example": "",
}
MODEL = {
    "file": str(Path(__file__).parents[2] / "testdata" / "training.py"),
    "function": "mlp",
    "data": "points",
    "device": "cpu",
    "threads": 1,
    "memory": 0,
    "precision": "float32",
}


class Within(Arena):
    """Memory that parts of one process share."""

    ranges: dict[int, Any]

    def __init__(self, part: int, _: bool) -> None:
        self.end, self.pinned, self.mapped = part << 40, False, self.ranges

    def map(self, at: int, count: int) -> Any:
        return self.ranges.setdefault(at, bytearray(count))

    def give_back(self, at: int, count: int) -> None:
        self.ranges.pop(at, None)


class Parts:
    """A model in parts, of one micro-batch, and what they waited for in their last call."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch, recompute: bool = False) -> None:
        self.waits: list[str] = []
        monkeypatch.setattr(holding, "warm_up", lambda: None)
        monkeypatch.setattr(holding, "Arena", type("Shared", (Within,), {"ranges": {}}))
        monkeypatch.setattr(passes, "wait", lambda _: self.waits.append("device"))
        monkeypatch.setattr(passes, "mark", self.mark)
        found = probe.probe({**MODEL, "batch": 8, "repeats": 1, "training": True})
        names = [row["id"] for row in found["ops"]]
        cuts = [len(names) * i // count for i in range(count + 1)]
        request = {
            **MODEL,
            "parts": [names[a:b] for a, b in zip(cuts, cuts[1:])] if count > 1 else [None],
            "batch": 8,
            "micro_batches": 1,
            "recompute": recompute,
            "in_flight": 1,
            "seed": 3,
            "optimizer": {},
            "lent": None,
        }
        self.parts = [Part({**request, "index": 0, "example": ""})]
        self.parts += [Part({**request, "index": i, "example": self.parts[0].example}) for i in range(1, count)]

    def mark(self, _: torch.device) -> Callable[[], None]:
        return lambda: self.waits.append("copies")

    def pass_all(self) -> list[list[str]]:
        """Both passes of a batch. Returns what each part waited for in its backward pass."""
        batch = self.call(0, "batch")["micro_batches"][0]
        messages: dict[str, Any] = {}
        for i, part in enumerate(self.parts):
            read = {str(j): messages[str(j)] for j in part.reads}
            messages[str(i)] = self.call(i, "forward", **{"from": read, "batch": batch})
        replies: dict[int, dict[int, Any]] = {}
        waits: list[list[str]] = [[] for _ in self.parts]
        for i in reversed(range(len(self.parts))):
            read = {str(j): r[i] for j, r in replies.items() if i in r}
            replies[i] = self.call(i, "backward", cotangents=read)
            waits[i] = list(self.waits)
        return waits

    def call(self, part: int, name: str, **fields: Any) -> Any:
        self.waits.clear()
        return getattr(self.parts[part], name)({"micro_batch": 0, "step": 0, **fields})


def test_a_pass_that_is_measured_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Parts(1, monkeypatch, recompute=True)
    whole.call(0, "batch")
    for name in ("forward", "again", "backward"):
        whole.call(0, name, wait=True)
        assert whole.waits == ["device"], name


def test_a_pass_that_is_not_measured_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Parts(1, monkeypatch, recompute=True)
    whole.call(0, "batch")
    for name in ("forward", "again", "backward"):
        whole.call(0, name)
        assert whole.waits == [], name


def test_parts_train(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, halves = Parts(1, monkeypatch), Parts(2, monkeypatch)
    for split in (whole, halves):
        split.pass_all()
        for part in split.parts:
            part.step(1.0)
    learnt = {n: t for part in halves.parts for n, t in part.parameters.items()}
    assert learnt.keys() == whole.parts[0].parameters.keys()
    assert all(torch.equal(t, learnt[n]) for n, t in whole.parts[0].parameters.items())


def test_a_backward_pass_waits_for_what_it_received_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Parts(1, monkeypatch).pass_all() == [[]]
    # The first part has received cotangents; who replied has waited in the memory that they share.
    assert Parts(3, monkeypatch).pass_all() == [["copies"], [], []]


def test_a_part_that_replies_nothing_waits_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = Parts(2, monkeypatch)
    monkeypatch.setattr(Part, "reply", lambda *_: {})
    assert halves.pass_all() == [["copies"], ["device"]]


def test_the_peak_of_a_gpu_is_what_its_share_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = Parts(1, monkeypatch).parts
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 300)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 200)
    part.device = torch.device("cuda:0")
    assert part.usage()["peak"] == 300


@pytest.mark.parametrize(
    "text, kind, sure",
    [
        ("CUDA error: device-side assert triggered", "run", False),
        ("CUDA error: out of memory", "memory", True),
        ("mat1 and mat2 shapes cannot be multiplied", "run", True),
    ],
)
def test_the_place_of_an_error_that_a_device_reports_late_is_not_sure(
    text: str, kind: str, sure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Parts(1, monkeypatch)
    whole.call(0, "batch")

    def fails(*_: Any) -> None:
        raise RuntimeError(text)

    monkeypatch.setattr(torch.nn.Linear, "forward", fails)
    with pytest.raises(Refusal) as caught:
        whole.call(0, "forward")
    told = caught.value.fields
    assert told["kind"] == kind
    assert ("or at an earlier one" in told["message"]) != sure
    assert ("CUDA_LAUNCH_BLOCKING=1" in told["hint"]) != sure


GIB = 1 << 30


@pytest.mark.parametrize(
    "held, free, hint",
    [
        # 4 GiB whatever the samples, 5 for 16 of them, and 8 in all.
        (7 * GIB, GIB, "cut the batch into 6 micro-batches: 12 samples would fit, not 16, or recompute activations"),
        (4 * GIB, 0, "no micro-batch is small enough for this part, or recompute activations"),
    ],
)
def test_who_is_out_of_a_gpus_memory_is_told_the_layer_and_what_would_fit(
    held: int, free: int, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = Parts(1, monkeypatch).parts[0]
    part.batch_samples, part.micro_batches, part.memory = 64, 4, 0
    part.optimizer = torch.optim.Adam(torch.nn.Linear(1, 1).parameters())
    taken = {"parameters": GIB, "gradients": GIB, "optimizer": 0, "buffers": 0}
    part.usage = lambda: taken  # type: ignore[method-assign]
    part.device, part.keyed.layer, part.places = torch.device("cuda", 1), "second", {"second": "model.py:7"}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: held)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: held)
    told = part.failed(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), 1).fields
    assert (told["kind"], told["at"]) == ("memory", "model.py:7")
    assert told["hint"].startswith(hint)
    assert told["message"].startswith("part 0 on cuda:1 is out of memory at operation second, with micro-batches of 16")


LINES = """
import torch
from torch import nn

class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(1, 1)
        self.register_buffer("turns", torch.ones(1, dtype=%s), persistent=False)

    def forward(self, x):
        for i in range(int(x.shape[1])):  # torch.fx stops here
            x = x + i
        return self.one(x.sum(1, keepdim=True) * self.turns.real.float())

def build():
    return Sum()

def data():
    lengths = [3, 5]
    return [(torch.ones(4, n), torch.ones(4, 1)) for n in lengths]
"""


def part_of(text: str, source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch) -> Part:
    monkeypatch.setattr(holding, "warm_up", lambda: None)
    monkeypatch.setattr(holding, "Arena", type("Shared", (Within,), {"ranges": {}}))
    file = source(text)
    return Part({**MODEL, **REQUEST, "file": file.path, "function": "build", "data": ""})


def test_a_batch_of_another_shape_than_the_graph_is_refused(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    part = part_of(LINES % "torch.complex64", source, monkeypatch)
    part.batch({"step": 0})
    part.forward({"step": 0, "micro_batch": 0})
    with pytest.raises(Refusal, match=r"x of step 1 is \(4, 5\), and the model was traced with samples of") as caught:
        part.batch({"step": 1})
    assert caught.value.fields["hint"].startswith("pad all batches to one length in data()")
    found, _ = part.snapshot()
    assert found["buffer/turns"].dtype == torch.complex64


def test_a_buffer_that_no_checkpoint_can_hold_is_refused_before_the_training(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refusal, match="turns is of torch.complex128, which a checkpoint cannot hold"):
        part_of(LINES % "torch.complex128", source, monkeypatch)


def test_a_state_beside_the_tensors_is_refused_before_the_training(
    source: Callable[[str], Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (LINES % "torch.complex64").replace(
        "class Sum(nn.Module):", "class Sum(nn.Module):\n    def get_extra_state(self):\n        return %s\n"
    )
    part_of(text % "None", source, monkeypatch)
    with pytest.raises(Refusal, match=r"the model \(Sum\) has a state beside its tensors, by get_extra_state"):
        part_of(text % "{'step': 3}", source, monkeypatch)
