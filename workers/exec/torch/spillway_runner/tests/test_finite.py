"""What is said of the first tensor that is not finite."""

from __future__ import annotations

import math
from typing import Any, Callable

import pytest
import torch
from torch import nn

from spillway_runner.finite import Watch, odd, user_line


def watched(run: Callable[[], Any]) -> str:
    """What is found in run, and in the backward pass of what it returns."""
    watch = Watch(lambda: ("here", user_line(__file__)), "step 3, micro-batch 1")
    with watch:
        value = run()
    if watch.found is None and isinstance(value, torch.Tensor) and value.requires_grad:
        value.backward()
    return "" if watch.found is None else watch.found.fields["message"]


def test_counts_are_told_by_kind() -> None:
    t = torch.tensor([math.nan, math.inf, -math.inf, -math.inf, 0.0])
    assert str(odd(t)) == "1 nan and 1 inf and 2 -inf of 5 values"
    assert str(odd(t.to(torch.bfloat16))) == str(odd(t))
    assert str(odd(torch.tensor([complex(math.inf, 0), complex(0, math.nan)]))) == "1 nan and 1 inf of 2 values"
    assert str(odd(t.to_sparse())) == str(odd(t)).replace("of 5", "of 4")
    for finite in (torch.zeros(0), torch.ones(2), torch.ones(2, dtype=torch.int64), None, "nan"):
        assert not odd(finite)


@pytest.mark.skipif(not hasattr(torch, "float8_e4m3fn"), reason="this torch has no numbers of eight bits")
def test_numbers_of_eight_bits_are_counted() -> None:
    assert str(odd(torch.tensor([math.nan, 1.0]).to(torch.float8_e4m3fn))) == "1 nan of 2 values"


@pytest.mark.parametrize(
    ("what", "run"),
    [
        ("log gives 1 -inf of 2 values", lambda: torch.log(torch.tensor([0.0, 1.0]))),
        ("div gives 1 nan of 1 values", lambda: torch.div(torch.zeros(1), torch.zeros(1))),
        ("exp gives 1 inf of 1 values", lambda: torch.full((1,), 1e3).exp().log().mul(0)),
        ("softmax gives 2 nan of 4 values", lambda: torch.tensor([[-math.inf] * 2, [0.0, 1.0]]).softmax(1)),
        ("linear gives 1 inf of 1 values", lambda: nn.functional.linear(torch.ones(1, 2), torch.full((1, 2), 3e38))),
    ],
)
def test_the_first_function_that_gives_it_is_told(what: str, run: Callable[[], Any]) -> None:
    assert watched(run) == f"operation here: {what}, the first in the forward pass of step 3, micro-batch 1"


def test_masks_of_attention_are_not_told() -> None:
    def attention() -> Any:
        mask = nn.Transformer.generate_square_subsequent_mask(4)
        query = torch.randn(1, 4, 8, requires_grad=True)
        scores = (query @ query.transpose(1, 2) + mask).softmax(-1)
        more = scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -math.inf).softmax(-1)
        return nn.MultiheadAttention(8, 2, batch_first=True)(query, query, more @ query, attn_mask=mask)[0].sum()

    assert watched(attention) == ""


def test_memory_that_nobody_filled_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = torch.empty

    def unlucky(*shape: int) -> torch.Tensor:
        with torch._C.DisableTorchFunction():
            return empty(*shape).fill_(math.nan)

    unlucky.__name__ = "empty"
    watch = Watch(lambda: ("here", ""), "")
    monkeypatch.setattr(torch, "empty", lambda *shape: watch.__torch_function__(unlucky, (), shape))
    assert odd(torch.empty(3)).nan == 3 and watch.found is None


@pytest.mark.parametrize(
    ("what", "run"),
    [
        ("sqrt has 1 inf of 1 values", lambda x: (x * 0).sqrt()),
        ("pow has 1 inf of 1 values", lambda x: torch.where(x < 2, (x * 0).pow(0.5), x)),
        ("linear has 1 inf of 1 values", lambda x: nn.functional.linear(x * 1e-30, torch.full((1, 1), 3e38)) * 1e30),
    ],
)
def test_the_first_gradient_is_told_with_what_it_belongs_to(what: str, run: Callable[[Any], Any]) -> None:
    x = torch.ones(1, requires_grad=True)
    message = f"operation here: the gradient of {what}, the first in the backward pass of step 3, micro-batch 1"
    assert watched(lambda: run(x).sum()) == message
