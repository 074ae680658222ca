from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from spillway_runner import bits
from spillway_runner.arrays import numpy
from spillway_runner.bits import HASHED, HashBits, NumpyBits, fold, mixed, numbers, signed
from spillway_runner.dropout import KeyedDropout, Masked, sample_axis
from spillway_runner.refusal import Refusal
from spillway_runner.seeds import derived

CPU = torch.device("cpu")
needs_numpy = pytest.mark.skipif(numpy is None, reason="numpy is not installed")
# What checkpoints of all versions go on from: other numbers would train a model otherwise after an upgrade.
KEY = (11389994120458069501452259835625568513, 77962074340672907308637845965086828588)  # of 7, "order", 0
PCG64 = [[12456, 17202, 31339, -9430, 19600], [-22614, -30029, 8037, -32458, -24727]]  # of 1, "mask"; samples 2 and 3
HASH = [[692, 23258, 4467, 7727, -15277], [-30255, -3690, 29153, 2154, 24567]]


def lowbias32(x: int) -> int:
    """As its author has it, on numbers of 32 bits."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x ^= x >> shift
        x = x * factor & 0xFFFFFFFF
    return x ^ x >> 16


def test_keys_stay_the_same_numbers() -> None:
    assert derived(7, "order", 0) == KEY


def test_signed_is_the_low_half_in_twos_complement() -> None:
    assert [signed(n) for n in (0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32)] == [
        0,
        1,
        2**31 - 1,
        -(2**31),
        -1,
        0,
    ]


def test_fold_shifts_zeros_in() -> None:
    assert fold(torch.tensor([-1], dtype=torch.int32), 16).item() == signed(0xFFFF0000)


def test_mixed_is_lowbias32() -> None:
    given = [0, 1, 2, 0x12345678, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    got = mixed(torch.tensor([signed(n) for n in given], dtype=torch.int32))
    assert got.tolist() == [signed(lowbias32(n)) for n in given]


@needs_numpy
def test_bits_of_pcg64_stay_the_same() -> None:
    assert NumpyBits().draw(derived(1, "mask"), 2, 2, 5, CPU).tolist() == PCG64


def test_hashed_bits_stay_the_same() -> None:
    assert HASHED.draw(derived(1, "mask"), 2, 2, 5, CPU).tolist() == HASH


@pytest.mark.parametrize("kind", [pytest.param("pcg64", marks=needs_numpy), "hash"])
@pytest.mark.parametrize("elements", [1, 2, 3, 4, 5, 64, 1023])
def test_a_sample_has_its_bits_wherever_it_is_drawn(kind: str, elements: int) -> None:
    bits: NumpyBits | HashBits = NumpyBits() if kind == "pcg64" else HASHED
    key = derived("any")
    whole = bits.draw(key, 0, 6, elements, CPU)
    cut = torch.cat([bits.draw(key, first, 2, elements, CPU) for first in (0, 2, 4)])
    assert whole.shape == (6, elements)
    assert torch.equal(whole, cut)


def mask(
    keyed: KeyedDropout, cut: list[int], *, step: int = 0, layer: str = "drop", shape: tuple[int, ...] = (6, 64)
) -> torch.Tensor:
    """What dropout makes of ones, micro-batch by micro-batch."""
    found = []
    for first, end in zip(cut, cut[1:]):
        with keyed.micro_batch(step, first, end - first):
            keyed.operation(layer)
            found.append(nn.functional.dropout(torch.ones(end - first, *shape[1:])))
    return torch.cat(found)


@pytest.mark.parametrize("cut", [[0, 2, 4, 6], [0, 1, 3, 6], [0, 1, 2, 3, 4, 5, 6]])
def test_a_mask_is_the_same_however_the_batch_is_cut(cut: list[int]) -> None:
    assert torch.equal(mask(KeyedDropout(1), [0, 6]), mask(KeyedDropout(1), cut))


def test_a_mask_is_of_its_seed_step_and_layer_and_of_no_part() -> None:
    one = mask(KeyedDropout(1), [0, 6])
    assert torch.equal(one, mask(KeyedDropout(1, part=3), [0, 6]))
    for other in (
        mask(KeyedDropout(2), [0, 6]),
        mask(KeyedDropout(1), [0, 6], step=1),
        mask(KeyedDropout(1), [0, 6], layer="other"),
    ):
        assert not torch.equal(one, other)


def test_two_masks_of_a_layer_differ() -> None:
    with KeyedDropout(1).micro_batch(0, 0, 6):
        one, two = (nn.functional.dropout(torch.ones(6, 64)) for _ in range(2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_noise_has_the_expectation_one(probability: float) -> None:
    keyed = KeyedDropout(5)
    with keyed.micro_batch(0, 0, 8):
        noise = keyed.noise(probability, (8, 4096), torch.empty(()))
    values = {0.0} | ({1 / (1 - probability)} if probability < 1 else set())
    assert all(min(abs(v - w) for w in values) < 1e-3 * (1 + v) for v in noise.unique().tolist())
    if probability < 1:
        deviation = math.sqrt(probability / (1 - probability) / noise.numel())
        assert abs(noise.mean().item() - 1) <= 5 * deviation + 1e-6


def test_outside_and_after_an_error_pytorch_is_as_it_was() -> None:
    before = {n: getattr(torch, n) for n in dir(torch) if "dropout" in n}
    with pytest.raises(ValueError, match="between 0 and 1"):
        with KeyedDropout(1).micro_batch(0, 0, 4):
            assert torch.dropout is not before["dropout"]
            nn.functional.dropout(torch.rand(4), 2.0)
    assert all(getattr(torch, n) is v for n, v in before.items())


def test_recurrent_layers_that_draw_within_a_kernel_are_refused() -> None:
    with pytest.raises(Refusal, match="lstm of 2 layers draws its dropout masks itself"):
        with KeyedDropout(1).micro_batch(0, 0, 2):
            nn.LSTM(3, 3, num_layers=2, dropout=0.5)(torch.rand(4, 2, 3))


@pytest.mark.parametrize(
    ("shape", "samples", "want"),
    [
        ((6, 5), 6, 0),
        ((12, 5), 6, 0),  # heads folded into it
        ((5, 6, 7), 6, 1),  # sequence first
        ((12, 6, 6), 6, 0),  # weights of attention
        ((5, 7), 6, None),
        ((), 6, None),
        ((6,), 0, None),
    ],
)
def test_the_samples_lie_along_a_dimension(shape: tuple[int, ...], samples: int, want: int | None) -> None:
    assert sample_axis(shape, samples) == want


def test_masks_of_a_device_are_made_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from or to the host would wait until the device has done all before, but for one of pinned memory: that is
    how the numbers of samples get there."""

    def copied(*_: object, **__: object) -> None:
        raise AssertionError("a tensor of the host is copied to the device")

    bits.kept_positions.cache_clear()

    made: list[object] = []
    arange = torch.arange

    def noted(*args: int, device: object = None, **named: Any) -> torch.Tensor:
        made.append(device)
        return arange(*args, **named)

    monkeypatch.setattr(torch, "arange", noted)
    monkeypatch.setattr(torch, "tensor", copied)
    monkeypatch.setattr(torch.Tensor, "to", copied)
    assert HASHED.draw(derived(1, "mask"), 2, 2, 5, CPU).tolist() == HASH
    assert made == [CPU] if numpy is not None else [CPU, CPU]


