"""What is told about errors."""

from __future__ import annotations

import pytest
import torch

from spillway_runner import answers
from spillway_runner.answers import fields_of, out_of_memory

CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        # of a context, a module or an event, on a full device
        RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"),
        RuntimeError("cudaErrorMemoryAllocation"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:75] . DefaultCPUAllocator: can't allocate memory"),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_refused_memory_is_told_as_such(error: Exception) -> None:
    assert out_of_memory(error)
    assert fields_of(error)["kind"] == "memory"


@pytest.mark.parametrize(
    "text", ["CUDA error: device-side assert triggered", "mat1 and mat2 shapes cannot be multiplied", ""]
)
def test_other_errors_are_not(text: str) -> None:
    assert fields_of(RuntimeError(text))["kind"] == "runner"


@pytest.mark.parametrize("free, full", [(100 << 20, True), (20 << 30, False)])
def test_a_library_that_does_not_begin_lacks_memory_on_a_full_device(
    free: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (free, 80 << 30))
    assert out_of_memory(RuntimeError(CUBLAS)) == full


def test_a_library_that_does_not_begin_on_a_lost_device_does_not_lack_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.cuda, "mem_get_info", lost)
    assert not out_of_memory(RuntimeError(CUBLAS))
    assert answers.NOT_INITIALIZED in CUBLAS


def test_an_error_that_a_device_reports_late_says_how_to_find_its_place() -> None:
    assert "CUDA_LAUNCH_BLOCKING=1" in fields_of(RuntimeError("CUDA error: device-side assert triggered"))["hint"]
    assert "BLOCKING" not in fields_of(RuntimeError("CUDA error: out of memory"))["hint"]
