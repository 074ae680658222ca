"""Trains a model of language.py in PyTorch alone, and prints the seconds of each step.

plain.py SIZE BATCH DEVICE PRECISION, then a line on the standard input before each step, so that turns can be taken.
"""

from __future__ import annotations

import contextlib
import sys
import time

import language
import torch


def main():
    size, batch, device, precision = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    torch.manual_seed(3)
    model = getattr(language, size)().to(device).train()
    inputs, targets = language.data(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0001)
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    for step, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        rows = slice(step % (len(inputs) // batch) * batch, step % (len(inputs) // batch) * batch + batch)
        x, y = inputs[rows].to(device, non_blocking=True), targets[rows].to(device, non_blocking=True)
        cast = torch.autocast(device, dtype=torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()
        with cast:
            loss = language.loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if device != "cpu":
            torch.cuda.synchronize()
        print(time.perf_counter() - began, flush=True)


main()
