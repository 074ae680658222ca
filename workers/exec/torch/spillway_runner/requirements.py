"""What the runner needs beyond Python. Every other module but refusal.py imports torch as it is imported itself."""

from __future__ import annotations

import sys

from spillway_runner.refusal import Refusal

LEAST_TORCH = (1, 13)
LEAST_DISTRIBUTED = (2, 4)  # torch.distributed.pipelining and fully_shard


def check_torch() -> None:
    """Refuses a Python without torch, or with one that is too old."""
    try:
        import torch
    except ImportError as missing:
        raise Refusal(
            "no_torch",
            f"{sys.executable} cannot import torch: {missing}",
            hint="install PyTorch 1.13 or later (Debian and Ubuntu: apt-get install python3-torch libopenblas0, whose "
            "matrix products are many times faster than those of Debian's default; elsewhere: pip install torch), "
            "or name a Python that has it",
        ) from missing
    if version(torch.__version__) < LEAST_TORCH:
        raise Refusal(
            "no_torch", f"{sys.executable} has torch {torch.__version__}", hint="install PyTorch 1.13 or later"
        )


def check_distributed() -> None:
    """Refuses a torch that cannot train replicas of parts."""
    import torch

    if version(torch.__version__) < LEAST_DISTRIBUTED:
        wanted = ".".join(map(str, LEAST_DISTRIBUTED))
        raise Refusal(
            "distributed",
            f"{sys.executable} has torch {torch.__version__}, and replicas need {wanted} or later",
            hint=f"install PyTorch {wanted} or later, or train without replicas and without sharding",
        )
    if not torch.distributed.is_available():
        raise Refusal(
            "distributed",
            f"the torch {torch.__version__} of {sys.executable} is built without torch.distributed",
            hint="install another build, or train without replicas and without sharding",
        )


def version(text: str) -> tuple[int, ...]:
    """The first two numbers of a version such as 2.1.0a0+cu118."""
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:2])
