"""The user's file, and the places in it that errors point to."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from types import TracebackType
from typing import Any, Callable

import torch

from spillway_runner.process import open_files
from spillway_runner.refusal import Refusal

# How the names of Spillway's own files begin, which are not on the disk and named <spillway_runner/source.py> and so on
# in a runner; and those of code that was made as it ran.
OWN = (os.path.dirname((lambda: None).__code__.co_filename) + os.sep, "<")
TRACE_LINES = 16  # of a traceback are worth reading in an error
# What a DataLoader says of an error in one of its processes, of which it has no more than the text.
ELSEWHERE = re.compile(r"Caught \w+ in DataLoader worker process (\d+)\.\nOriginal (Traceback .*)", re.DOTALL)
PLACES = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
TORCH_DIRECTORY = os.path.dirname(torch.__file__) + os.sep
LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


class Source:
    """The user's file, imported, and the places in it that errors point to."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.files = open_files()  # before it opens some
        sys.path.insert(0, os.path.dirname(self.path))
        sys.argv = [self.path]
        name = "spillway_file_" + os.path.splitext(os.path.basename(path))[0]  # no other module has it
        spec = importlib.util.spec_from_file_location(name, self.path)
        assert spec is not None and spec.loader is not None, "the engine asks for files *.py alone"
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.module  # so that classes of the file can be pickled
        with self.blamed("import", "it does not import", f"make `python3 {os.path.basename(path)}` work first"):
            spec.loader.exec_module(self.module)

    def function(self, name: str) -> Callable[..., Any]:
        found = getattr(self.module, name, None)
        if callable(found):
            return found
        own = [
            n
            for n, v in vars(self.module).items()
            if callable(v) and getattr(v, "__module__", "") == self.module.__name__
        ]
        raise Refusal(
            "function",
            f"there is no function {name}",
            self.path,
            f"name one of those that are there: {', '.join(own)}" if own else "define it: it returns the model",
        )

    def optional(self, name: str) -> Callable[..., Any] | None:
        found = getattr(self.module, name, None)
        return found if callable(found) else None

    def blamed(self, kind: str, what: str, hint: str) -> Blamed:
        return Blamed(self, kind, what, hint)

    def place(self, error: BaseException) -> str:
        """The last place of the user's in the way of an error: file:line, or the file alone."""
        if isinstance(error, SyntaxError) and error.filename:
            return f"{error.filename}:{error.lineno}"
        frames = [(f.filename, f.lineno or 0) for f in traceback.extract_tb(error.__traceback__)]
        elsewhere = ELSEWHERE.search(str(error))
        if elsewhere:
            frames += [(file, int(line)) for file, line in PLACES.findall(elsewhere[2])]
        frames = [(file, line) for file, line in frames if users(file)]
        within = [(file, line) for file, line in frames if os.path.abspath(file) == self.path] or frames
        return f"{within[-1][0]}:{within[-1][1]}" if within else self.path


class Blamed:
    """Turns what the user's code raises into a Refusal."""

    def __init__(self, source: Source, kind: str, what: str, hint: str) -> None:
        self.source, self.kind, self.what, self.hint = source, kind, what, hint

    def __enter__(self) -> Blamed:
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if error is None or isinstance(error, (Refusal, KeyboardInterrupt, GeneratorExit)):
            return
        message = f"{self.what}: {described(error)}"
        raise Refusal(self.kind, message, self.source.place(error), self.hint, traced(error)) from error


def users(filename: str) -> bool:
    """Whether a frame of this file belongs to the user's code."""
    library = filename.startswith(LIBRARY) and "-packages" not in filename
    return not (library or filename.startswith((TORCH_DIRECTORY, *OWN)))


def described(error: BaseException) -> str:
    elsewhere = ELSEWHERE.search(str(error))
    if elsewhere:
        return f"{elsewhere[2].strip().splitlines()[-1]} (in process {elsewhere[1]} of the DataLoader)"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def traced(error: BaseException) -> str:
    """The end of the traceback, without Spillway's frames."""
    elsewhere = ELSEWHERE.search(str(error))
    if elsewhere:
        return "\n".join(elsewhere[2].strip().splitlines()[-TRACE_LINES:])
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(OWN)]
    lines = "".join(traceback.format_list(frames) + traceback.format_exception_only(type(error), error)).splitlines()
    return "\n".join(lines[-TRACE_LINES:])


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments in order."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # without a signature
        pass
    return True
