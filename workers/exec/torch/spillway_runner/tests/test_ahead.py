"""Batches that other processes fetch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
import torch

from spillway_runner.data import Data
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source
from spillway_runner.values import tensors

MakeSource = Callable[[str], Source]
StartData = Callable[..., Data]

KINDS = """
import os
import random
import time
import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

class Numbers(Dataset):
    def __init__(self, log=""):
        self.log = log
    def __len__(self):
        return 11
    def __getitem__(self, i):
        if self.log:
            with open(self.log, "a") as file:
                file.write("%d %d\\n" % (i, os.getpid()))
        return torch.rand(2) + random.random() + numpy.random.rand(), i

class Endless(IterableDataset):
    def __iter__(self):
        return ((torch.rand(2), random.randrange(100)) for _ in range(11))

class Unlike(Dataset):
    def __len__(self):
        return 12
    def __getitem__(self, i):
        return torch.ones(i % 3 + 1), {"id": torch.tensor(i), "name": "n%d" % i}

class Hoard(Numbers):
    held = []
    def __getitem__(self, i):
        self.held.append(torch.ones(1 << 20))
        return torch.rand(2), i

def data(kind):
    return {
        "hoard": Hoard,
        "rows": lambda: (torch.arange(22.0).view(11, 2), torch.arange(11)),
        "samples": Numbers,
        "loader": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True),
        "workers": lambda: DataLoader(Numbers(), batch_size=4, shuffle=True, num_workers=2),
        "iterable": Endless,
        "generator": lambda: ((torch.rand(4), torch.full((4,), random.randrange(100))) for _ in range(2)),
        "lists": lambda: DataLoader(Unlike(), batch_size=4, collate_fn=lambda s: (
            torch.nn.utils.rnn.pad_sequence([x for x, _ in s], True), torch.stack([y["id"] for _, y in s]))),
    }.get(kind, lambda: Numbers(kind))()
"""
FETCHED = ["rows", "samples", "loader", "iterable", "generator", "lists"]  # by processes of ours


@pytest.fixture
def started(source: MakeSource) -> Iterator[StartData]:
    """A function that reads data and has so many processes fetch them; they end with the test."""
    made: list[Data] = []

    def start(text: str, path: str = "", workers: int = 1, batch: int = 4, patience: float = 60.0) -> Data:
        data = Data(source(text), path, batch, 7, patience)
        made.append(data)
        data.start(workers)
        return data

    yield start
    for data in made:
        data.close()


def batch(data: Data, step: int, begin: int = 0, end: int | None = None) -> list[Any]:
    return [t.tolist() for t in tensors(list(data.batch(step, begin, end)))]


@pytest.mark.parametrize("kind", FETCHED)
def test_batches_are_the_same_whoever_fetches_them(started: StartData, kind: str) -> None:
    here, one, three = (started(KINDS, kind, workers) for workers in (0, 1, 3))
    assert one.ahead is not None and three.ahead is not None
    # in order, after a resume, back, and into later epochs
    for step in [0, 1, 2, 3, 9, 10, 2, 3]:
        wanted = batch(here, step)
        assert batch(one, step) == wanted
        assert batch(three, step) == wanted


@pytest.mark.parametrize("kind", FETCHED + ["workers"])
@pytest.mark.parametrize("workers", [0, 2])
def test_replicas_read_their_samples_of_the_same_batch(started: StartData, kind: str, workers: int) -> None:
    whole, first, second = started(KINDS, kind, 0), started(KINDS, kind, workers), started(KINDS, kind, workers)
    for step in [0, 1, 5]:
        parts = zip(batch(first, step, 0, 1), batch(second, step, 1, 4))
        assert [a + b for a, b in parts] == batch(whole, step)


def test_a_replica_loads_no_other_samples(started: StartData, tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = started(KINDS, str(log), 0)
    numbers = [batch(data, step, 1, 3)[1] for step in (0, 1)]
    assert [int(line.split()[0]) for line in log.read_text().splitlines()] == numbers[0] + numbers[1]


def test_the_samples_of_a_loader_are_read_by_themselves(started: StartData, tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = started(KINDS.replace("lambda: Numbers(kind)", "lambda: DataLoader(Numbers(kind), 4, True)"), str(log), 0)
    numbers = batch(data, 5, 1, 3)[1]  # of the third epoch, at once
    assert [int(line.split()[0]) for line in log.read_text().splitlines()] == numbers


def test_a_loader_with_processes_keeps_them(started: StartData) -> None:
    data = started(KINDS, "workers", 2)
    assert data.ahead is None
    again = started(KINDS, "workers", 0)
    assert [batch(data, step) for step in (0, 1, 2)] == [batch(again, step) for step in (0, 1, 2)]


def test_processes_seed_the_generators_of_this_one_as_it_does(started: StartData) -> None:
    drawn = []
    for workers in (0, 1):
        data = started(KINDS, "samples", workers)
        data.batch(3)
        drawn.append(torch.rand(1).item())
    assert drawn[0] == drawn[1]


def wait_for(reached: Callable[[], bool]) -> None:
    """Waits a minute at most; where it is reached never, what follows finds that."""
    deadline = time.monotonic() + 60
    while not reached() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_the_following_batches_are_read_before_they_are_asked_for_and_no_more(
    started: StartData, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    data = started(KINDS, str(log), 2)

    def lines() -> list[str]:
        return log.read_text().splitlines() if log.exists() else []

    assert lines() == []  # nobody has said where a training begins
    data.batch(1)
    wait_for(lambda: len(lines()) == 20)  # two batches of each process beside the one that was taken
    data.batch(2)
    wait_for(lambda: len(lines()) == 24)
    assert len(lines()) == 24
    assert len({line.split()[1] for line in lines()} - {str(os.getpid())}) == 2


def test_a_batch_stays_as_it_is_until_the_next_is_asked_for(started: StartData, tmp_path: Path) -> None:
    log = tmp_path / "log"
    data, again = started(KINDS, str(log), 1), started(KINDS, "samples", 0)
    for step in range(7):
        taken = data.batch(step)
        wait_for(lambda step=step: len(log.read_text().splitlines()) == 4 * (step + 3))  # type: ignore[misc]
        assert [t.tolist() for t in tensors(list(taken))] == batch(again, step)


@pytest.mark.parametrize(
    ("kind", "fetchers"), [("rows", 65536), ("samples", 65536), ("loader", 65536), ("iterable", 1), ("workers", 0)]
)
def test_what_data_cost_is_known(source: MakeSource, kind: str, fetchers: int) -> None:
    data = Data(source(KINDS), kind, None, 0)
    data.example_batch(6)
    cost = data.cost(6)
    assert cost["batch_bytes"] == sum(t.numel() * t.element_size() for t in tensors(list(data.example_batch(6))))
    assert cost["fetch_seconds"] > 0 and cost["fetchers"] == fetchers
    data.close()


OPENED = """
import os
import torch
class Opened:
    \"\"\"A file of numbers of one byte, opened as it is made or for the first sample.\"\"\"
    def __init__(self, path, lazily):
        self.path, self.file = path, None if lazily else open(path, "rb")
    def __len__(self):
        return os.path.getsize(self.path)
    def __getitem__(self, i):
        self.file = self.file or open(self.path, "rb")
        self.file.seek(i)
        return torch.tensor([float(self.file.read(1)[0])]), i % 256