class Repeated(nn.Module):
    """Draws two masks, within a checkpoint where that is asked for, and one beside it."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(8, 8), nn.Linear(8, 8)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(nn.functional.dropout(self.first(x)) * 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(x)
        found = torch.utils.checkpoint.checkpoint(self.inner, x, **self.how) if self.how else self.inner(x)
        return self.last(nn.functional.dropout(found))


@pytest.mark.parametrize("how", [{"use_reentrant": True}, {"use_reentrant": False}])
def test_a_checkpoint_draws_the_same_masks_again(how: dict[str, Any]) -> None:
    found = []
    for more in ({}, how):
        torch.manual_seed(2)
        model, keyed = nn.ModuleList([Repeated(**more), Repeated(**more)]), KeyedDropout(5)
        x = torch.randn(4, 8, requires_grad=True)
        with keyed.micro_batch(3, 4, 4):
            value = x
            for number, layer in enumerate(model):
                keyed.operation(str(number))
                value = layer(value)
        # the passes of other micro-batches come between those of one
        with keyed.micro_batch(3, 8, 4):
            keyed.operation("0")
            model[0](x.detach().requires_grad_())
        value.square().sum().backward()
        found.append([value, x.grad, *(p.grad for p in model.parameters())])
        assert nn.functional.dropout.__module__ == "torch.nn.functional" and torch.dropout is torch._VF.dropout
    for one, other in zip(*found):
        assert one.equal(other)


@needs_numpy
def test_the_numbers_of_samples_are_the_same_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    with_numpy = numbers(KEY, 5, 9, CPU)
    monkeypatch.setattr(bits, "numpy", None)
    assert with_numpy.dtype == torch.int32 and with_numpy.equal(numbers(KEY, 5, 9, CPU))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_mask_of_a_byte_each_is_the_product(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    x, mask = torch.randn(5, 7).to(dtype), torch.rand(5, 7) < 0.7
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    Masked.apply(one, mask, 1.5).square().sum().backward()
    (other * mask.to(dtype).mul(1.5)).square().sum().backward()
    assert one.grad is not None and other.grad is not None
    torch.testing.assert_close(one.grad, other.grad)
