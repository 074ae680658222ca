"""What is answered to requests."""

from __future__ import annotations

import json
import threading
import traceback
from typing import Any, Callable, TextIO

import torch

from spillway_runner.refusal import Refusal
from spillway_runner.source import described


def out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had too little memory."""
    text = str(error)
    return isinstance(error, getattr(torch.cuda, "OutOfMemoryError", ())) or any(
        words in text for words in ("CUDA out of memory", "ALLOC_FAILED", "can't allocate memory")
    )


def fields_of(error: Exception) -> dict[str, str]:
    """What is told about an error."""
    if isinstance(error, Refusal):
        return error.fields
    if out_of_memory(error):
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

    def __init__(self, file: TextIO) -> None:
        self.file, self.lock = file, threading.Lock()

    def write(self, number: int, run: Callable[[], Any]) -> None:
        """Answers with what run returns or raises."""
        try:
            answer = {"id": number, "result": run()}
        except Exception as error:
            answer = {"id": number, "error": fields_of(error)}
        line = json.dumps(answer, separators=(",", ":")) + "\n"
        with self.lock:
            self.file.write(line)
            self.file.flush()

    def later(self, number: int, run: Callable[[], Any]) -> None:
        """Answers a number of its own from a thread."""
        threading.Thread(target=self.write, args=(number, run), daemon=True).start()
