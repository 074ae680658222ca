"""Trains a model of language.py in PyTorch alone, and prints the seconds of each step.

plain.py MODEL DATA BATCH MICRO_BATCHES DEVICE PRECISION COMPILE, then a line on the standard input before each step, so
that turns can be taken. First it prints the parameters, what a step computes and how fast the device multiplies.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time

import language
import torch

HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def flops(model: torch.nn.Module, size: str, rows: int) -> float:
    """Of the products of a step: 6 for each parameter of a layer and the head and each word, and 12 * layers * width *
    length for its attention. Chowdhery et al., "PaLM", 2022, appendix B."""
    _, length, width, _, layers = language.SHAPES[size]
    looked_up = model.embed.weight.numel() + model.position.numel()
    parameters = sum(p.numel() for p in model.parameters()) - looked_up
    return rows * length * (6.0 * parameters + 12 * layers * width * length)


def rate(device: str, precision: str) -> float:
    """Floating point operations a second of a product of large matrices."""
    side = 8192 if device != "cpu" else 512
    one = torch.ones(side, side, device=device, dtype=HALVES.get(precision, torch.float32))
    seconds = []
    for _ in range(6):
        began = time.perf_counter()
        one @ one
        if device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return 2.0 * side**3 / statistics.median(seconds[1:])  # the first one allocates


def main() -> None:
    name, size, batch, micro_batches, device, precision, compiles = sys.argv[1:]
    rows = int(batch)
    part = rows // int(micro_batches)
    torch.manual_seed(3)
    model = getattr(language, name)().to(device).train()
    inputs, targets = language.data(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0001)
    # Where gradients may vanish; of a class that torch 1.13 has not.
    scaler = torch.amp.GradScaler(device) if precision == "float16" else None
    said = sum(p.numel() for p in model.parameters()), flops(model, size, rows), rate(device, precision)
    print("parameters {} flops {} rate {}".format(*said), flush=True)
    run = torch.compile(model) if compiles == "true" else model
    for step, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        first = step % (len(inputs) // rows) * rows
        total = torch.zeros((), device=device)
        for start in range(first, first + rows, part):
            x = inputs[start : start + part].to(device, non_blocking=True)
            y = targets[start : start + part].to(device, non_blocking=True)
            half = HALVES.get(precision)
            with torch.autocast(device, dtype=half) if half else contextlib.nullcontext():
                loss = language.loss(run(x), y) * (part / rows)
            (loss if scaler is None else scaler.scale(loss)).backward()
            total += loss.detach()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad(set_to_none=True)
        total.item()
        if device != "cpu":
            torch.cuda.synchronize()
        print(time.perf_counter() - began, flush=True)


main()
