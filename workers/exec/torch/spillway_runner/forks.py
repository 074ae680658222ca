"""Forks processes that have torch imported already: that takes seconds, and a fork milliseconds."""

from __future__ import annotations

import array
import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
from io import TextIOWrapper
from typing import Any, TextIO

import torch

# Descriptors of every process; a child finds there what it was handed, in this order, with OUTPUT twice.
REQUESTS, ANSWERS, PASSING = 3, 4, 5
OUTPUT = 1, 2
SHARED = 5
MOST_PASSED = 4  # requests, answers, output, shared memory

PR_SET_PDEATHSIG = 1  # of prctl(2)


def preload() -> None:
    """Has torch import what it puts off until the first optimizer, which is half of what it imports; nothing may
    compute, as threads of libraries do not outlive a fork."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    gc.collect()
    gc.freeze()  # a collection does not copy pages that children share


class ForkServer:
    """A process that does nothing but fork others. They run until their requests end."""

    def __init__(self, answers: TextIO) -> None:
        self.answers = answers
        self.passing = socket.socket(fileno=PASSING)
        self.children: dict[int, int] = {}  # the number of the answer about its end, by process
        self.woken, self.waking = socket.socketpair()
        self.waking.setblocking(False)
        self.woken.setblocking(False)

    def serve(self) -> tuple[TextIOWrapper, TextIOWrapper] | None:
        """Says that it is ready, and serves until the requests end; in a child, returns that one's requests and
        answers."""
        preload()
        self.answer(0, {"torch": torch.__version__})
        signal.signal(signal.SIGCHLD, lambda *_: None)  # so that the wake-up is written
        signal.set_wakeup_fd(self.waking.fileno(), warn_on_full_buffer=False)
        received, woken = b"", self.woken.fileno()
        while True:
            ready, _, _ = select.select([REQUESTS, woken], [], [])
            if woken in ready:
                self.woken.recv(4096)
                self.tell_ends()
            if REQUESTS not in ready:
                continue
            more = os.read(REQUESTS, 65536)
            if not more:
                return None
            *lines, received = (received + more).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if request["command"] == "collect":
                    os.waitpid(request["process"], 0)  # it has ended
                    self.answer(request["id"], None)
                elif self.fork(request):
                    return become(request)

    def answer(self, number: int, result: Any) -> None:
        self.write({"id": number, "result": result})

    def write(self, answer: dict[str, Any]) -> None:
        self.answers.write(json.dumps(answer) + "\n")
        self.answers.flush()

    def fork(self, request: dict[str, Any]) -> bool:
        """Forks a process that has its descriptors in place; whether this is that one."""
        size = array.array("i").itemsize
        _, ancillary, _, _ = self.passing.recvmsg(1, socket.CMSG_SPACE(MOST_PASSED * size))
        passed = array.array("i")
        for _, _, data in ancillary:
            passed.frombytes(data[: len(data) - len(data) % size])
        parent = os.getpid()
        try:
            child = os.fork()
        except OSError as error:  # too many processes, or too little memory: the others go on
            for number in passed:
                os.close(number)
            hint = "give the attempt more memory, or fewer parts"
            self.write({"id": request["id"], "error": {"kind": "fork", "message": str(error), "hint": hint}})
            return False
        if child:
            os.setpgid(child, child)  # both do, so that it leads a group before anybody knows of it
            for number in passed:
                os.close(number)
            self.children[child] = request["end"]
            self.answer(request["id"], child)
            return False
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        die_with(parent)
        for held in (self.woken, self.waking, self.passing):
            held.close()
        put(passed)
        return True

    def tell_ends(self) -> None:
        """Answers how children have ended, and leaves them to be collected: until then their numbers are theirs."""
        for child in list(self.children):
            found = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                killed = found.si_code != os.CLD_EXITED
                self.answer(self.children.pop(child), {"signal" if killed else "code": found.si_status})


def die_with(parent: int) -> None:
    """Has this process killed with its parent, where the system can, and now if that is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def put(passed: array.array[int]) -> None:
    """Puts descriptors that were passed in their places; they lie above all of these."""
    requests, answers, output = passed[:3]
    os.dup2(requests, REQUESTS, inheritable=False)
    os.dup2(answers, ANSWERS, inheritable=False)
    for number in OUTPUT:
        os.dup2(output, number)
    if len(passed) == MOST_PASSED:
        os.dup2(passed[3], SHARED, inheritable=False)
    for number in passed:
        os.close(number)


def become(request: dict[str, Any]) -> tuple[TextIOWrapper, TextIOWrapper]:
    """Makes a child what the request says, and returns its requests and answers."""
    if request["cpus"]:
        os.sched_setaffinity(0, request["cpus"])
    return os.fdopen(REQUESTS), os.fdopen(ANSWERS, "w")
