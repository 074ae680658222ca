"""Operations that are run one by one on a bench, away from the model: what stands in for a GPU here is a copy of
everything on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable

import pytest
import torch

from spillway_runner import devices, probe
from spillway_runner.costs import Clock
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.values import amount

MODELS = Path(__file__).parents[2] / "testdata"
COUNTED = ("id", "kind", "parameters", "buffers", "constants", "shape", "output_bytes", "activation_bytes", "flops")
IN_PLACE = """
import torch
from torch import nn

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.a(x)
        y.mul_(2).add_(self.shift)
        left, right = y.view(-1, 2, 2).transpose(1, 2).unbind(1)
        z = self.relu(self.b(torch.cat([left, right], 1).exp()))
        return z.tanh() * y.sigmoid() + z

def build():
    return Whole()

def data():
    return torch.rand(40, 3), torch.zeros(40, 4)

def loss(output, target):
    return (output - target).square().mean()
"""


def probed(**changes: Any) -> dict[str, Any]:
    request = {"batch": 8, "device": "cpu", "repeats": 1, "threads": 1, "training": True, "data": None}
    return probe.probe({**request, **changes})


def counted(found: dict[str, Any]) -> list[Any]:
    return [{key: row[key] for key in COUNTED} for row in found["ops"]] + found["edges"] + found["held"]


TRAINED = {"mlp": "points", "batchnorm": "points", "cnn": "images", "transformer": "words"}


@pytest.mark.parametrize(
    "function, data, precision",
    # of recurrent layers, oneDNN has none in bfloat16
    [(f, d, p) for f, d in TRAINED.items() for p in ("float32", "bfloat16")] + [("recurrent", "sequences", "float32")],
)
def test_operations_run_apart_hold_and_keep_the_same(function: str, data: str, precision: str) -> None:
    what = {"file": str(MODELS / "training.py"), "function": function, "data": data, "precision": precision}
    together, apart = probed(**what), probed(**what, apart=True)
    assert counted(apart) == counted(together)
    assert apart["model"] == together["model"]
    assert apart["forward"] > 0 and apart["backward"] > 0


def test_what_writes_in_place_and_views_are_followed(source: Callable[[str], Source]) -> None:
    path = source(IN_PLACE).path
    together, apart = (probed(file=path, function="build", apart=there) for there in (False, True))
    assert counted(apart) == counted(together)


def test_bfloat16_is_measured_as_such() -> None:
    what = {"file": str(MODELS / "training.py"), "function": "mlp", "data": "points", "apart": True, "batch": 64}
    single, half = (probed(**what, precision=p) for p in ("float32", "bfloat16"))
    sizes = [[row["output_bytes"] for row in found["ops"] if row["kind"] == "Linear"] for found in (single, half)]
    assert sizes[0] == [2 * size for size in sizes[1]]
    assert [row["parameters"] for row in single["ops"]] == [row["parameters"] for row in half["ops"]]
    assert single["held"] == half["held"], "parameters stay float32"


def test_a_model_larger_than_its_device_is_measured_one_by_one() -> None:
    what = {"file": str(MODELS / "training.py"), "function": "mlp", "data": "points", "apart": True}
    whole = probed(**what)
    small = probed(**what, memory=whole["parameter_bytes"])
    assert counted(small) == counted(whole)
    assert (small["forward"], small["backward"]) == (0, 0)
    assert all(row["forward"] > 0 for row in small["ops"] if row["kind"] == "Linear")


def test_an_operation_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(probe, "warm_up", lambda: None)
    monkeypatch.setattr(torch.nn.Linear, "forward", full)
    with pytest.raises(Refusal, match="operation .* alone does not fit on cpu with 8 samples") as caught:
        probed(file=str(MODELS / "training.py"), function="mlp", data="points", apart=True)
    assert caught.value.fields["kind"] == "memory"
    assert "more micro-batches" in caught.value.fields["hint"]


def test_a_clock_waits_for_its_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: waited.append(device))
    clock = Clock(torch.device("cpu"))
    clock.time(lambda: None)
    assert waited == []
    monkeypatch.setattr("spillway_runner.costs.measure", lambda *_: (None, 0.0, 0.0))
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: None)
    Clock(torch.device("cuda:1")).time(lambda: None)
    assert waited == [torch.device("cuda:1")] * 2


@pytest.mark.parametrize(
    "built, count, message, hint",
    [
        (None, 0, "it is built without CUDA", "a torch with CUDA"),
        ("12.4", 0, "no CUDA device at all", "driver"),
        ("12.4", 2, "it finds 2", "cuda:0 to cuda:1"),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    built: str | None, count: int, message: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    for name in ("cuda:2", "cuda:128", "cuda:256"):
        with pytest.raises(Refusal, match=f"no device {name}: .*{message}") as caught:
            devices.prepare(name)
    assert caught.value.fields["kind"] == "device"
    assert hint in caught.value.fields["hint"]


def test_a_device_is_used_alone_and_as_far_as_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda d: done.append(("set", d)))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda d: type("Properties", (), {"total_memory": 1000 if d.index else 1})
    )
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part, d: done.append(("fraction", part, d))
    )
    device = devices.prepare("cuda:1", 250)
    assert done == [("set", device), ("fraction", 0.25, device)]
    assert devices.prepare("cuda") == torch.device("cuda:0"), "one that nobody numbered is the first"
    assert done[2:] == [("set", torch.device("cuda:0"))]


def test_rates_of_copies_are_measured() -> None:
    (found,) = devices.survey({"devices": ["cpu"]})
    assert found["name"] == "cpu"
    assert all(1e6 < found[way] < 1e14 for way in ("out", "in", "copy", "save"))


@pytest.mark.parametrize(
    "capability, hip, lacks",
    [((7, 5), None, True), ((8, 0), None, False), ((9, 0), None, False), ((0, 0), "6.1", False)],
)
def test_whether_a_gpu_computes_in_bfloat16_is_surveyed(
    capability: tuple[int, int], hip: str | None, lacks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", hip, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert devices.lacks_bfloat16(torch.device("cuda:0")) == lacks


@pytest.mark.parametrize(
    "samples, fixed, needed, most, want",
    [(8, 100, 500, 300, 4), (8, 100, 500, 150, 1), (8, 100, 500, 100, 0), (8, 100, 100, 50, 0), (8, 100, 500, 499, 7)],
)
def test_what_would_fit_is_what_is_left_beside_the_parameters(
    samples: int, fixed: int, needed: int, most: int, want: int
) -> None:
    assert devices.fitting(samples, fixed, needed, most) == want


def test_what_an_allocation_asked_for_is_read() -> None:
    assert (
        devices.tried(RuntimeError("CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 79.15 GiB total")) == 3 << 29
    )
    assert devices.tried(RuntimeError("Tried to allocate 20.00 MiB.")) == 20 << 20
    assert devices.tried(RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")) == 0


def test_sizes_are_for_people() -> None:
    assert [amount(n) for n in (0, 512, 1023, 1536, 3 << 29, 5 << 40)] == [
        "0 B",
        "512 B",
        "1023 B",
        "1.5 KiB",
        "1.5 GiB",
        "5120 GiB",
    ]
