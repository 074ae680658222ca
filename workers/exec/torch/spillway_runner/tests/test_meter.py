"""What operations take while they work."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import torch
from torch import nn

from spillway_runner import probe
from spillway_runner.costs import weigh
from spillway_runner.meter import Meter
from spillway_runner.source import Source

CPU = torch.device("cpu")
NUMBER = 4  # bytes


def taken(module: nn.Module, *inputs: torch.Tensor) -> dict[str, int]:
    wrt = [*module.parameters(), *(t for t in inputs if t.requires_grad)]
    return weigh(Meter(CPU), lambda p: module(*p), wrt, lambda: inputs)


def test_what_is_made_and_let_go_is_counted_while_it_is_there() -> None:
    def work() -> torch.Tensor:
        first = torch.zeros(1 << 16)
        second = first + 1
        del first
        return second[:10] + torch.ones(10)

    value, most = Meter(CPU).most(work)
    assert value.shape == (10,)
    assert 2 * NUMBER << 16 <= most < 2 * NUMBER * ((1 << 16) + 100)


def test_a_product_makes_its_output_and_the_gradients_of_what_it_has() -> None:
    rows, width, out = 32, 256, 128
    found = taken(nn.Linear(width, out), torch.rand(rows, width, requires_grad=True))
    made = {"forward_bytes": rows * out, "backward_bytes": rows * width + width * out + out}
    for what, numbers in made.items():
        # libraries may have a copy of a factor or of the result besides
        assert numbers * NUMBER <= found[what] <= 2 * numbers * NUMBER, what


def test_what_needs_no_gradient_takes_nothing_back() -> None:
    found = taken(nn.ReLU(), torch.rand(1000))
    assert found == {"forward_bytes": 1000 * NUMBER, "backward_bytes": 0, "library_bytes": 0}


def test_each_operation_of_a_probe_says_what_it_takes() -> None:
    model = Path(__file__).parents[2] / "testdata" / "training.py"
    request = {"file": str(model), "function": "mlp", "data": "points", "batch": 8, "device": "cpu", "threads": 1}
    found = probe.probe({**request, "repeats": 1, "training": True})
    for row in found["ops"]:
        if row["kind"] == "placeholder":
            assert row["forward_bytes"] == row["backward_bytes"] == 0
        elif row["kind"] == "Linear":
            assert row["forward_bytes"] >= row["output_bytes"] > 0
            assert row["backward_bytes"] > 0, row


def test_the_data_of_a_training_is_counted(source: Callable[[str], Source]) -> None:
    rows, width = 1 << 14, 1 << 10
    file = source(
        "import torch\n"
        f"def data(): return torch.ones({rows}, {width}), torch.ones({rows}, 1)\n"
        f"def model(): return torch.nn.Linear({width}, 1)\n"
        "def loss(output, target): return (output - target).square().mean()\n"
    )
    request = {"file": file.path, "function": "model", "data": None, "batch": 8, "device": "cpu", "threads": 1}
    found = probe.probe({**request, "repeats": 1, "training": True})
    size = rows * width * NUMBER
    assert size <= found["data_bytes"] < 2 * size
