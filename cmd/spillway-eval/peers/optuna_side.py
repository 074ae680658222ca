"""Tunes with Optuna: TPE and its pruner of Hyperband, two trials at once, each a process. optuna_side.py DATA SEED

The last line that it prints is a JSON object: best, configuration, trials, epochs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import optuna

from space import AT_ONCE, EPOCHS, ETA, SPACE, TRIALS


def suggest(trial: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {}
    for name, (kind, low, high) in SPACE.items():
        if kind == "int":
            chosen[name] = trial.suggest_int(name, int(low), int(high))
        else:
            chosen[name] = trial.suggest_float(name, low, high, log=kind == "log")
    return chosen


def run(trial: Any, data: str) -> float:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.py")
    command = [sys.executable, program, data, "--epochs", str(EPOCHS)]
    for name, value in suggest(trial).items():
        command += ["--" + name.replace("_", "-"), str(value)]
    best = float("nan")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            told = json.loads(line)
            best = told["metrics"]["loss"]
            trial.report(best, int(told["progress"]))
            if trial.should_prune():
                process.kill()
                raise optuna.TrialPruned()
    if process.returncode != 0:
        raise RuntimeError(f"the trial ended with {process.returncode}")
    return best


def main() -> None:
    data, seed = sys.argv[1], int(sys.argv[2])
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.HyperbandPruner(min_resource=1, max_resource=EPOCHS, reduction_factor=ETA),
    )
    study.optimize(lambda trial: run(trial, data), n_trials=TRIALS, n_jobs=AT_ONCE)
    epochs = sum(max(trial.intermediate_values, default=0) for trial in study.trials)
    print(
        json.dumps(
            {
                "best": study.best_value,
                "configuration": study.best_params,
                "trials": len(study.trials),
                "epochs": epochs,
            }
        )
    )


if __name__ == "__main__":
    main()
