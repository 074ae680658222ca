"""Imports the package whose files come as the first line on file descriptor 3, and serves.

It is plain enough for any Python, so that one that is too old can say so. The two pipes are for this process alone: one
that it starts would keep them open.
"""

import json
import os
import sys

requests, answers = os.fdopen(3), os.fdopen(4, "w")


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
os.set_inheritable(3, False)
os.set_inheritable(4, False)
os.register_at_fork(after_in_child=leave)
try:
    from importlib.util import spec_from_loader

    sys.meta_path.insert(0, Package(json.loads(requests.readline())))
    from spillway_runner.requirements import check_torch

    check_torch()
    from spillway_runner.serve import serve
except Exception as error:
    fail(**getattr(error, "fields", {"kind": "runner", "message": repr(error)}))
serve(requests, answers)
