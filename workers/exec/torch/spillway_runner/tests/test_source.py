from __future__ import annotations

import sys
from pathlib import Path
from typing import Callable

import pytest

from spillway_runner.refusal import Refusal
from spillway_runner.source import OWN, Source, takes, users

MakeSource = Callable[[str], Source]


def refused(text: str, make: MakeSource) -> dict[str, str]:
    with pytest.raises(Refusal) as caught:
        make(text)
    return caught.value.fields


def test_an_error_of_the_file_is_placed_at_its_line(source: MakeSource) -> None:
    fields = refused("x = 1\n\nraise ValueError('no such data')\n", source)
    assert fields["kind"] == "import"
    assert fields["message"] == "it does not import: ValueError: no such data"
    assert fields["at"].endswith("model0.py:3")
    assert fields["hint"] == "make `python3 model0.py` work first"


def test_an_error_of_syntax_is_placed_at_its_line(source: MakeSource) -> None:
    fields = refused("def build():\n    return (1 +\n", source)
    assert "SyntaxError" in fields["message"]
    assert fields["at"].endswith("model0.py:2")


def test_an_error_in_a_library_is_placed_where_the_file_calls_it(source: MakeSource) -> None:
    file = source("import json\n\ndef build():\n    return json.loads('{')\n")
    with pytest.raises(Refusal) as caught:
        with file.blamed("function", "build() fails", "a hint"):
            file.function("build")()
    assert caught.value.fields["at"].endswith("model0.py:4")
    assert "json.loads('{')" in caught.value.fields["trace"]
    assert OWN[0] not in caught.value.fields["trace"]


def test_an_error_outside_the_file_is_placed_where_it_is_raised(source: MakeSource, tmp_path: Path) -> None:
    (tmp_path / "helper_of_model0.py").write_text("def fails():\n    raise KeyError('key')\n")
    file = source("from helper_of_model0 import fails as build\n")
    del sys.modules["helper_of_model0"]
    with pytest.raises(Refusal) as caught:
        with file.blamed("function", "build() fails", "a hint"):
            file.function("build")()
    assert caught.value.fields["at"].endswith("helper_of_model0.py:2")


def test_a_refusal_passes_as_it_is(source: MakeSource) -> None:
    file = source("")
    with pytest.raises(Refusal, match="the first"):
        with file.blamed("data", "the second", ""):
            raise Refusal("data", "the first")


def test_a_function_that_is_not_there_is_refused_with_those_that_are(source: MakeSource) -> None:
    file = source("from math import sqrt\ndef one(): pass\ndef two(): pass\nthree = 3\n")
    with pytest.raises(Refusal) as caught:
        file.function("three")
    assert caught.value.fields["message"] == "there is no function three"
    assert caught.value.fields["hint"] == "name one of those that are there: one, two"
    assert file.optional("three") is None


def test_a_file_may_have_the_name_of_a_module_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    package = sys.modules["spillway_runner"]
    path = tmp_path / "runner.py"
    path.write_text("def build(): return 1\n")
    file = Source(str(path))
    del sys.modules[file.module.__name__]
    assert file.function("build")() == 1
    assert sys.modules["spillway_runner"] is package


def test_frames_of_libraries_torch_and_spillway_are_not_the_users() -> None:
    import json

    import torch

    import spillway_runner.model

    assert users("/home/ada/model.py")
    assert users("/usr/lib/python3/dist-packages/lightning/trainer.py")
    assert not any(map(users, (str(json.__file__), torch.__file__, "<string>", "<spillway_runner/model.py>")))
    assert not users(str(spillway_runner.model.__file__))


def test_takes_counts_arguments_in_order() -> None:
    assert takes(lambda a, b=1: None, 1)
    assert takes(lambda a, b=1: None, 2)
    assert not takes(lambda a, b=1: None, 3)
    assert not takes(lambda *, a: None, 0)
