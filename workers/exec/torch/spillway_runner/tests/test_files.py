from __future__ import annotations

from pathlib import Path
from typing import Callable

import pytest
import torch

from spillway_runner.files import FORMAT, LATER_TYPES, TYPES, Files, check_types, replace, save
from spillway_runner.refusal import Refusal

METADATA = {"format": FORMAT, "model": "digest"}


def test_tensors_are_read_as_they_were_written(tmp_path: Path) -> None:
    first, second = str(tmp_path / "0"), str(tmp_path / "1")
    written = {
        "a": torch.arange(6.0).view(2, 3),
        "b": torch.tensor([True, False]),
        "c": torch.tensor(7),
        "d": torch.empty(0, 4),
        "e": torch.tensor([1.5], dtype=torch.bfloat16),
        "g": torch.tensor([1 + 2j, -3j]),
        "h": torch.tensor([-5], dtype=torch.int8),
    }
    save(first, written, METADATA)
    save(second, {"a": torch.zeros(1), "f": torch.ones(1)}, METADATA)
    files = Files([first, second], "digest")
    for name, tensor in {**written, "f": torch.ones(1)}.items():
        got = files.read(name)
        assert got.dtype == tensor.dtype and got.shape == tensor.shape and torch.equal(got, tensor), name


@pytest.mark.parametrize("code", sorted(set(LATER_TYPES) & set(TYPES)))
def test_tensors_of_the_types_of_torch_2_are_read_as_they_were_written(code: str, tmp_path: Path) -> None:
    written = torch.tensor([1.0, 2.0, 4.0]).to(TYPES[code])
    save(str(tmp_path / "0"), {"a": written}, METADATA)
    read = Files([str(tmp_path / "0")], "digest").read("a")
    assert read.dtype == written.dtype and read.float().tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (lambda: torch.eye(2).to_sparse(), "mask is sparse coo, and a checkpoint holds dense tensors alone"),
        (lambda: torch.eye(2).to_mkldnn(), "mask is mkldnn, and"),
        (lambda: torch.zeros(1, dtype=torch.complex128), "mask is of torch.complex128, which a checkpoint cannot hold"),
        (lambda: torch.quantize_per_tensor(torch.ones(1), 1.0, 0, torch.qint8), "mask is of torch.qint8, which"),
    ],
)
def test_what_a_file_cannot_hold_is_refused_by_name(tensor: Callable[[], torch.Tensor], message: str) -> None:
    with pytest.raises(Refusal) as caught:
        check_types({"fine": torch.ones(1), "mask": tensor()})
    assert caught.value.fields["message"].startswith(message)


@pytest.mark.parametrize(
    ("metadata", "cut", "message"),
    [
        ({**METADATA, "format": "other"}, 0, "the format is other, not spillway-part-1"),
        ({**METADATA, "model": "other"}, 0, "it belongs to another model"),
        (METADATA, 1, "cannot read what was exported: ValueError: it has "),
        (METADATA, 1000, "cannot read what was exported: "),
    ],
)
def test_another_file_is_refused(metadata: dict[str, str], cut: int, message: str, tmp_path: Path) -> None:
    path = tmp_path / "part"
    save(str(path), {"a": torch.ones(3)}, metadata)
    path.write_bytes(path.read_bytes()[: max(path.stat().st_size - cut, 8)])
    with pytest.raises(Refusal) as caught:
        Files([str(path)], "digest")
    assert caught.value.fields["message"].startswith(message)
    assert caught.value.fields["at"] == str(path)


def test_a_file_that_was_not_finished_leaves_the_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("earlier")

    def fails(_: object) -> None:
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        replace(str(path), fails)
    assert path.read_text() == "earlier"
    assert list(tmp_path.iterdir()) == [path]
