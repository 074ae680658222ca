from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from spillway_runner.forms import flatten, restore


def round_trip(value: Any) -> Any:
    """What another process makes of a value, of which the tensors come by number and the rest in JSON."""
    found: list[torch.Tensor] = []
    form = json.loads(json.dumps(flatten(value, found)))
    return restore(form, found.__getitem__)


@pytest.mark.parametrize(
    "value",
    [None, True, 3, 2.5, "text", (1, [2, (3,)]), {"a": {1: (2,)}, None: []}, torch.Size([2, 3]), {1, 2}, 1j, math.inf],
)
def test_a_value_without_tensors_arrives_as_it_was(value: Any) -> None:
    got = round_trip(value)
    assert got == value
    assert type(got) is type(value)


def test_nan_arrives() -> None:
    assert math.isnan(round_trip(math.nan))


def test_tensors_stay_out_of_the_form() -> None:
    one, two = torch.ones(2), torch.zeros(3)
    found: list[torch.Tensor] = []
    assert flatten({"a": (one, 7), "b": two}, found) == {
        "dict": [[{"value": "a"}, {"tuple": [0, {"value": 7}]}], [{"value": "b"}, 1]]
    }
    assert found[0] is one and found[1] is two
    got = round_trip({"a": (one, 7), "b": two})
    assert got["a"][0] is one and got["b"] is two
