from __future__ import annotations

import sys

import pytest

from spillway_runner.refusal import Refusal
from spillway_runner.requirements import check_torch, version


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("1.13.0a0+gitunknown", (1, 13)),
        ("2.1.0+cu118", (2, 1)),
        ("1.9.1", (1, 9)),
        ("2.10.0", (2, 10)),
        ("x.y", (0, 0)),
    ],
)
def test_a_version_is_its_first_two_numbers(text: str, want: tuple[int, int]) -> None:
    assert version(text) == want


def test_a_python_without_torch_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    check_torch()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Refusal) as caught:
        check_torch()
    assert caught.value.fields["kind"] == "no_torch"
    assert sys.executable in caught.value.fields["message"]
    assert "pip install torch" in caught.value.fields["hint"]


def test_a_torch_that_is_too_old_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.__version__", "1.12.1")
    with pytest.raises(Refusal, match=r"has torch 1\.12\.1"):
        check_torch()
