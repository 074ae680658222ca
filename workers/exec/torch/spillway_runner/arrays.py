"""Arrays, where numpy is installed: torch does not need it."""

from __future__ import annotations

from typing import Any

import torch

numpy: Any
try:
    import numpy
except ImportError:
    numpy = None


def is_array(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or numpy is not None and isinstance(value, numpy.ndarray)
