"""CUDA devices: whether they are there, what they are and how fast tensors get to them."""

from __future__ import annotations

import re
import statistics
import time
import warnings
from typing import Any, Callable

import torch

from spillway_runner.refusal import Refusal

COPIED = 64 << 20  # bytes of a measured copy: as large as a message, and enough that its launch does not count
COPIES = 5
# The compute capability of Ampere, the first that multiplies in bfloat16; torch says that it can before, by emulation.
BFLOAT16_SINCE = (8, 0)


def prepare(name: str, memory: int = 0) -> torch.device:
    """The device of a name, which this process uses from now on, no more than memory bytes of it where that is not 0.

    Nothing of other devices is touched.
    """
    kind, _, number = name.partition(":")
    if kind != "cuda":
        return torch.device(name)
    index = int(number or 0)  # torch keeps 8 bits of a number: to it, cuda:256 is cuda:0
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if index >= count:
        if torch.version.cuda is None:
            why, hint = "it is built without CUDA", "install a torch with CUDA, or train on the cpu"
        elif count == 0:
            why, hint = (
                "it finds no CUDA device at all",
                "install the driver, look at CUDA_VISIBLE_DEVICES, or use the cpu",
            )
        else:
            why, hint = f"it finds {count}", f"name one of cuda:0 to cuda:{count - 1}"
        raise Refusal("device", f"torch {torch.__version__} finds no device cuda:{index}: {why}", hint=hint)
    device = torch.device("cuda", index)
    # torch warns that the thread of backward passes has no context yet, and makes it.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS, but there was no current CUDA context")
    torch.cuda.set_device(device)
    if memory:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(memory / total, 1.0), device)
    return device


def wait(device: torch.device) -> None:
    """Waits until a device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mark(device: torch.device) -> Callable[[], None]:
    """Returns what waits until a device has done all that it was given so far, whatever it is given from now on."""
    if device.type != "cuda":
        return lambda: None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return lambda: event.synchronize()


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def room(device: torch.device, memory: int) -> int:
    """Bytes that this process may have on a device of which it was allowed memory; 0 where that is not known."""
    if device.type != "cuda":
        return memory
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device)
    return min(free, memory or total)


def survey(request: dict[str, Any]) -> list[dict[str, Any]]:
    """What the devices of request["devices"] are, in order."""
    return [surveyed(prepare(name)) for name in request["devices"]]


def surveyed(device: torch.device) -> dict[str, Any]:
    elements = COPIED // 4
    there, other = torch.zeros(elements, device=device), torch.zeros(elements, device=device)
    # as the memory in which parts pass tensors is
    here = torch.zeros(elements, pin_memory=device.type == "cuda")
    rates = {
        "out": rate(device, lambda: here.copy_(there, non_blocking=True)),
        "in": rate(device, lambda: there.copy_(here, non_blocking=True)),
        "copy": rate(device, lambda: other.copy_(there)),
        # a snapshot's is to pages that the host has just given and nothing locked
        "save": rate(device, lambda: there.to("cpu", copy=True)),
    }
    there = other = torch.empty(0)
    if device.type != "cuda":
        return {"name": "cpu", "memory": 0, "free": 0, **rates}
    square = torch.ones(64, 64, device=device)
    square = square @ square  # what a part's process holds is a library for products, too
    wait(device)
    del square
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    lacks = lacks_bfloat16(device)
    return {"name": device_name(device), "memory": total, "free": free, "float32_only": lacks, **rates}


def lacks_bfloat16(device: torch.device) -> bool:
    """Whether a CUDA device does not multiply in bfloat16; those of AMD do."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device) < BFLOAT16_SINCE


def rate(device: torch.device, copy: Callable[[], Any]) -> float:
    """Bytes a second of a copy of COPIED bytes."""
    seconds = []
    for _ in range(1 + COPIES):  # the first one allocates
        wait(device)
        start = time.perf_counter()
        copy()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return COPIED / max(statistics.median(seconds[1:]), 1e-9)


def tried(error: BaseException) -> int:
    """Bytes that an allocation asked for, by the message of its failure; 0 where that does not say."""
    found = re.search(r"[Tt]ried to allocate ([0-9.]+) (bytes|[KMGT]iB)", str(error))
    if not found:
        return 0
    number, unit = found.groups()
    return int(float(number) * {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}[unit])


def fitting(samples: int, fixed: int, needed: int, most: int) -> int:
    """How many samples of a micro-batch fit in most bytes, where so many need so much, of which fixed whatever their
    number; 0 is none."""
    if needed <= fixed or most <= fixed:
        return 0
    return min(samples - 1, int(samples * (most - fixed) / (needed - fixed)))
