"""What scripts report, read as Spillway reads it: python3 -m unittest discover tests"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent


def run(script: str, **variables: str) -> tuple[list[Any], str]:
    """Runs a script as an attempt would be, and returns what it has reported and printed."""
    with tempfile.TemporaryDirectory() as work:
        pipe = os.path.join(work, "pipe")
        os.mkfifo(pipe)
        reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE), "SPILLWAY_REPORT": pipe, **variables}
        for name in [name for name, value in environment.items() if value == ""]:
            del environment[name]
        command = [sys.executable, "-B", "-c", script]
        ended = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
        with open(reads, encoding="utf-8") as reports:
            told = [json.loads(line) for line in reports]
    return told, ended.stdout + ended.stderr


class Reports(unittest.TestCase):
    def test_each_function_writes_a_line_of_the_protocol(self) -> None:
        told, said = run("""
import os, pathlib, spillway
spillway.progress(0)
spillway.progress(3, 10, {"loss": 0.25, "worse": float("nan"), "worst": float("-inf"), "count": True, "big": 10**400})
spillway.checkpoint("state.pt")
spillway.checkpoint(pathlib.Path("/tmp/one"))
spillway.result(accuracy=0.5, history=[1, float("inf")], names={"a": None}, where=pathlib.Path("x"))
spillway.no_retry()
print(os.getcwd(), spillway.resume(), spillway.active())
""")
        here = said.split()[0]
        self.assertEqual(said.split()[1:], ["None", "True"])
        self.assertEqual(
            told,
            [
                {"progress": 0},
                {
                    "progress": 3,
                    "of": 10,
                    "metrics": {"loss": 0.25, "worse": "NaN", "worst": "NaN", "count": 1, "big": "NaN"},
                },
                {"checkpoint": here + "/state.pt"},
                {"checkpoint": "/tmp/one"},
                {"result": {"accuracy": 0.5, "history": [1, None], "names": {"a": None}, "where": "x"}},
                {"retry": False},
            ],
        )

    def test_a_checkpoint_to_go_on_from_is_told(self) -> None:
        told, said = run("import spillway; print(spillway.resume())", SPILLWAY_RESUME="/there/state.pt")
        self.assertEqual((told, said.strip()), ([], "/there/state.pt"))

    def test_outside_of_an_attempt_arguments_are_checked_and_nothing_else(self) -> None:
        script = """
import spillway
spillway.progress(1, 2, {"loss": 1})
spillway.result(a=1)
spillway.checkpoint("x")
print(spillway.resume(), spillway.active())
for wrong in (
    lambda: spillway.progress(-1), lambda: spillway.progress(1.5), lambda: spillway.progress("many"),
    lambda: spillway.progress(float("nan")), lambda: spillway.progress(1, 0),
    lambda: spillway.progress(1, 2, {"loss": "low"}), lambda: spillway.result(a=object()),
):
    try:
        wrong()
    except (TypeError, ValueError) as why:
        print(why)
"""
        for variables in ({"SPILLWAY_REPORT": ""}, {}):
            _, said = run(script, **variables)
            lines = said.splitlines()
            self.assertEqual(lines[0], f"None {bool(variables) is False}")
            self.assertEqual(len(lines), 8, said)
            self.assertIn("done is -1, and not a whole number from 0 on", lines[1])
            self.assertIn("metrics['loss'] is 'low', and not a number", lines[6])

    def test_lines_of_threads_are_whole(self) -> None:
        told, said = run("""
import threading, spillway
def work(n):
    for i in range(40):
        spillway.result(**{"t%d" % n: "x" * 100 + str(i)})
threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
[t.start() for t in threads]; [t.join() for t in threads]
""")
        self.assertEqual((len(told), said), (240, ""))
        self.assertEqual(
            {key: n["result"][key][100:] for n in told for key in n["result"]}, {f"t{n}": "39" for n in range(6)}
        )

    def test_only_the_first_process_of_a_training_speaks(self) -> None:
        for variables, speaks in (
            ({"RANK": "0", "LOCAL_RANK": "0"}, True),
            ({"RANK": "1", "LOCAL_RANK": "1"}, False),
            ({"RANK": "8", "LOCAL_RANK": "0", "WORLD_SIZE": "16"}, False),
            ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "16"}, True),
            ({"RANK": "8"}, True),
            ({"LOCAL_RANK": "1"}, False),
            ({"SLURM_PROCID": "3"}, False),
        ):
            with self.subTest(variables):
                told, _ = run("import spillway; spillway.progress(1)", **variables)
                self.assertEqual(told, [{"progress": 1}] if speaks else [])

    def test_what_a_process_forks_or_its_multiprocessing_starts_is_silent_and_what_it_executes_is_not(self) -> None:
        told, said = run("""
import multiprocessing, os, subprocess, sys, spillway
spillway.progress(1)
for number, how in enumerate(("fork", "spawn"), 10):
    started = multiprocessing.get_context(how).Process(target=spillway.progress, args=(number,))
    started.start()
    started.join()
child = os.fork()
if child == 0:
    spillway.progress(20)
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, "-B", "-c", "import spillway; spillway.progress(2)"], close_fds=True, check=True)
spillway.progress(3)
""")
        self.assertEqual((said, told), ("", [{"progress": 1}, {"progress": 2}, {"progress": 3}]))

    def test_a_worker_of_a_data_loader_is_silent_though_it_has_the_rank_of_its_parent(self) -> None:
        told, said = run(
            """
import sys, types, spillway
sys.modules["torch.utils.data"] = data = types.ModuleType("torch.utils.data")
spillway.progress(0)  # while another thread is still importing it
for worker in (None, object(), None):
    data.get_worker_info = lambda: worker
    spillway.progress(1)
