"""Runs PyTorch for Spillway: one process for one model, or for one part of it.

It reads one request a line on a pipe, {"id": number, "command": name, ...}, and answers each with one line on another,
{"id": number, "result": ...} or {"id": number, "error": ...}. Commands run one after another; what one leaves to a
thread is answered later, under a number of its own. Standard output and error belong to the model. It runs on Python
3.8 or later with torch 1.13 or later.

The files of this directory are run one after another in one namespace: this one, model.py, probe.py, dropout.py,
recipe.py, memory.py, parts.py, train.py.
"""

import dis
import gc
import hashlib
import importlib.util
import inspect
import json
import linecache
import math
import operator
import os
import statistics
import sys
import sysconfig
import threading
import time
import traceback

TRACE_LINES = 16  # of a traceback are worth reading in an error
WARM_UPS = 2  # runs before the measured ones: the first allocates, the second finds the caches as the others do


class Refusal(Exception):
    """Something that the author of the model can change: what is wrong, at which file and line, and what to do."""

    def __init__(self, kind, message, at="", hint="", trace=""):
        super().__init__(message)
        self.fields = {"kind": kind, "message": message, "at": at, "hint": hint, "trace": trace}


try:
    import torch
    from torch import fx, nn
except ImportError as missing:
    raise Refusal(
        "no_torch",
        "%s cannot import torch: %s" % (sys.executable, missing),
        hint="install PyTorch 1.13 or later (Debian and Ubuntu: apt-get install python3-torch libopenblas0, whose "
        "matrix products are "
        "many times faster than those of Debian's default; elsewhere: pip install torch), "
        "or name a Python that has it",
    )

if tuple(int("".join(filter(str.isdigit, n)) or 0) for n in torch.__version__.split(".")[:2]) < (1, 13):
    raise Refusal(
        "no_torch", "%s has torch %s" % (sys.executable, torch.__version__), hint="install PyTorch 1.13 or later"
    )

TORCH_DIRECTORY = os.path.dirname(torch.__file__) + os.sep
LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


# The user's file.


class Source:
    """The user's file, imported, and the places in it that errors point to."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        sys.path.insert(0, os.path.dirname(self.path))
        sys.argv = [self.path]
        name = "spillway_" + os.path.splitext(os.path.basename(path))[0]  # no other module has it
        spec = importlib.util.spec_from_file_location(name, self.path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.module  # so that classes of the file can be pickled
        with self.blamed("import", "it does not import", "make `python3 %s` work first" % os.path.basename(path)):
            spec.loader.exec_module(self.module)

    def function(self, name):
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
            "there is no function %s" % name,
            self.path,
            "name one of those that are there: %s" % ", ".join(own) if own else "define it: it returns the model",
        )

    def optional(self, name):
        found = getattr(self.module, name, None)
        return found if callable(found) else None

    def blamed(self, kind, what, hint):
        return Blamed(self, kind, what, hint)

    def place(self, error):
        """The last place of the user's in the way of an error: file:line, or the file alone."""
        if isinstance(error, SyntaxError) and error.filename:
            return "%s:%s" % (error.filename, error.lineno)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if users(f.filename)]
        within = [f for f in frames if os.path.abspath(f.filename) == self.path] or frames
        return "%s:%d" % (within[-1].filename, within[-1].lineno) if within else self.path


class Blamed:
    """Turns what the user's code raises into a Refusal."""

    def __init__(self, source, kind, what, hint):
        self.source, self.kind, self.what, self.hint = source, kind, what, hint

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        if error is None or isinstance(error, (Refusal, KeyboardInterrupt, GeneratorExit)):
            return False
        message = "%s: %s" % (self.what, described(error))
        raise Refusal(self.kind, message, self.source.place(error), self.hint, traced(error)) from error


def users(filename):
    """Whether a frame of this file belongs to the user's code. Spillway's own files are named <runner.py> and so on, as
    no file of the user's is."""
    library = filename.startswith(LIBRARY) and "-packages" not in filename
    return not (library or filename.startswith((TORCH_DIRECTORY, "<")))


def described(error):
    return "%s: %s" % (type(error).__name__, error) if str(error) else type(error).__name__


def traced(error):
    """The end of the traceback, without Spillway's frames."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    lines = "".join(traceback.format_list(frames) + traceback.format_exception_only(type(error), error)).splitlines()
    return "\n".join(lines[-TRACE_LINES:])


# Values that hold tensors.


def each(value, change):
    """value with every tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: each(v, change) for k, v in value.items()} if type(value) is dict else value
    if isinstance(value, (tuple, list)):
        items = [each(v, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, slice):
        return slice(*(each(v, change) for v in (value.start, value.stop, value.step)))
    return value


def tensors(value):
    """All tensors in value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from tensors(v)
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from tensors(v)


def size(value):
    """Bytes that travel when value does. Whatever is no tensor travels as one number each."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(map(size, value))
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    return 8 if isinstance(value, (int, float)) else 0


# Requests.


def fields_of(error):
    """What is told about an error."""
    if isinstance(error, Refusal):
        return error.fields
    if isinstance(error, getattr(torch.cuda, "OutOfMemoryError", ())) or "can't allocate memory" in str(error):
        return {
            "kind": "memory",
            "message": "out of memory: " + str(error).splitlines()[0],
            "at": "",
            "trace": "",
            "hint": "cut the batch into more micro-batches, recompute activations, or split the model into more parts",
        }
    return {"kind": "runner", "message": described(error), "at": "", "hint": "", "trace": traceback.format_exc()}


class Answers:
    """Writes answers, each whole, from any thread."""

    def __init__(self, file):
        self.file, self.lock = file, threading.Lock()

    def write(self, number, run):
        """Answers with what run returns or raises."""
        try:
            answer = {"id": number, "result": run()}
        except Exception as error:
            answer = {"id": number, "error": fields_of(error)}
        line = json.dumps(answer, separators=(",", ":")) + "\n"
        with self.lock:
            self.file.write(line)
            self.file.flush()

    def later(self, number, run):
        """Answers a number of its own from a thread."""
        threading.Thread(target=self.write, args=(number, run), daemon=True).start()


COMMANDS = {}  # by name: functions of the request and the Answers, which return what is answered


def serve(requests, answers):
    """Says that it is ready, then answers requests until there are no more."""
    answers = Answers(answers)
    answers.write(0, lambda: {"torch": torch.__version__})
    for line in requests:
        request = json.loads(line)
        answers.write(request["id"], lambda: COMMANDS[request["command"]](request, answers))
