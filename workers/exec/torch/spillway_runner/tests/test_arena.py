from __future__ import annotations

import mmap
import tempfile

import pytest
import torch

from spillway_runner.arena import TYPE_NAMES, Arena, Slot


def test_types_have_the_names_of_torch() -> None:
    assert TYPE_NAMES["float32"] is torch.float32
    assert TYPE_NAMES["int64"] is torch.int64


class Memory:
    """Stands for an arena: counts what is taken and given back, and lays tensors anywhere."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.given_back: list[tuple[int, int]] = []

    def take(self, count: int) -> int:
        self.taken.append((len(self.taken), count))
        return self.taken[-1][0]

    def give_back(self, at: int, count: int) -> None:
        self.given_back.append((at, count))

    def tensor(self, at: int, count: int, offset: int, kind: torch.dtype, shape: torch.Size) -> torch.Tensor:
        return torch.empty(shape, dtype=kind)


def test_a_slot_aligns_what_it_holds_and_moves_only_when_something_does_not_fit() -> None:
    memory = Memory()
    slot = Slot(memory, 0)  # type: ignore[arg-type]
    copies, places = slot.write([torch.arange(3), torch.ones(2, 2, dtype=torch.float64)])
    assert places == [[0, "int64", [3]], [64, "float64", [2, 2]]]
    assert [c.tolist() for c in copies] == [[0, 1, 2], [[1, 1], [1, 1]]]
    slot.write([torch.zeros(1)])
    assert len(memory.taken) == 1 and not memory.given_back
    slot.write([torch.zeros(1 << 20)])
    assert memory.given_back == [memory.taken[0]]
    assert memory.taken[1][1] >= 4 << 20


class Locking:
    """Stands in for CUDA's runtime, which locks so many ranges and no more."""

    def __init__(self, most: int) -> None:
        self.most, self.locked = most, 0

    def cudaHostRegister(self, *_: int) -> int:
        if self.locked == self.most:
            return 2
        self.locked += 1
        return 0

    def cudaHostUnregister(self, _: int) -> int:
        self.locked -= 1
        return 0 if self.locked >= 0 else 713  # it was not registered


def test_memory_that_cannot_be_locked_is_used_as_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime, forgotten = Locking(1), []
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr("spillway_runner.arena.forget_cuda_error", lambda: forgotten.append(True))
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 20)
        monkeypatch.setattr("spillway_runner.arena.SHARED_FILE", file.fileno())
        arena = Arena(0, True)
        page = mmap.ALLOCATIONGRANULARITY
        for i in range(3):
            arena.tensor(i * page, page, 0, torch.float32, [2]).copy_(torch.tensor([1.0, i]))
        assert [arena.tensor(i * page, page, 0, torch.float32, [2]).tolist() for i in range(3)] == [
            [1.0, float(i)] for i in range(3)
        ]
        assert (runtime.locked, arena.pinned, forgotten) == (1, False, [True])
        assert "which takes longer" in capsys.readouterr().err
        for i in range(3):
            arena.unmap(i * page)
        assert runtime.locked == 0