def data(path):
    return Opened(path[:-1], path[-1] == "+")
"""


def test_a_file_that_is_opened_for_the_first_sample_is_that_of_one_process(started: StartData, tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    file.write_bytes(bytes(range(256)) * 64)
    data = started(OPENED, f"{file}+", 3, batch=64)
    assert data.unasked > 1
    for step in range(100):
        numbers, same = batch(data, step)
        assert [int(n) for (n,) in numbers] == same


def test_files_that_are_open_are_for_one_process_unless_more_are_asked_for(source: MakeSource, tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    file.write_bytes(bytes(range(256)))
    data = Data(source(OPENED), f"{file}-", None, 0)
    data.example_batch(4)
    cost = data.cost(4)
    assert (cost["fetchers"], cost["unasked"]) == (65536, 1)


def test_a_batch_that_is_asked_for_again_is_the_same_without_being_read(started: StartData, tmp_path: Path) -> None:
    log = tmp_path / "log"
    data, again = started(KINDS, str(log), 1), started(KINDS, "samples", 0)
    assert batch(data, 0) == batch(data, 0) == batch(again, 0)
    wait_for(lambda: len(log.read_text().splitlines()) == 12)
    assert len(log.read_text().splitlines()) == 12


def test_what_fetching_holds_is_told(source: MakeSource, started: StartData) -> None:
    four = 4 * (4 << 20)  # bytes that four samples of these leave behind
    assert four <= Data(source(KINDS), "hoard", None, 0).cost(4)["fetch_bytes"] < 2 * four
    data = started(KINDS, "hoard", 2)
    assert data.beside() == 0
    data.batch(0)
    assert four <= data.beside() < 4 * four
    data.batch(1)
    assert data.beside() >= 2 * four


# Errors.

BROKEN = """
import os
import signal
import time
import torch

class Broken:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return {"raise": lambda: None.x, "hang": lambda: time.sleep(3600), "end": lambda: os._exit(3),
                "kill": lambda: os.kill(os.getpid(), signal.SIGKILL)}[os.environ["KIND"]]()

