"""Programs of known kinds. Each works once for every line that it reads, and answers with a line when it has."""

import sys


def single():
    """One thread of Python."""

    def work():
        total = 0
        for i in range(10_000_000):
            total += i * i % 7
        return total

    return work


def squares(n):
    """A part of the work of processes."""
    total = 0
    for i in range(n):
        total += i * i % 7
    return total


def processes():
    """Two processes of Python that share the work."""
    from multiprocessing import Pool

    pool = Pool(2)

    def work():
        return sum(pool.map(squares, [550_000] * 16, chunksize=1))

    return work


def arrays():
    """Products of matrices, on as many threads as numpy takes, and what it does on one."""
    import numpy

    a = numpy.random.default_rng(1).random((700, 700))

    def work():
        b = a
        for _ in range(24):
            b = numpy.sort(a @ b, axis=1) / 700
        return b.sum()

    return work


def net():
    import torch

    torch.set_num_threads(2)
    torch.manual_seed(1)
    layers = [torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()]
    return torch, torch.nn.Sequential(*layers, torch.nn.Linear(512, 10))


def train():
    """A small net of PyTorch learns, on two threads."""
    torch, model = net()
    inputs, targets = torch.randn(512, 256), torch.randint(0, 10, (512,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def work():
        for _ in range(25):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()

    return work


def infer():
    """The same answers, one example after the other."""
    torch, model = net()
    inputs = torch.randn(1, 256)

    def work():
        with torch.no_grad():
            for _ in range(14000):
                model(inputs)

    return work


def waits():
    """Half of its time it waits for something else, in pieces of 20 ms."""
    import time

    def work():
        for _ in range(20):
            began = time.process_time()
            while time.process_time() - began < 0.020:
                squares(200)
            time.sleep(0.020)

    return work


if __name__ == "__main__":
    task = globals()[sys.argv[1]]()
    task()
    print("ready", flush=True)
    for _ in sys.stdin:
        task()
        print("done", flush=True)
