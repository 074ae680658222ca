"""What is answered to requests."""

from __future__ import annotations

import json
import threading
import traceback
from typing import Any, Callable, TextIO

import torch

from spillway_runner.refusal import Refusal
from spillway_runner.source import described

# What errors say of refused memory: those of package termination that an exception can have. Its tests keep them alike.
MEMORY_SIGNS = (
    "CUDA out of memory",
    "HIP out of memory",
    "MPS backend out of memory",
    "XPU out of memory",
    "torch.cuda.OutOfMemoryError",
    "torch.OutOfMemoryError",
    "CUDA error: out of memory",  # of a context, a module or an event, on a device that is full
    "HIP error: out of memory",
    "cudaErrorMemoryAllocation",
    "hipErrorOutOfMemory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUSOLVER_STATUS_ALLOC_FAILED",
    "CUSPARSE_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "CUFFT_ALLOC_FAILED",
    "cudaMalloc failed: out of memory",
    "cudaErrorOutOfMemory",
    "cupy.cuda.memory.OutOfMemoryError",
    "std::bad_alloc: out_of_memory: CUDA",
    "No available memory for the cache blocks",
    "NVRM: Out of memory",
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "Cannot allocate memory",
    "cannot allocate memory",
    "std::bad_alloc",
)
# Libraries of CUDA say that they are not initialized where their own memory was refused, and for other reasons.
NOT_INITIALIZED = "_STATUS_NOT_INITIALIZED"
LIBRARY_NEEDS = 512 << 20  # bytes: more than the handle, the kernels and the workspace of one


def out_of_memory(error: BaseException) -> bool:
    """Whether a device, or the host, had too little memory."""
    text = str(error)
    if isinstance(error, (MemoryError, getattr(torch.cuda, "OutOfMemoryError", MemoryError))):
        return True
    return any(words in text for words in MEMORY_SIGNS) or NOT_INITIALIZED in text and nearly_full()


def asynchronous(error: BaseException) -> bool:
    """Whether a device may have met an error earlier than where it was told: kernels run after their launch. Refused
    memory is told at once."""
    text = str(error)
    return ("CUDA error:" in text or "HIP error:" in text) and not out_of_memory(error)


def nearly_full() -> bool:
    """Whether the CUDA device in use has less memory left than a library of CUDA needs to begin."""
    try:
        return torch.cuda.mem_get_info()[0] < LIBRARY_NEEDS
    except Exception:  # there is none, or its context is lost
        return False


def fields_of(error: Exception) -> dict[str, str]:
    """What is told about an error."""
    if isinstance(error, Refusal):
        return error.fields
    if out_of_memory(error):
        return {
            "kind": "memory",
            "message": "out of memory: " + described(error).splitlines()[0],
            "at": "",
            "trace": "",
            "hint": "cut the batch into more micro-batches, recompute activations, or split the model into more parts",
        }
    hint = "set CUDA_LAUNCH_BLOCKING=1 to find the operation" if asynchronous(error) else ""
    return {"kind": "runner", "message": described(error), "at": "", "hint": hint, "trace": traceback.format_exc()}


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
