"""Runs tuners on the same job in turns, and prints what each found, how long it took and what it held meanwhile.

measure.py DATA REPETITIONS [SIDE ...]: DATA is digits.csv.gz, and each side NAME_side.py, all three where none is
named. Linux only. A line a run goes to the standard output, as JSON, and a table at the end.

Memory is the proportional set size of all processes that the side started, every tenth of a second, without those that
train: programs of digits.py, and Ray's actors, which train themselves. It is that of the tuner with all its helpers.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "SPILLWAY_MEASURED_SIDE"
TICKS = os.sysconf("SC_CLK_TCK")


def read(path: str) -> str:
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")


class Watch(threading.Thread):
    """Sees the processes of a side until it is told to end: those that inherited its mark, and all that they start."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self.mark = f"{MARK}={mark}"
        self.over = threading.Event()
        self.memory: list[int] = []  # of the tuner, in bytes, of each look
        self.seconds: dict[str, tuple[bool, float]] = {}  # of each process: whether it trains, its time on a core

    def run(self) -> None:
        known: dict[str, bool] = {}
        started: set[str] = set()  # numbers of processes that the side started
        while not self.over.wait(0.1):
            held = 0
            for pid in filter(str.isdigit, os.listdir("/proc")):
                # A process may end at any moment.
                with contextlib.suppress(OSError, ValueError):
                    stat = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
                    key = f"{pid} {stat[19]}"  # a number is used again, but not with the same time of start
                    if key not in known:
                        inherited = self.mark in read(f"/proc/{pid}/environ").split("\0")
                        known[key] = inherited or stat[1] in started
                        (started.add if known[key] else started.discard)(pid)
                    if not known[key]:
                        continue
                    trains = is_trial(read(f"/proc/{pid}/cmdline").replace("\0", " "))
                    self.seconds[key] = (trains, (int(stat[11]) + int(stat[12])) / TICKS)
                    if not trains:
                        held += pss(read(f"/proc/{pid}/smaps_rollup"))
            self.memory.append(held)


def is_trial(command: str) -> bool:
    # Ray names its actors by what they run: its other processes, "ray::IDLE" and agents, are helpers.
    return (
        "digits.py" in command
        and "_side.py" not in command
        and " tune " not in command
        or command.startswith(("ray::ImplicitFunc", "ray::run"))
    )


def pss(rollup: str) -> int:
    return sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))


def measure(name: str, command: str, seed: int) -> dict[str, Any]:
    mark = uuid.uuid4().hex
    # One trial has one core, as in each of the tuners' own terms.
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    environment[MARK] = mark
    watch = Watch(mark)
    watch.start()
    load = os.getloadavg()[0]
    began = time.monotonic()
    done = subprocess.run(command, shell=True, env=environment, stdout=subprocess.PIPE, text=True)
    wall = time.monotonic() - began
    watch.over.set()
    watch.join()
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with {done.returncode}: {command}\n{done.stdout}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    told.update(
        side=name,
        seed=seed,
        wall_seconds=wall,
        tuner_core_seconds=sum(s for trains, s in watch.seconds.values() if not trains),
        trials_core_seconds=sum(s for trains, s in watch.seconds.values() if trains),
        trials_per_minute=told["trials"] / wall * 60,
        tuner_median_mib=statistics.median(watch.memory) / 2**20,
        tuner_most_mib=max(watch.memory) / 2**20,
        load_before=load,
    )
    return told


def main() -> None:
    data, repetitions = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    python = sys.executable
    names = sys.argv[3:] or ["spillway", "optuna", "ray"]
    sides = {name: f"'{python}' '{HERE}/{name}_side.py' {{data}} {{seed}}" for name in names}
    runs: list[dict[str, Any]] = []
    for seed in range(1, repetitions + 1):
        for name, command in sides.items():
            runs.append(measure(name, command.replace("{data}", f"'{data}'").replace("{seed}", str(seed)), seed))
            print(json.dumps(runs[-1]), flush=True)
    columns = [
        "best",
        "wall_seconds",
        "trials_per_minute",
        "epochs",
        "tuner_median_mib",
        "tuner_most_mib",
        "tuner_core_seconds",
        "trials_core_seconds",
    ]
    print("median of", repetitions, *columns, sep="\t")
    for name in sides:
        middle = [statistics.median(run[column] for run in runs if run["side"] == name) for column in columns]
        print(name, *(f"{value:.4g}" for value in middle), sep="\t")


if __name__ == "__main__":
    main()
