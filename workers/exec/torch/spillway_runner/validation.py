"""The data that a model is looked at with while it is trained: what validation() of the user's file returns."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, Generator, Iterator

import torch

from spillway_runner.data import PATIENCE, Data, Rows, Samples, Stream, rows
from spillway_runner.finite import odd
from spillway_runner.model import Model
from spillway_runner.modes import Modes
from spillway_runner.patience import bounded
from spillway_runner.recipe import Recipe
from spillway_runner.recording import kept
from spillway_runner.refusal import Refusal
from spillway_runner.seeds import seed_all
from spillway_runner.source import Source, takes
from spillway_runner.values import described_tensor, each, shapes, tensors

if TYPE_CHECKING:
    from spillway_runner.bench import Bench


STEP = -2  # that of what samples draw: of no step
IGNORED = -100  # the target that cross_entropy leaves out; the mean of none is NaN


class ValidationData(Data):
    """What validation(path) of the file returns, in any of the forms of data(path). Without it, or where it takes no
    path, a path of its own is read as data(path) reads one, or is a file of data."""

    def __init__(self, source: Source, path: str | None, own: bool, seed: int, patience: float) -> None:
        """own says that path is that of the validation data alone, and not that of all data."""
        self.own = own
        super().__init__(source, path, None, seed, patience)

    def read(self) -> Any:
        function = self.source.optional("validation")
        if function is None or self.own and not takes(function, 1):
            return super().read()
        seed_all(self.seed, "validation")
        named = takes(function, 1) and bool(self.path or not takes(function, 0))
        if named and not self.path:
            raise Refusal(
                "validation",
                "validation(path) needs a path, and none was given",
                self.source.path,
                "say where the validation data is, or where the data is if both are in one place",
            )
        with self.source.blamed(
            "validation",
            "validation() fails",
            "it returns a pair of tensors, a Dataset or a DataLoader",
        ):
            return function(self.path) if named else function()

    def at(self) -> str:
        return self.source.path if self.source.optional("validation") else super().at()


class Validation:
    """The samples of the validation data in their order, in pieces of at most so many."""

    def __init__(self, data: ValidationData, most: int) -> None:
        self.data, self.most = data, most

    @classmethod
    def of(cls, source: Source, request: dict[str, Any], most: int) -> Validation | None:
        """None where the file has no validation() and no path was given."""
        path = request.get("validation") or ""
        if not path and source.optional("validation") is None:
            return None
        try:
            patience = request.get("data_timeout") or PATIENCE
            data = ValidationData(source, path or request["data"], bool(path), request.get("seed", 0), patience)
            made = cls(data, most)
            if next(made.pieces(), None) is None:
                raise Refusal("validation", "it has no samples", data.at(), "look whether its path is right")
        except Refusal as refusal:
            raise of_validation(refusal) from refusal
        return made

    def pieces(self) -> Iterator[tuple[Any, Any]]:
        """(inputs, target) of each piece, which may take as long as a batch."""
        made, seen = self.read(), 0
        with contextlib.closing(made):
            while True:
                with self.data.source.blamed(
                    "validation", "a piece cannot be read", "iterate over what validation() returns"
                ), bounded(self.data.patience):
                    piece = next(made, None)
                if piece is None:
                    return
                self.check_targets(piece, seen)
                seen += counted(piece)
                yield piece

    def read(self) -> Generator[tuple[Any, Any], None, None]:
        seed_all(self.data.seed, "validation")  # for what samples draw
        reader = self.data.reader
        if isinstance(reader, Stream):
            yield from self.streamed(reader)
            return
        for begin in range(0, reader.samples, self.most):
            numbers = range(begin, min(begin + self.most, reader.samples))
            yield self.data.parted(self.numbered(reader, list(numbers)))

    @staticmethod
    def numbered(reader: Rows | Samples, numbers: list[int]) -> Any:
        if isinstance(reader, Samples):
            return reader.collated(numbers, STEP, numbers[0])
        return each(reader.whole, lambda t: t.index_select(0, torch.tensor(numbers)))

    def streamed(self, reader: Stream) -> Iterator[tuple[Any, Any]]:
        """Pieces of batches as they come. What is left of one goes with the next where their shapes allow it."""
        reader.start(0, 0)
        try:
            yield from self.cut_up(reader)
        finally:
            if reader.iterator is not reader.made:  # a generator is read anew where it is there
                reader.close()

    def cut_up(self, reader: Stream) -> Iterator[tuple[Any, Any]]:
        left: Any = None  # (inputs, target) of fewer samples than a piece has
        while True:
            batch = reader.draw()
            if batch is None:
                break
            reader.next += 1
            parted = self.data.parted(batch)
            if left is not None and tails(left) != tails(parted):
                yield left
                left = None
            whole = parted if left is None else joined(left, parted)
            count, begin = counted(whole), 0
            while count - begin >= self.most:
                yield cut(whole, begin, begin + self.most)
                begin += self.most
            left = cut(whole, begin, count) if begin < count else None
        if left is not None:
            yield left

    def check_targets(self, piece: tuple[Any, Any], first: int) -> None:
        """Refuses a target that is infinite or not a number: no loss of it would tell anything."""
        inputs, target = piece
        given = {"inputs": inputs if isinstance(inputs, dict) else {}, "target": target}
        for t in labels(given):
            if t.dim() and t.dtype.is_floating_point and not bool(torch.isfinite(t).all()):
                row = int((~torch.isfinite(t)).nonzero()[0][0])
                raise Refusal(
                    "validation",
                    f"the target of sample {first + row} of the validation data, counted from 0, has {odd(t[row])}",
                    self.data.at(),
                    "leave such samples out of what validation() returns",
                )

    def sizes(self) -> list[int]:
        """How many samples pieces have, each number once. It reads all data that does not say how much it is."""
        reader = self.data.reader
        if isinstance(reader, Stream):
            return sorted({counted(piece) for piece in self.pieces()})
        return sorted({min(self.most, reader.samples), reader.samples % self.most or self.most} - {0})

    def check(self, inputs: dict[str, Any], given: dict[str, Any], same: bool) -> None:
        """Refuses validation inputs that the model cannot take: given are its example inputs. same says that all of
        their dimensions but the first have to agree."""
        for name in sorted(inputs.keys() | given.keys()):
            ours, theirs = list(tensors(inputs.get(name))), list(tensors(given.get(name)))
            fits = len(ours) == len(theirs) and all(
                o.dtype == t.dtype and o.dim() == t.dim() and (not same or o.shape[1:] == t.shape[1:])
                for o, t in zip(ours, theirs)
            )
            if not fits:
                raise Refusal(
                    "validation",
                    f"the input {name} of the validation data is {described(inputs.get(name))}, and that of the "
                    f"training data is {described(given.get(name))}",
                    self.data.at(),
                    "make both alike: validation() prepares its samples as data() does",
                )


def check(
    validation: Validation, model: Model, recipe: Recipe, bench: Bench, same: bool, cast: Callable[[], Any]
) -> list[str] | None:
    """Has the unsplit model look at the first piece, so that what is wrong with it, or with metrics(), is known before
    the training begins. Returns the names of the metrics. A model that need not fit on its device is not run, and they
    are not known."""
    piece = next(validation.pieces())
    inputs, target = model.binder.bind(piece[0], model.device), piece[1]
    validation.check(inputs, model.inputs, same)
    if bench.apart:
        return None
    given, model.inputs = model.inputs, inputs
    try:
        with Modes(model), kept(model.module), torch.no_grad(), cast():
            with model.source.blamed(
                "validation",
                "the model fails on the validation data",
                "make validation() prepare its samples as data()",
            ):
                output = model.run()
            target = each(target, lambda t: t.to(model.device))
            recipe.loss(output, target)
            return sorted(recipe.metrics(output, target))
    finally:
        model.inputs = given


def labels(batch: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that say what the model should have found: the target or, where the model returns its loss, the
    input of that name."""
    target = batch.get("target")
    return list(tensors(batch["inputs"].get("labels") if target is None else target))


def ignored(batch: dict[str, Any]) -> bool:
    """Whether the targets are whole numbers of which none counts."""
    whole = [t for t in labels(batch) if not t.dtype.is_floating_point and not t.dtype.is_complex]
    return bool(whole) and all(bool((t == IGNORED).all()) for t in whole)


def of_validation(refusal: Refusal) -> Refusal:
    """A refusal that says that it is about the validation data."""
    fields = refusal.fields
    message = fields["message"] if "validation" in fields["message"] else f"the validation data: {fields['message']}"
    return Refusal("validation", message, fields["at"], fields["hint"], fields["trace"])


def described(value: Any) -> str:
    return described_tensor(value) if isinstance(value, torch.Tensor) else shapes(value)


def tails(value: Any) -> list[Any]:
    return [(t.dtype, t.shape[1:]) for t in tensors(value)]


def joined(first: Any, second: Any) -> Any:
    """Two values of equal form, one sample after the other."""
    others = iter(list(tensors(second)))
    return each(first, lambda t: torch.cat([t, next(others)]))


def cut(value: Any, begin: int, end: int) -> Any:
    return each(value, lambda t: t[begin:end].clone())


def counted(value: Any) -> int:
    return next((rows(t) for t in tensors(value)), 0)
