"""The search space and the sizes of the job, the same for every tuner."""

from __future__ import annotations

TRIALS, EPOCHS, ETA, AT_ONCE = 27, 27, 3, 2

# name: kind, lowest, highest
SPACE = {
    "lr": ("log", 1e-4, 1.0),
    "width": ("int", 16, 256),
    "weight_decay": ("log", 1e-6, 1e-1),
    "momentum": ("float", 0.5, 0.99),
}
