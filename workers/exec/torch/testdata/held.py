import ctypes
import os
import time

PTRACE_SEIZE = 0x4206


def build():
    """Has another process trace this one, tells the number of that, or none where it may not, and never returns.

    After its end this process cannot be collected before the tracer's: as if it hung in the kernel.
    """
    ready, done = os.pipe()
    tracer = os.fork()
    if tracer == 0:
        os.setsid()  # it outlives the group
        refused = ctypes.CDLL(None).ptrace(PTRACE_SEIZE, os.getppid(), None, None)
        os.write(done, b"-" if refused else b"+")
        time.sleep(600)
        os._exit(0)
    traces = os.read(ready, 1) == b"+"
    path = os.path.join(os.path.dirname(__file__), "numbers")
    with open(path + ".new", "w") as file:
        file.write(f"{os.getpid()} {tracer} {int(traces)}")
    os.rename(path + ".new", path)
    while True:
        time.sleep(600)
