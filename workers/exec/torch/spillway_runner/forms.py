"""Values in JSON, with the tensors that they hold apart."""

from __future__ import annotations

import base64
import math
import pickle
from typing import Any, Callable

import torch


def flatten(value: Any, found: list[torch.Tensor]) -> Any:
    """The form of value in JSON; its tensors are appended to found and stand in it as numbers."""
    if isinstance(value, torch.Tensor):
        found.append(value)
        return len(found) - 1
    if isinstance(value, torch.Size):
        return {"size": list(value)}
    if isinstance(value, (tuple, list)):
        return {"tuple" if isinstance(value, tuple) else "list": [flatten(v, found) for v in value]}
    if type(value) is dict:
        return {"dict": [[flatten(k, found), flatten(v, found)] for k, v in value.items()]}
    if value is None or type(value) in (bool, int, str) or type(value) is float and math.isfinite(value):
        return {"value": value}  # JSON has no NaN
    return {"pickle": base64.b64encode(pickle.dumps(value)).decode()}


def restore(form: Any, tensor: Callable[[int], torch.Tensor]) -> Any:
    """The value of a form; tensor(number) is called for each tensor."""
    if isinstance(form, int):
        return tensor(form)
    ((kind, content),) = form.items()
    if kind in ("tuple", "list"):
        items = [restore(f, tensor) for f in content]
        return tuple(items) if kind == "tuple" else items
    if kind == "dict":
        return {restore(k, tensor): restore(v, tensor) for k, v in content}
    if kind == "size":
        return torch.Size(content)
    return content if kind == "value" else pickle.loads(base64.b64decode(content))
