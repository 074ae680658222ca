"""Values that hold tensors."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any, Callable, Iterator

import torch

from spillway_runner.arrays import numpy


def each(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """value with every tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        changed = {k: each(v, change) for k, v in value.items()}
        # such as what models of the transformers library return, which has its items as fields
        return changed if type(value) is dict else type(value)(**changed) if is_dataclass(value) else value
    if isinstance(value, (tuple, list)):
        items = [each(v, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, slice):
        return slice(*(each(v, change) for v in (value.start, value.stop, value.step)))
    return value


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """All tensors in value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from tensors(v)
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from tensors(v)


def size(value: Any) -> int:
    """Bytes that travel when value does. Whatever is no tensor travels as one number each."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(map(size, value))
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    return 8 if isinstance(value, (int, float)) else 0


def shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"({', '.join(map(str, value.shape))})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(shape, value))}]"
    return repr(value)[:40]


def shapes(value: Any) -> str:
    """The shapes of what is in value, for people."""
    if isinstance(value, torch.Tensor) or numpy is not None and isinstance(value, numpy.ndarray):
        return f"({', '.join(map(str, value.shape))})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {shapes(v)}' for k, v in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(shapes, value))})"
    return type(value).__name__


def described_tensor(value: Any) -> str:
    return (
        f"{shapes(value)} of {str(value.dtype).replace('torch.', '')}"
        if isinstance(value, torch.Tensor)
        else "a " + type(value).__name__
    )


def amount(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if abs(count) < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    raise AssertionError("the last unit has no bound")
