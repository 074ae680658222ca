"""Files of tensors, as package state of Spillway has them."""

from __future__ import annotations

import ctypes
import json
import os
from typing import Any, BinaryIO, Callable, Iterable

import torch

from spillway_runner.refusal import Refusal
from spillway_runner.source import described
from spillway_runner.values import size

FORMAT = "spillway-part-1"
TYPES = {
    "F32": torch.float32,
    "F64": torch.float64,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "C64": torch.complex64,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
# Those that torch 2 has besides.
LATER_TYPES = {
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
TYPES.update((code, getattr(torch, name)) for code, name in LATER_TYPES.items() if hasattr(torch, name))
TYPE_CODES = {t: code for code, t in TYPES.items()}


def replace(path: str, fill: Callable[[BinaryIO], object]) -> None:
    """Writes a file that takes its name when it is whole and on the disk."""
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def check_types(found: dict[str, torch.Tensor]) -> None:
    """Refuses tensors of types and forms that a file cannot hold."""
    for name, t in found.items():
        if t.layout != torch.strided:
            raise Refusal(
                "state",
                f"{name} is {str(t.layout)[6:].replace('_', ' ').strip()}, and a checkpoint holds dense tensors alone",
                hint="register to_dense() of it",
            )
        if t.dtype not in TYPE_CODES:
            raise Refusal(
                "state",
                f"{name} is of {t.dtype}, which a checkpoint cannot hold",
                hint=f"use one of {', '.join(str(k) for k in TYPE_CODES)}",
            )


def save(path: str, found: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """Writes a file of tensors by name."""
    check_types(found)
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, t in found.items():
        header[name] = {"dtype": TYPE_CODES[t.dtype], "shape": list(t.shape), "data_offsets": [end, end + size(t)]}
        end += size(t)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def fill(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for t in found.values():
            if t.numel():
                file.write((ctypes.c_char * size(t)).from_address(t.data_ptr()))

    replace(path, fill)


class Files:
    """The tensors in files of one model's parts, by name. Where several files have one, it is the first one's."""

    def __init__(self, paths: Iterable[str], digest: str) -> None:
        self.where: dict[str, tuple[str, int, dict[str, Any]]] = {}  # path, first byte of all tensors, header's entry
        self.metadata: list[dict[str, str]] = []
        for path in paths:
            try:
                with open(path, "rb") as file:
                    length, count = int.from_bytes(file.read(8), "little"), os.path.getsize(path)
                    if length > count:
                        raise ValueError("it is cut short")
                    header = json.loads(file.read(length))
                    metadata = header.pop("__metadata__", {})
                    if max([e["data_offsets"][1] for e in header.values()], default=0) + 8 + length != count:
                        raise ValueError(f"it has {count} bytes")
            except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise Refusal(
                    "state",
                    f"cannot read what was exported: {described(error)}",
                    path,
                    "use a file that an export wrote",
                ) from error
            if metadata.get("format") != FORMAT:
                raise Refusal(
                    "state",
                    f"the format is {metadata.get('format')}, not {FORMAT}",
                    path,
                    "use a file that an export of this version wrote",
                )
            if metadata.get("model") != digest:
                raise Refusal(
                    "state",
                    "it belongs to another model",
                    path,
                    "use the files of this model: its parameters' names, shapes and types must be the same",
                )
            self.metadata.append(metadata)
            for name, entry in header.items():
                self.where.setdefault(name, (path, 8 + length, entry))

    def read(self, name: str) -> torch.Tensor:
        if name not in self.where:
            raise Refusal("state", f"no file has {name}", hint="give the files of all parts")
        path, start, entry = self.where[name]
        (begin, end), kind = entry["data_offsets"], TYPES.get(entry["dtype"])
        tensor = torch.empty(entry["shape"], dtype=kind or torch.uint8)
        if kind is None or size(tensor) != end - begin:
            raise Refusal(
                "state",
                f"{name} has {end - begin} bytes for {entry['shape']} of {entry['dtype']}",
                path,
                "use a file that an export wrote",
            )
        if tensor.numel():
            with open(path, "rb", buffering=0) as file:
                file.seek(start + begin)
                memory = memoryview((ctypes.c_char * size(tensor)).from_address(tensor.data_ptr())).cast("B")
                while len(memory):
                    count = file.readinto(memory)
                    if not count:
                        raise Refusal("state", "it is cut short", path, "use a file that an export wrote")
                    memory = memory[count:]
        return tensor
