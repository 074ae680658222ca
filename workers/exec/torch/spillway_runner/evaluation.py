"""A part in evaluation mode: what validation data go through."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Iterator

import torch
from torch import fx

from spillway_runner.arena import Slot
from spillway_runner.forms import flatten
from spillway_runner.model import Model
from spillway_runner.modes import Modes, put
from spillway_runner.parts import LOSS, Split, add_loss, is_operation
from spillway_runner.recipe import Recipe
from spillway_runner.recording import recorded
from spillway_runner.refusal import Refusal
from spillway_runner.tracing import Operation, traces
from spillway_runner.validation import IGNORED, counted, ignored, of_validation
from spillway_runner.values import each, tensors

if TYPE_CHECKING:
    from spillway_runner.train import Part

STEP = -1  # that of masks which a model draws in evaluation mode, too


class Evaluation:
    """The module of a part in evaluation mode, which shares parameters and buffers with the one that is trained, and
    what came of the pieces so far. Training goes on as if there had been none: modes and buffers are put back."""

    def __init__(self, model: Model, training: Split, parts: list[Any], part: int, sizes: list[int]) -> None:
        """sizes are the numbers of samples that pieces have."""
        self.model, self.index, self.last = model, part, part == len(parts) - 1
        self.given = model.inputs
        with Modes(model) as self.modes:
            try:
                self.graphs = traces(model, sizes)
            except Refusal as refusal:
                raise of_validation(refusal) from refusal
        for graph in {id(g): g for g in self.graphs.values()}.values():
            add_loss(graph, self.told)
        self.names = model.names()
        first = next(iter(self.graphs.values()))
        self.recorded = recorded(first)
        self.parts = parts if parts == [None] else placed(first, training, model)
        self.split = self.split_of(first)
        self.target: Any = None
        self.metrics: dict[str, float] = {}
        # samples, loss and metrics of each piece; no loss of one whose targets are all such as losses leave out
        self.found: list[tuple[int, torch.Tensor | None, dict[str, float]]] = []
        self.pieces: Iterator[tuple[Any, Any]] = iter(())
        self.batches: dict[int, dict[str, Any]] = {}  # by piece, as this part reads it
        self.slots: dict[int, Slot] = {}  # of what other parts read of a piece
        self.taken: set[int] = set()  # places of those slots that this part has read
        self.written: set[int] | None = None  # arguments that the module writes to; not known before the first piece
        self.before: list[tuple[torch.Tensor, int, torch.Tensor]] | None = None  # buffers; None while it is trained

    def split_of(self, graph: fx.Graph) -> Split:
        return Split(graph, self.model.module, self.parts, self.names)

    def held(self, part: int) -> dict[str, torch.Tensor]:
        """What a part reads in evaluation mode, by name."""
        return {self.names[i]: t for i, t in self.split.held(part).items() if i in self.names}

    def build(self, enter: Any, device: torch.device) -> list[fx.GraphModule]:
        """Makes the modules of this part, whose tensors may still be without memory, and lets the model go."""
        made: dict[int, fx.GraphModule] = {}
        self.modules: dict[int, fx.GraphModule] = {}  # by number of samples
        for size, graph in self.graphs.items():
            if id(graph) not in made:
                made[id(graph)], self.sources = self.split_of(graph).module(self.index, enter, device)
            self.modules[size] = made[id(graph)]
        split, count = self.split, len(self.parts)
        self.shared_inputs = sorted({n.target for p in range(1, count) for n in split.placeholders(p)})
        self.reads_batch = self.index > 0 and (self.last or bool(split.placeholders(self.index)))
        self.reads = {where for where, _ in self.sources if where != "batch"}
        own = {m for module in made.values() for m in module.modules() if m in self.modes.training}
        inner = {child for m in own for child in m.children()}
        self.leaves = [m for m in self.modes.training if m in own and m not in inner]
        self.training = {m: self.modes.training[m] for m in own}
        self.evaluation = {m: self.modes.evaluation[m] for m in own}
        del self.model, self.modes, self.split, self.graphs
        return list(made.values())

    def description(self, part: Part) -> dict[str, Any]:
        """What the engine has to know of it."""
        return {
            "sizes": sorted(self.modules),
            "reads": sorted(self.reads | set(part.follows)),
            "reads_batch": self.reads_batch,
        }

    # A piece of the validation data.

    def fetch(self, part: Part, request: dict[str, Any]) -> dict[str, Any] | None:
        """Reads a piece, of the first part. Returns how many samples it has and what other parts read of it; None after
        the last piece."""
        assert part.validation is not None, "the engine asks where there is one"
        number = request["piece"]
        if number == 0:
            self.pieces = part.validation.pieces()
        try:
            piece = next(self.pieces, None)
        except Refusal as refusal:
            raise of_validation(refusal) from refusal
        if piece is None:
            return None
        inputs, target = part.binder.bind(piece[0], "cpu"), piece[1]
        part.validation.check(inputs, self.given, self.recorded)
        samples = counted(inputs)
        inputs = part.binder.placeholders(inputs)
        own = {"inputs": inputs, "target": target if self.last else None}
        self.batches[number] = each(own, lambda t: t.to(part.device))
        if self.last:
            return {"samples": samples}
        tensors: list[torch.Tensor] = []
        forms = {name: flatten(inputs[name], tensors) for name in self.shared_inputs}
        form = flatten(target, tensors)
        slot = self.slots.setdefault(number % request["window"], Slot(part.arena, 0))
        _, places = slot.write(tensors)
        message = {"at": slot.at, "bytes": slot.count, "inputs": forms, "target": form, "tensors": places}
        return {"samples": samples, "message": message}

    def evaluate(self, part: Part, request: dict[str, Any]) -> dict[str, Any] | None:
        """The forward pass of a piece. The last part keeps its loss and its metrics."""
        number, samples = request["piece"], request["samples"]
        self.enter(part)
        messages = request.get("from") or {}
        batch = self.batches.pop(number) if self.index == 0 else part.batch_of(request)
        if self.index > 0 and request.get("batch"):
            self.taken.add(request["batch"]["at"])
        part.follow(messages)
        arguments, _ = part.receive(batch, messages, self.sources)
        self.target = batch.get("target")
        with torch.no_grad():
            value = self.run(part, arguments, request["first"], samples)
            if self.last:
                counts = not ignored(batch)
                self.found.append((samples, value.detach() if counts else None, self.metrics if counts else {}))
                part.finish()  # what was received may be overwritten
                return None
            message = self.send(part.slots[number % len(part.slots)], value)
            part.finish()
        if part.leads and number == 0:
            message["tied"] = part.lead()
        return message

    def run(self, part: Part, arguments: list[Any], first: int, samples: int) -> Any:
        written = range(len(arguments)) if self.written is None else self.written
        arguments = [each(a, torch.clone) if i in written else a for i, a in enumerate(arguments)]
        module = self.modules.get(samples)
        if module is None:
            if self.recorded:
                raise Refusal(
                    "validation",
                    f"a piece of the validation data has {samples} samples, and the model was traced in evaluation "
                    f"mode for {sorted(self.modules)}",
                    part.source.path,
                    "return a Dataset from validation()",
                )
            module = next(iter(self.modules.values()))
        try:
            with part.keyed.micro_batch(STEP, first, samples), part.cast():
                value = module(*arguments)
        except Refusal as refusal:
            raise of_validation(refusal) from refusal
        except Exception as error:
            raise of_validation(part.failed(error, 0)) from error
        if self.written is None:
            self.written = {i for i, a in enumerate(arguments) if any(t._version > 0 for t in tensors(a))}
        return value

    def told(self, output: Any) -> torch.Tensor:
        """The operation that ends the graph."""
        assert self.recipe is not None
        self.metrics = self.recipe.metrics(output, self.target)
        return self.recipe.loss(output, self.target)

    recipe: Recipe | None = None

    @staticmethod
    def send(slot: Slot, value: Any) -> dict[str, Any]:
        found: list[torch.Tensor] = []
        forms = [flatten(v, found) for v in value]
        _, places = slot.write(found)
        return {
            "slot": slot.number,
            "at": slot.at,
            "bytes": slot.count,
            "values": forms,
            "tensors": [place + [False] for place in places],
        }

    # Modes.

    def enter(self, part: Part) -> None:
        if self.before is not None:
            return
        self.before = [(b, b._version, b.detach().clone()) for b in part.buffers.values()]
        for leaf in self.leaves:
            leaf.eval()  # its own train() may do more than to set modes
        put(self.evaluation)

    def means(self, part: Part) -> dict[str, Any]:
        """The means over all samples, of the last part."""
        found, self.found = self.found, []
        return mean(found, part.source.path)

    def end(self, part: Part, request: dict[str, Any]) -> None:
        """Puts all back as it was before the first piece, and tells the scheduler what all of them showed, where all
        were looked at."""
        for leaf in self.leaves if self.before is not None else ():
            leaf.train()
        put(self.training)
        with torch.no_grad():
            for buffer, version, values in self.before or ():
                if buffer._version != version:
                    buffer.data.copy_(values)
        self.before, self.target, self.metrics, self.batches, self.found = None, None, {}, {}, []
        for slot in self.slots.values():
            if slot.count:  # its place is written to again in the next evaluation
                part.arena.give_back(slot.at, slot.count)
        for at in self.taken:  # a range that is page-locked would hold the memory that is given back
            part.arena.unmap(at)
        self.taken, self.pieces = set(), iter(())
        if "numbers" in request:
            part.judge(request)


def mean(found: list[tuple[int, torch.Tensor | None, dict[str, float]]], path: str) -> dict[str, Any]:
    """The means of the loss and of each metric over all samples of pieces that have a loss; numbers are texts, as JSON
    has no NaN."""
    if not found:
        raise Refusal(
            "validation",
            "the validation data has no samples, and had some when the training began",
            path,
            "have validation() return what can be iterated more than once",
        )
    told = [(count, loss, metrics) for count, loss, metrics in found if loss is not None]
    if not told:
        raise Refusal(
            "validation",
            f"every target of the validation data is {IGNORED}, which losses leave out",
            path,
            f"have validation() give targets that are not all {IGNORED}",
        )
    samples = sum(count for count, _, _ in told)
    names = told[0][2].keys()
    for _, _, metrics in told:
        if metrics.keys() != names:
            raise Refusal(
                "metrics",
                f"metrics() returns {sorted(names)} for one piece of the validation data and {sorted(metrics)} for "
                "another",
                path,
                "return the same names each time",
            )
    losses = torch.stack([loss.double() for _, loss, _ in told]).tolist()
    return {
        "samples": sum(count for count, _, _ in found),
        "loss": repr(math.fsum(n * loss for (n, _, _), loss in zip(told, losses)) / samples),
        "metrics": {name: repr(math.fsum(n * m[name] for n, _, m in told) / samples) for name in names},
    }


def placed(graph: fx.Graph, training: Split, model: Model) -> list[list[str] | None]:
    """The names of each part's operations in evaluation mode. What holds a parameter or a buffer is where that is, and
    all else where the operation of its name is in training; nothing is before what it reads."""
    count, root = len(training.exports), model.module
    where = {node.name: part for node, part in training.owner.items()}
    holders: dict[int, set[int]] = {}  # parts by identity of what they hold
    for part in range(count):
        for identity in training.held(part):
            holders.setdefault(identity, set()).add(part)
    owner: dict[fx.Node, int] = {}
    for node in graph.nodes:
        if not is_operation(node) or node.name == LOSS:
            continue
        least = max((owner[s] for s in node.all_input_nodes if s in owner), default=0)
        can = set(range(least, count))
        for tensor in Operation(node, root).all_held():
            can &= holders.get(id(tensor), can)
        if not can:
            raise Refusal(
                "validation",
                f"in evaluation mode operation {node.name} reads its input before part {least} has made it: the model "
                "takes another way there than in training",
                node.meta.get("at", "") or model.source.path,
                "train it unsplit with --partitions 1, or let both modes call their modules in one order",
            )
        wanted = where.get(node.name)
        owner[node] = wanted if wanted in can else min(can)
    return [[node.name for node, part in owner.items() if part == p] for p in range(count)]
