"""What a part of a model holds: the part taken out of the model, its data and its optimizer."""

from __future__ import annotations

import base64
import gc
import pickle
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Tuple

import torch
from torch import fx, nn

from spillway_runner.arena import TYPE_NAMES, Arena, Place, Slot
from spillway_runner.compiling import check_compiler
from spillway_runner.data import PATIENCE, Data
from spillway_runner.devices import prepare
from spillway_runner.dropout import KeyedDropout
from spillway_runner.evaluation import Evaluation
from spillway_runner.files import check_types
from spillway_runner.finite import Watch
from spillway_runner.model import Model
from spillway_runner.parts import Split, add_loss
from spillway_runner.precision import Scaler, set_precision
from spillway_runner.process import highest, imported, reset_highest, resident, trim, warm_up
from spillway_runner.recipe import Recipe
from spillway_runner.recording import recorded
from spillway_runner.refusal import Refusal
from spillway_runner.schedules import Course
from spillway_runner.source import Source
from spillway_runner.tracing import Operation, attribute, traces
from spillway_runner.validation import Validation
from spillway_runner.values import each, size

Leaf = Tuple[int, int, torch.Tensor]  # part, number of the tensor in its message, tensor of what gets a gradient


@dataclass(eq=False)
class Flight:
    """A micro-batch between its forward and its backward pass."""

    step: int
    batch: dict[str, Any]  # its inputs and target
    arguments: list[Any]  # of the module
    leaves: list[Leaf]
    origins: dict[int, int]  # by part, the number of the slot in which its message lies
    slot: Slot | None = None  # of what was passed on
    outputs: list[torch.Tensor] = field(default_factory=list)  # tensors that were passed on, or the loss
    loss: Callable[[], float] = lambda: 0.0  # waits for it


