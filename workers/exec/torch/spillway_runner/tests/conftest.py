"""What the tests share. They import the package from the disk; a runner imports it from memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable, Iterator

import pytest

from spillway_runner.source import Source


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Source]]:
    """A function that makes a user's file of a text. What importing it changes ends with the test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    made: list[Source] = []

    def make(text: str) -> Source:
        path = tmp_path / f"model{len(made)}.py"
        path.write_text(text)
        made.append(Source(str(path)))
        return made[-1]

    yield make
    for file in made:
        del sys.modules[file.module.__name__]
