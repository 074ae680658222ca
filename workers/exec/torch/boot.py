"""Imports the package whose files come as the first line on file descriptor 3, and forks processes that serve.

It is plain enough for any Python, so that one that is too old can say so. The two pipes of each process are for it
alone: one that it starts would keep them open.
"""

import json
import os
import sys

requests, answers = os.fdopen(3, closefd=False), os.fdopen(4, "w", closefd=False)  # a fork has others there


def fail(**fields):
    answers.write(json.dumps({"id": 0, "error": fields}) + "\n")
    answers.flush()
    sys.exit(1)


def leave():
    requests.close()
    answers.close()


class Package:
    """Imports modules from their files' texts, by path. The files are named <PATH>, as none on the disk is."""

    def __init__(self, texts):
        self.texts = texts

    def find_spec(self, name, path=None, target=None):
        package, module = name.replace(".", "/") + "/__init__.py", name.replace(".", "/") + ".py"
        for file in (package, module):
            if file in self.texts:
                return spec_from_loader(name, self, origin="<" + file + ">", is_package=file == package)
        return None

    def create_module(self, spec):
        return None  # the usual one

    def exec_module(self, module):
        file = module.__spec__.origin
        exec(compile(self.texts[file[1:-1]], file, "exec"), vars(module))


if sys.version_info < (3, 8):
    fail(
        kind="python",
        message="%s is Python %s" % (sys.executable, sys.version.split()[0]),
        hint="name a Python of version 3.8 or later",
    )
for number in 3, 4, 5:
    os.set_inheritable(number, False)
try:
    from importlib.util import spec_from_loader

    sys.meta_path.insert(0, Package(json.loads(requests.readline())))
    from spillway_runner.requirements import check_torch

    check_torch()
    from spillway_runner.forks import ForkServer
    from spillway_runner.serve import serve

    server = ForkServer(answers)
except Exception as error:
    fail(**getattr(error, "fields", {"kind": "runner", "message": repr(error)}))
found = server.serve()
if found:
    requests, answers = found
    os.register_at_fork(after_in_child=leave)
    serve(requests, answers)
