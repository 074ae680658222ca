from __future__ import annotations

from pathlib import Path

import pytest
import torch

from spillway_runner.files import FORMAT, Files, replace, save
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