def data():
    return Broken()
"""


OWN = """
def data():
    return torch.utils.data.DataLoader(Broken(), 4, num_workers=2)
"""


def refused(data: Data, step: int = 0) -> dict[str, str]:
    with pytest.raises(Refusal) as caught:
        data.batch(step)
    error: BaseException | None = caught.value
    while error is not None:  # frames that hold the iterator of a DataLoader
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__
    return caught.value.fields


@pytest.mark.parametrize("workers", [0, 2])
def test_what_raises_is_told_with_its_line(started: StartData, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setenv("KIND", "raise")
    fields = refused(started(BROKEN, workers=workers))
    number = fields["message"].split()[1]
    assert fields["message"].startswith(f"sample {number} cannot be read: AttributeError: 'NoneType'")
    assert fields["at"].endswith(":11") and "in __getitem__" in fields["trace"], fields


def test_what_raises_in_a_process_of_a_dataloader_is_told_with_its_line(
    started: StartData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIND", "raise")
    fields = refused(
        started(BROKEN + "def data():\n    return torch.utils.data.DataLoader(Broken(), 4, num_workers=2)\n")
    )
    assert fields["message"].endswith(
        "cannot be read: AttributeError: 'NoneType' object has no attribute 'x' (in process 0 of the DataLoader)"
    ), fields
    assert fields["at"].endswith(":11") and "in __getitem__" in fields["trace"], fields


def test_what_a_collate_fn_raises_is_told_with_its_line(started: StartData) -> None:
    text = KINDS.replace("lambda: Numbers(kind)", "lambda: DataLoader(Numbers(), 4, collate_fn=join)")
    fields = refused(started(text + "\ndef join(samples):\n    return samples.x\n", "other"))
    assert "cannot be put together: AttributeError: 'list' object has no attribute 'x'" in fields["message"], fields
    assert fields["at"].endswith(f":{len(text.splitlines()) + 3}") and "in join" in fields["trace"], fields


KILLED = """
import os, signal, sys
from spillway_runner.data import Data
from spillway_runner.source import Source
data = Data(Source(sys.argv[1]), "workers", 4, 7)
data.batch(0)
for process in data.reader.iterator._workers:
    os.kill(process.pid, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_of_a_dataloader_that_are_killed_leave_no_files(source: MakeSource, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ended = subprocess.run(
        [sys.executable, "-B", "-c", KILLED, source(KINDS).path],
        env={**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_what_hangs_is_told_with_its_line(started: StartData, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setenv("KIND", "hang")
    fields = refused(started(BROKEN, workers=workers, patience=0.2))
    assert fields["message"].endswith("cannot be read: TooLong: it takes more than 0.2 s (--data-timeout)"), fields
    assert fields["at"].endswith(":11"), fields
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("kind", "told", "is_of"), [("end", "has ended", "data"), ("kill", "was killed (SIGKILL)", "memory")]
)
def test_a_process_that_ends_is_told(
    started: StartData, monkeypatch: pytest.MonkeyPatch, kind: str, told: str, is_of: str
) -> None:
    monkeypatch.setenv("KIND", kind)
    fields = refused(started(BROKEN, workers=1))
    assert fields["message"] == f"a process that fetches the data {told} while the batch of step 0 was waited for"
    assert fields["kind"] == is_of


CHANGING = """
import torch
class Changing:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return {RETURNED}
def data():
    return ((torch.ones(4, 2), torch.ones(4)) if step < 2 else {THEN} for step in range(4))
"""


@pytest.mark.parametrize(
    ("then", "told"),
    [
        ("torch.ones(4, 2)", "(of 2 dimensions in float32), NoneType)"),
        ("(torch.ones(4, 2).double(), torch.ones(4))", "((of 2 dimensions in float64), of 1 dimensions in float32)"),
        ("({'x': torch.ones(4, 2)}, torch.ones(4))", "({x: of 2 dimensions in float32}, of 1 dimensions in float32)"),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_other_parts_in_the_middle_are_refused(started: StartData, then: str, told: str, workers: int) -> None:
    data = started(CHANGING.replace("{THEN}", then).replace("{RETURNED}", "0"), workers=workers)
    for step in (0, 1):
        data.batch(step)
    message = refused(data, 2)["message"]
    assert "the batch of step 2 is (inputs, target) " in message and told in message, message


def test_processes_end_with_the_data(started: StartData) -> None:
    data = started(KINDS, "samples", 2)
    data.batch(0)
    assert data.ahead is not None
    workers = list(data.ahead.batches._workers)  # type: ignore[attr-defined]
    data.close()
    assert not any(worker.is_alive() for worker in workers)
    assert not [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
