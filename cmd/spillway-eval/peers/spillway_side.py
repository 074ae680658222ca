"""Tunes with `spillway tune`: two trials at once, each a process. spillway_side.py DATA SEED [ALGORITHM]

$SPILLWAY is the program, or else it is found as any. The last line that it prints is a JSON object: best,
configuration, trials, epochs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from space import AT_ONCE, EPOCHS, ETA, SPACE, TRIALS


def main() -> None:
    data, seed = os.path.abspath(sys.argv[1]), sys.argv[2]
    algorithm = sys.argv[3] if len(sys.argv) > 3 else "asha"
    here = os.path.dirname(os.path.abspath(__file__))
    # An engine of its own, started and ended with the tuning, on a pool of two cores.
    with tempfile.TemporaryDirectory() as state:
        command = [os.environ.get("SPILLWAY", "spillway"), "tune", "--state", state, "--json", "--quiet", "--no-burst"]
        command += ["--pool-cpus", ",".join(map(str, sorted(os.sched_getaffinity(0))[:AT_ONCE]))]
        command += ["--code", here, "--cpu", "1", "--seed", seed, "--env", "OMP_NUM_THREADS=1"]
        command += ["--trials", str(TRIALS), "--most", str(EPOCHS), "--least", "1", "--eta", str(ETA), "--no-fetch"]
        command += ["--algorithm", algorithm]
        for name, (kind, low, high) in SPACE.items():
            ends = f"{int(low)}..{int(high)}" if kind == "int" else f"{float(low)!r}..{float(high)!r}"
            command += ["--space", f"{name}={'log:' if kind == 'log' else ''}{ends}"]
        command += ["--", sys.executable, "digits.py", data, "--epochs", "{to}", "--checkpoint", "state.npz"]
        for name in SPACE:
            command += ["--" + name.replace("_", "-"), "{" + name + "}"]
        told = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    print(json.dumps(summary(json.loads(told))))


def summary(told: Any) -> dict[str, Any]:
    tuning = told["tunings"][0]
    trials = tuning["trials"]
    best = trials[tuning["best"]]
    return {
        "best": best["jobs"][-1]["objective"],
        "configuration": best["configuration"],
        "trials": len(trials),
        "epochs": sum(job["to"] - job["from"] for trial in trials for job in trial["jobs"]),
    }


if __name__ == "__main__":
    main()
