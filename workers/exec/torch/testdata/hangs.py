import os
import subprocess
import time


def build():
    """Starts processes of its own, tells their numbers, and never returns."""
    numbers = [os.getpid(), subprocess.Popen(["sleep", "600"]).pid]
    if (forked := os.fork()) == 0:
        time.sleep(600)
    numbers.append(forked)
    path = os.path.join(os.path.dirname(__file__), "numbers")
    with open(path + ".new", "w") as file:
        file.write(" ".join(map(str, numbers)))
    os.rename(path + ".new", path)
    while True:
        time.sleep(600)
