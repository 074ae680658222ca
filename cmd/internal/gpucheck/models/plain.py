"""Trains a model of language.py in PyTorch alone, and prints the seconds of each step.

plain.py MODEL DATA BATCH MICRO_BATCHES DEVICE PRECISION, then a line on the standard input before each step, so that
turns can be taken.
"""

from __future__ import annotations

import contextlib
import sys
import time

import language
import torch


def main() -> None:
    name, size, batch, micro_batches, device, precision = sys.argv[1:]
    rows = int(batch)
    part = rows // int(micro_batches)
    torch.manual_seed(3)
    model = getattr(language, name)().to(device).train()
    inputs, targets = language.data(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0001)
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    for step, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        first = step % (len(inputs) // rows) * rows
        total = torch.zeros((), device=device)
        for start in range(first, first + rows, part):
            x = inputs[start : start + part].to(device, non_blocking=True)
            y = targets[start : start + part].to(device, non_blocking=True)
            cast = torch.autocast(device, dtype=torch.bfloat16) if precision == "bfloat16" else contextlib.nullcontext()
            with cast:
                loss = language.loss(model(x), y) * (part / rows)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total.item()
        if device != "cpu":
            torch.cuda.synchronize()
        print(time.perf_counter() - began, flush=True)


main()
