"""Errors that the author of a model can mend."""

from __future__ import annotations


class Refusal(Exception):
    """Something that the author of the model can change: what is wrong, at which file and line, and what to do."""

    def __init__(self, kind: str, message: str, at: str = "", hint: str = "", trace: str = "") -> None:
        super().__init__(message)
        self.fields = {"kind": kind, "message": message, "at": at, "hint": hint, "trace": trace}
