"""Reads files of data that need no code of the user's."""

from __future__ import annotations

import csv
import inspect
from typing import Any

import torch

from spillway_runner.arrays import numpy
from spillway_runner.refusal import Refusal


def read_npz(path: str) -> tuple[Any, ...]:
    if numpy is None:
        raise Refusal("data", f"{path} needs numpy", path, "install numpy")
    with numpy.load(path) as arrays:
        names = ["x", "y"] if {"x", "y"} <= set(arrays.files) else arrays.files[:2]
        return tuple(arrays[name] for name in names)


def read_pt(path: str) -> Any:
    options = {"weights_only": True} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(path, map_location="cpu", **options)


def read_csv(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers with an optional line of names. The last column, the target, is of classes where all of it is written as
    integers."""
    with open(path, newline="") as file:
        lines = [line for line in csv.reader(file) if line]
    if lines and not all(map(is_number, lines[0])):
        del lines[0]
    if not lines:
        raise Refusal("data", "there are no numbers", path, "write at least two numbers, and as many in each row")
    for number, line in enumerate(lines, 1):
        if len(line) != len(lines[0]) or len(line) < 2 or not all(map(is_number, line)):
            raise Refusal(
                "data",
                f"row {number} of numbers is {','.join(line)}",
                path,
                "write at least two numbers, and as many in each row",
            )
    inputs = torch.tensor([[float(cell) for cell in line[:-1]] for line in lines])
    last = [line[-1] for line in lines]
    if all(cell.strip().lstrip("+-").isdigit() for cell in last):
        return inputs, torch.tensor([int(cell) for cell in last])
    return inputs, torch.tensor([[float(cell)] for cell in last])


FORMATS = {".npz": read_npz, ".pt": read_pt, ".pth": read_pt, ".csv": read_csv}


def is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
