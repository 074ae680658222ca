"""Tunes with Ray Tune: ASHA, two trials at once, each in an actor of Ray. ray_side.py DATA SEED

The last line that it prints is a JSON object: best, configuration, trials, epochs.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

from digits import DIVERGED, Network, train
from space import AT_ONCE, EPOCHS, ETA, SPACE, TRIALS


def run(configuration: dict[str, Any]) -> None:
    asked = dict(configuration)
    data = asked.pop("data")
    for _, loss in train(Network(**asked), data, EPOCHS):
        tune.report({"loss": loss if np.isfinite(loss) else DIVERGED})


def main() -> None:
    data, seed = sys.argv[1], int(sys.argv[2])
    random.seed(seed)
    np.random.seed(seed)
    space: dict[str, Any] = {"data": data}
    for name, (kind, low, high) in SPACE.items():
        if kind == "int":
            space[name] = tune.randint(int(low), int(high) + 1)
        else:
            space[name] = (tune.loguniform if kind == "log" else tune.uniform)(low, high)
    with tempfile.TemporaryDirectory() as folder:
        ray.init(num_cpus=AT_ONCE, include_dashboard=False, log_to_driver=False, logging_level="error")
        tuner = tune.Tuner(
            tune.with_resources(run, {"cpu": 1}),
            param_space=space,
            tune_config=tune.TuneConfig(
                metric="loss",
                mode="min",
                num_samples=TRIALS,
                scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=ETA),
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        results = tuner.fit()
        ray.shutdown()
    best = results.get_best_result(scope="last")
    configuration = {name: value for name, value in best.config.items() if name != "data"}
    epochs = sum(result.metrics["training_iteration"] for result in results if result.metrics)
    print(
        json.dumps(
            {
                "best": best.metrics["loss"],
                "configuration": configuration,
                "trials": len(results),
                "epochs": epochs,
            }
        )
    )


if __name__ == "__main__":
    main()
