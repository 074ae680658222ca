"""Answers requests one after another."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, TextIO

import torch

from spillway_runner.answers import Answers
from spillway_runner.commands import COMMANDS


def serve(requests: TextIO, answers: TextIO) -> None:
    """Says that it is ready, then answers requests until there are no more."""
    replies = Answers(answers)
    replies.write(0, lambda: {"torch": torch.__version__})
    for line in requests:
        request = json.loads(line)
        replies.write(request["id"], partial(run, request, replies))


def run(request: dict[str, Any], replies: Answers) -> Any:
    return COMMANDS[request["command"]](request, replies)
