from __future__ import annotations

import array
import errno
import io
import json
import os
import socket

import pytest

from spillway_runner.forks import ForkServer


def test_a_fork_that_fails_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    with ours, theirs, os.fdopen(read), os.fdopen(write, "w"):
        ours.sendmsg([b"0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [read, write, write]))])
        server = ForkServer.__new__(ForkServer)
        answers = io.StringIO()
        server.answers, server.passing, server.children = answers, theirs, {}

        def full() -> int:
            raise BlockingIOError(errno.EAGAIN, "too many processes")

        monkeypatch.setattr(os, "fork", full)
        before = len(os.listdir("/proc/self/fd"))
        assert not server.fork({"id": 3, "command": "fork", "end": 4, "cpus": None})
        assert len(os.listdir("/proc/self/fd")) == before  # what was passed is closed
    told = json.loads(answers.getvalue())
    assert told["id"] == 3 and told["error"]["kind"] == "fork" and "too many processes" in told["error"]["message"]
    assert not server.children