class Holding:
    """A part of the model on its device, with its optimizer; the first part has the data."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.index, self.count = request["index"], len(request["parts"])
        self.last = self.index == self.count - 1
        self.batch_samples, self.micro_batches = request["batch"], request["micro_batches"]
        self.recompute = request["recompute"]
        self.set_device(request)
        if self.device.type == "cpu":
            warm_up()
        self.source = Source(request["file"])
        trim()
        self.base = resident()
        self.data: Data | None = None
        self.validation: Validation | None = None
        self.example: str | None = None
        if self.index == 0:
            patience = request.get("data_timeout") or PATIENCE
            size = request.get("batch_of") or self.batch_samples
            self.data = Data(self.source, request["data"], size, request["seed"], patience)
            # Before anything is read: files that are opened for the first sample are each process's own.
            pinned = self.device.type == "cuda"
            self.data.start(request.get("data_workers", 0), request.get("data_cpus"), pinned)
            most = -(-self.batch_samples // self.micro_batches)
            self.validation = Validation.of(self.source, request, most) if request.get("validates", True) else None
            # The trace asks for what they are, not for numbers.
            inputs = each(self.data.batch(0)[0], lambda t: t[:1].clone() if t.dim() else t)
            self.example = base64.b64encode(pickle.dumps(inputs)).decode()
        else:
            inputs = pickle.loads(base64.b64decode(request["example"]))
        self.arena = Arena(self.index, self.device.type == "cuda")
        self.others: list[dict[str, torch.Tensor]] = []  # what other parts hold, of the first part until they have it
        self.loan = Slot(self.arena, 0)
        self.build(request, inputs)
        self.slots = [Slot(self.arena, i) for i in range(request["in_flight"])]
        self.tied_slot = Slot(self.arena, 0)
        self.tied_replies: dict[int, Slot] = {}  # by the part that trains what their gradients belong to
        # slots of cotangents by the part that they go to, and the number of the slot whose tensors they belong to
        self.replies: dict[tuple[int, int], Slot] = {}
        self.batch_slot = Slot(self.arena, 0)
        self.micro: dict[int, dict[str, Any]] = {}  # inputs and target of each micro-batch, of the first part
        self.flights: dict[int, Flight] = {}  # by micro-batch
        self.losses: list[torch.Tensor] = []
        self.watch: Watch | None = None  # of the micro-batch that is under way, where this part is examined
        self.examined = False
        self.written: set[int] | None = None  # arguments that the module writes to; not known before the first run
        # Which tensors that are passed on have a gradient; not known before the first run.
        self.gradients: list[bool] | None = None
        trim()
        gc.freeze()  # a step makes no cycles of the graph and the model, which collections would look through each time
        self.resets = reset_highest()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def set_device(self, request: dict[str, Any]) -> None:
        self.precision = request["precision"]
        if request["threads"]:
            torch.set_num_threads(request["threads"])
        self.memory = request["memory"]
        self.device = prepare(request["device"], self.memory)
        set_precision(self.precision, self.device)
        self.scaler = Scaler() if self.precision == "float16" else None
        self.compiles = bool(request.get("compile"))
        if self.compiles:
            check_compiler(self.device)

    def build(self, request: dict[str, Any], inputs: Any) -> None:
        """Builds the model and takes this part out of it.

        Only the first part makes all of it. It lends the others what they hold, so that each builds the model without
        memory; one that cannot be built so is built whole, and the rest of it is let go.
        """
        if request.get("lent"):
            try:
                self.compose(request, inputs, "meta")
                return
            except Exception:
                pass  # it looks at numbers, say; if it is wrong, the same is found again
        self.compose(request, inputs, "cpu")

    def compose(self, request: dict[str, Any], inputs: Any, device: str) -> None:
        """Builds the model on a device, cpu or meta."""
        modules, before = len(sys.modules), resident()
        model = Model(self.source, {**request, "device": device}, inputs)
        self.binder = model.binder
        spans = [self.span(m) for m in range(self.micro_batches)]
        graphs = traces(model, sorted({end - begin for begin, end in spans}))
        if self.device.type == "cpu":
            self.base += imported(modules, before, 0 if device == "meta" else sum(map(size, model.held().values())))
        for graph in {id(g): g for g in graphs.values()}.values():
            add_loss(graph, self.loss)
        samples, graph = next(iter(graphs.items()))
        # What inputs must look like where the graph was made for their shapes.
        self.shapes = each(model.inputs, lambda t: t.shape[1:]) if recorded(graph) else None
        self.digest, names, held = model.digest(), model.names(), model.held()
        self.keys = [(key, names[id(t)]) for key, t in model.whole.state_dict(keep_vars=True).items() if id(t) in names]
        self.places = {n.name: n.meta.get("at", "") for n in graph.nodes}
        split = Split(graph, model.module, request["parts"], names)
        self.shared_inputs = {n.target for part in range(1, self.count) for n in split.placeholders(part)}
        self.reads_batch = self.index > 0 and (self.last or bool(split.placeholders(self.index)))
        self.evaluation = self.in_evaluation(model, split, graph, request)
        self.keyed = KeyedDropout(request["seed"], self.index)
        self.module, self.sources = split.module(self.index, self.keyed.operation, self.device)
        self.tied = tied = split.tied()
        # The last part that reads each tensor that is passed on, by the part that makes it and its number there.
        self.until = {
            (part, i): max(split.owner[user] for user in node.users if user in split.owner)
            for part, nodes in enumerate(split.exports)
            for i, node in enumerate(nodes)
        }
        # Trained parameters that later parts read, too, and by the part that trains them, those that this one copies.
        self.leads = sorted(n for n, parts in tied.items() if parts[0] == self.index)
        self.follows: dict[int, list[str]] = {}
        for name, parts in sorted(tied.items()):
            if self.index in parts[1:]:
                self.follows.setdefault(parts[0], []).append(name)
        self.reads = sorted({where for where, _ in self.sources if where != "batch"} | set(self.follows))
        # What no operation reads is kept by the first part, so that checkpoints and the trained model are whole.
        used = {id(t) for node in split.owner for t in Operation(node, model.module).all_held()}
        spare = {n: t for n, t in held.items() if id(t) not in used} if self.index == 0 else {}
        earlier = {
            id(t)
            for node, part in split.owner.items()
            if part < self.index
            for t in Operation(node, model.module).all_held()
        }
        # Buffers that are only read, and parameters that another part trains or nobody; the first part that has one
        # exports it.
        held_here = (*self.module.parameters(), *self.module.buffers())
        self.copies = {names[id(t)] for t in held_here if id(t) in earlier}
        self.statistics = {
            names[id(t)]
            for node, part in split.owner.items()
            if part == self.index
            for t in Operation(node, model.module).own_buffers
        }
        self.parameters = {names[id(t)]: t for t in self.module.parameters()}
        paths = {names[id(t)]: path for path, t in self.module.named_buffers()}
        alike = [self.module]
        if self.evaluation is not None:
            names.update(self.evaluation.names)
            looked_at = [self.evaluation.held(part) for part in range(self.count)]
            alike += self.evaluation.build(self.keyed.operation, self.device)
        if device == "meta":
            made = self.borrow(request["lent"], names, alike)
            self.parameters = {name: made[id(t)] for name, t in self.parameters.items()}
        elif self.index == 0:
            self.others = [
                {
                    names[id(t)]: t
                    for node, part in split.owner.items()
                    if part == other
                    for t in Operation(node, model.module).all_held()
                    if id(t) in names
                }
                for other in range(1, self.count)
            ]
            if self.evaluation is not None:
                self.others = [{**more, **own} for own, more in zip(self.others, looked_at[1:])]
        self.module.to(self.device)  # parameters stay the same objects, buffers need not
        for evaluated in alike[1:]:
            adopt(evaluated.to(self.device), self.module)
        self.modules = {samples: self.module}
        self.compiled: dict[int, fx.GraphModule] = {}  # by the samples of a micro-batch
        self.drawing: set[str] = set()  # operations that draw masks; not known before the first run
        for other, graph in graphs.items():
            if graph is not graphs[samples]:
                again, _ = Split(graph, model.module, request["parts"], names).module(
                    self.index, self.keyed.operation, self.device
                )
                self.modules[other] = adopt(again, self.module)
        self.trained = [(n, p) for n, p in self.parameters.items() if p.requires_grad and n not in self.copies]
        self.buffers = {name: attribute(self.module, path) for name, path in paths.items()}
        self.parameters.update((n, t) for n, t in spare.items() if isinstance(t, nn.Parameter))
        self.buffers.update((n, t) for n, t in spare.items() if not isinstance(t, nn.Parameter))
        check_types({**self.parameters, **self.buffers})
        check_state(model.whole, self.source)
        self.recipe = Recipe(self.source, request["optimizer"])
        self.course = self.course_of(request)
        self.make_optimizer()
        self.target, self.share = None, 1.0

    def make_optimizer(self) -> None:
        """Makes the optimizer of what this part trains, and its scheduler."""
        self.optimizer = self.recipe.optimizer(self.trained)
        self.scheduler = self.recipe.scheduler(self.optimizer, self.course)
        if self.evaluation is not None:
            self.evaluation.recipe = self.recipe

    def course_of(self, request: dict[str, Any]) -> Course:
        """How long the training is."""
        per_epoch = request.get("steps_per_epoch", 0) if self.data is None else self.data.steps_per_epoch or 0
        steps = request.get("steps", 0) or request.get("epochs", 0) * per_epoch
        return Course(steps, per_epoch, self.evaluation is not None or bool(request.get("judged")))

    def judge(self, request: dict[str, Any]) -> None:
        """Tells the scheduler what validation data showed."""
        if self.scheduler is not None:
            self.scheduler.judge({name: float(text) for name, text in request["numbers"].items()})

    def in_evaluation(self, model: Model, split: Split, graph: fx.Graph, request: dict[str, Any]) -> Evaluation | None:
        """This part in evaluation mode; None where there are no validation data."""
        sizes = request.get("validation_sizes")
        if self.validation is not None:
            sizes = self.validation.sizes() if recorded(graph) else [self.validation.most]
        return Evaluation(model, split, request["parts"], self.index, sizes) if sizes else None

    def borrow(self, lent: dict[str, Any], names: dict[int, str], modules: list[fx.GraphModule]) -> dict[int, Any]:
        """Puts what the first part lent in the place of the modules' tensors without memory. Returns it by the identity
        of those."""
        if lent["model"] != self.digest:
            raise ValueError("the model is another one each time it is built")
        made: dict[int, Any] = {}

        def real(t: torch.Tensor) -> torch.Tensor:
            if id(t) not in made:
                place = lent["tensors"][names[id(t)]]
                copy = self.arena.tensor(lent["at"], lent["bytes"], *self.typed(place)).clone()
                made[id(t)] = nn.Parameter(copy, t.requires_grad) if isinstance(t, nn.Parameter) else copy
            return made[id(t)]

        for module in {inner for outer in modules for inner in outer.modules()}:
            for held in (module._parameters, module._buffers):
                held.update({key: real(t) for key, t in held.items() if t is not None})
        self.arena.unmap(lent["at"])
        return made

    def lend(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Where another part finds what it holds, once: the first part lets that go. After the last part, nothing is
        lent, and what was is the system's again."""
        if self.loan.count:
            self.arena.give_back(self.loan.at, self.loan.count)
        self.loan = Slot(self.arena, 0)
        if request["part"] == self.count:
            self.others = []
            trim()
            self.resets = reset_highest()
            return None
        found, self.others[request["part"] - 1] = self.others[request["part"] - 1], {}
        _, places = self.loan.write(list(found.values()))
        return {
            "model": self.digest,
            "at": self.loan.at,
            "bytes": self.loan.count,
            "tensors": dict(zip(found, places)),
        }

    def span(self, micro_batch: int) -> tuple[int, int]:
        """The first sample of a micro-batch and that of the next."""
        first, following = (m * self.batch_samples // self.micro_batches for m in (micro_batch, micro_batch + 1))
        return first, following

    def loss(self, output: Any) -> torch.Tensor:
        """The operation that ends the graph: the micro-batch's share of the batch's mean loss."""
        loss = self.recipe.loss(output, self.target)
        # Of half as many bits it could neither be added up nor scaled.
        return (loss.float() if loss.element_size() < 4 else loss) * self.share

    @staticmethod
    def typed(place: Place) -> tuple[int, torch.dtype, list[int]]:
        offset, kind, shape = place
        return offset, TYPE_NAMES[kind], shape

    def usage(self) -> dict[str, int]:
        peak = 0
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_reserved(self.device)  # that is what the part's share of the device bounds
        elif self.resets:
            peak = max(highest() - self.base, 0) + (self.data.beside() if self.data is not None else 0)
        state = self.recipe.optimizer_state(self.optimizer, self.trained)
        return {
            "parameters": sum(map(size, self.parameters.values())),
            "gradients": sum(size(self.parameters[n]) for names in self.follows.values() for n in names)
            + sum(size(p) for _, p in self.trained),
            "optimizer": sum(map(size, state.values())),
            "buffers": sum(map(size, self.buffers.values())),
            "peak": peak,
        }


def check_state(model: nn.Module, source: Source) -> None:
    """Refuses what modules keep beside their tensors: neither checkpoints nor the trained model would have it."""
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state and module.get_extra_state() is not None:
            raise Refusal(
                "state",
                f"{path or 'the model'} ({type(module).__name__}) has a state beside its tensors, by get_extra_state, "
                "which a checkpoint cannot hold",
                source.path,
                "keep it in a buffer",
            )


def adopt(module: fx.GraphModule, other: fx.GraphModule) -> fx.GraphModule:
    """The module with the tensors of another one of the same model where it reads them itself."""
    for node in module.graph.nodes:
        if node.op != "get_attr":
            continue
        path, _, name = node.target.rpartition(".")
        try:
            theirs = attribute(other, node.target)
        except AttributeError:
            continue
        owner = attribute(module, path) if path else module
        space = next((s for s in (owner._parameters, owner._buffers) if name in s), owner.__dict__)
        space[name] = theirs
    return module