""",
            RANK="0",
        )
        self.assertEqual((said, told), ("", [{"progress": 0}, {"progress": 1}, {"progress": 1}]))

    def test_a_process_that_claims_to_be_the_first_speaks_though_it_was_forked(self) -> None:
        told, said = run("""
import os, spillway
from spillway import _line
child = os.fork()
if child == 0:
    _line.claim()
    spillway.progress(2)
    os._exit(0)
os.waitpid(child, 0)
""")
        self.assertEqual((said, told), ("", [{"progress": 2}]))

    def test_a_handler_of_a_signal_reports_while_its_own_thread_does(self) -> None:
        told, said = run("""
import os, signal, spillway
from spillway import _line
signal.alarm(20)  # rather than for ever
signal.signal(signal.SIGTERM, lambda *_: spillway.checkpoint("/state"))
with _line._lock:
    os.kill(os.getpid(), signal.SIGTERM)
spillway.progress(1)
""")
        self.assertEqual((said, told), ("", [{"checkpoint": "/state"}, {"progress": 1}]))

    def test_a_pipe_that_nobody_reads_holds_up_nobody(self) -> None:
        with tempfile.TemporaryDirectory() as work:
            pipe = os.path.join(work, "pipe")
            os.mkfifo(pipe)
            script = "import spillway; spillway.progress(1); print(spillway.active())"
            told, said = run(script, SPILLWAY_REPORT=pipe)
            self.assertEqual((told, said), ([], "False\n"))
            told, said = run(script, SPILLWAY_REPORT=os.path.join(work, "none"))
            self.assertIn("open the pipe of reports", said)
            self.assertIn("False\n", said)


class Rates(unittest.TestCase):
    def test_rates_are_those_of_the_last_seconds_and_a_total_that_cannot_be_is_left_out(self) -> None:
        told, said = run("""
from spillway import _meter
now = 100.0
meter = _meter.Meter(lambda: now)
meter.begin()
meter.tell(0, 10, {})
assert not meter.due()
now, meter.samples = 104.0, 40
assert meter.due()
meter.tell(4, 10, {"loss": 1})
for second in range(105, 200):  # ten times as fast
    now, meter.samples, meter.tokens = float(second), meter.samples + 100, meter.tokens + 800
    rates = meter.rates()
meter.tell(11, 10, {})
meter.tell(12, -1, {})
""")
        self.assertEqual(said, "")
        fast = {"samples_per_second": 100, "tokens_per_second": 800}
        self.assertEqual(
            told,
            [
                {"progress": 0, "of": 10},
                {"progress": 4, "of": 10, "metrics": {"loss": 1, "samples_per_second": 10}},
                {"progress": 11, "metrics": fast},
                {"progress": 12, "metrics": fast},
            ],
        )

    def test_a_batch_has_as_many_samples_as_its_first_array_has_rows(self) -> None:
        told, said = run("""
from spillway import _meter
class Array:
    def __init__(self, *shape):
        self.shape = shape
    def numel(self):
        return self.shape[0] * self.shape[1]
print(_meter.size({"input_ids": Array(8, 32), "labels": Array(8)}))
print(_meter.size((Array(4, 2), [Array(9)])))
print(_meter.size(["a", (Array(), Array(5, 5))]))
print(_meter.size(None))
class Named:  # what users name such fields has another meaning there
    items, values, shape = Array(3), Array(3), "wide"
print(_meter.size(Named()))
print(_meter.numbers({"loss": 0.5, "text": "x", "none": None, "count": 3, "big": 10**400}))
""")
        self.assertEqual(told, [])
        self.assertEqual(
            said.splitlines(), ["(8, 256)", "(4, 0)", "(5, 0)", *["(0, 0)"] * 2, "{'loss': 0.5, 'count': 3.0}"]
        )

    def test_a_model_whose_hooks_see_no_named_arguments_is_trained_and_counted_by_what_the_arguments_say(self) -> None:
        told, said = run("""
import sys, types
sys.modules["transformers"] = transformers = types.ModuleType("transformers")
transformers.TrainerCallback = object
from spillway.huggingface import SpillwayCallback
class Model:  # as those of torch 1.13
    def register_forward_pre_hook(self, hook):
        raise AssertionError("it is given positional arguments alone")
arguments = types.SimpleNamespace(world_size=1, train_batch_size=8, gradient_accumulation_steps=2, output_dir="out")
state = types.SimpleNamespace(is_world_process_zero=True, global_step=0, max_steps=3)
callback = SpillwayCallback()
callback.on_train_begin(arguments, state, None, model=Model())
state.global_step = 1
callback.on_step_end(arguments, state, None)
callback.on_train_end(arguments, state, None)
print(callback._meter.samples)
""")
        self.assertEqual((said, [line["progress"] for line in told]), ("16\n", [0, 1]))

    def test_checkpoints_of_a_second_trainer_are_told_where_the_first_one_failed(self) -> None:
        told, said = run("""
import sys, types
for name in ("torch", "lightning", "lightning.pytorch"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["lightning.pytorch"].Callback = object
from spillway.lightning import SpillwayCallback
class Trainer:
    is_global_zero = True
    def save_checkpoint(self, filepath, weights_only=False):
        open(filepath, "w").close()
callback = SpillwayCallback()
failed, second = Trainer(), Trainer()
callback.setup(failed, None, "fit")  # and of one that fails Lightning calls no teardown
callback.setup(second, None, "fit")
callback.setup(second, None, "fit")
second.save_checkpoint("/dev/null")
callback.teardown(second, None, "fit")
second.save_checkpoint("/dev/null")
""")
        self.assertEqual((said, told), ("", [{"checkpoint": "/dev/null"}]))


if __name__ == "__main__":
    unittest.main()
