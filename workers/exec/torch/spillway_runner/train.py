"""Trains a part of a model."""

from __future__ import annotations

import base64
import gc
import json
import math
import os
import pickle
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any, Callable, ContextManager, Tuple

import torch
from torch import fx, nn

from spillway_runner.answers import asynchronous, out_of_memory
from spillway_runner.arena import TYPE_NAMES, Arena, Place, Slot
from spillway_runner.compiling import check_compiler, compiled
from spillway_runner.data import PATIENCE, Data
from spillway_runner.devices import fitting, mark, prepare, room, tried, wait
from spillway_runner.dropout import KeyedDropout
from spillway_runner.evaluation import Evaluation
from spillway_runner.files import FORMAT, Files, check_types, replace, save
from spillway_runner.finite import Watch, not_finite, not_finite_before, odd, user_line
from spillway_runner.forms import flatten, restore
from spillway_runner.model import Model
from spillway_runner.parts import Split, add_loss
from spillway_runner.precision import Scaler, cast, set_precision
from spillway_runner.process import highest, imported, reset_highest, resident, trim, warm_up
from spillway_runner.recipe import Recipe
from spillway_runner.recording import recorded
from spillway_runner.refusal import Refusal
from spillway_runner.schedules import Course
from spillway_runner.source import Source, described, traced, users
from spillway_runner.tracing import Operation, attribute, traces
from spillway_runner.validation import Validation
from spillway_runner.values import amount, each, shape, shapes, size, tensors

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


class Part:
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

    # A micro-batch.

    def span(self, micro_batch: int) -> tuple[int, int]:
        """The first sample of a micro-batch and that of the next."""
        first, following = (m * self.batch_samples // self.micro_batches for m in (micro_batch, micro_batch + 1))
        return first, following

    def loss(self, output: Any) -> torch.Tensor:
        """The operation that ends the graph: the micro-batch's share of the batch's mean loss."""
        loss = self.recipe.loss(output, self.target)
        # Of half as many bits it could neither be added up nor scaled.
        return (loss.float() if loss.element_size() < 4 else loss) * self.share

    def run(self, flight: Flight, micro_batch: int) -> Any:
        begin, end = self.span(micro_batch)
        self.target, self.share = flight.batch.get("target"), (end - begin) / self.batch_samples
        arguments = flight.arguments
        first = self.written is None
        written = range(len(arguments)) if self.written is None else self.written
        arguments = [each(a, torch.clone) if i in written else a for i, a in enumerate(arguments)]
        try:
            with self.keyed.micro_batch(flight.step, begin, end - begin), self.cast():
                value = self.watched(self.runnable(end - begin), arguments, flight, micro_batch)
        except Refusal:
            raise
        except Exception as error:
            raise self.failed(error, micro_batch) from error
        if first:
            self.written = {i for i, a in enumerate(arguments) if any(t._version > 0 for t in tensors(a))}
            self.drawing = set(self.keyed.drawn)
        return value

    def cast(self) -> ContextManager[Any]:
        """Within it, products are computed in the wanted precision."""
        return cast(self.precision, self.device)

    def runnable(self, samples: int) -> nn.Module:
        """The module for micro-batches of so many samples, compiled where that is wanted and everything of it is
        known."""
        module = self.modules.get(samples, self.module)
        if not self.compiles or self.written is None or self.examined:
            return module
        if samples not in self.compiled:
            self.compiled[samples] = compiled(module, self.drawing, self.keyed.operation)
        return self.compiled[samples]

    # A pass whose numbers are not finite.

    def check_loss(self, flight: Flight, micro_batch: int) -> None:
        """Refuses a loss that is not finite, before any part has updated what made it."""
        loss = flight.loss()
        if not math.isfinite(loss):
            raise not_finite(f"the loss of micro-batch {micro_batch} is {loss}")

    def examine(self) -> None:
        """Begins a step anew, whose passes look at every tensor from now on. It is never updated."""
        self.slots += [f.slot for f in self.flights.values() if f.slot is not None]
        self.flights, self.losses, self.examined = {}, [], True
        self.optimizer.zero_grad(set_to_none=True)

    def watched(self, module: nn.Module, arguments: list[Any], flight: Flight, micro_batch: int) -> Any:
        """What a module gives; where this part is examined, the first number that is not finite is refused."""
        if not self.examined:
            return module(*arguments)
        when = f"micro-batch {micro_batch}"  # the engine says of which step
        for name, value in (*flight.batch.get("inputs", {}).items(), ("the target", flight.batch.get("target"))):
            for strange in filter(None, map(odd, tensors(value))):
                raise not_finite(f"{name} of {when} has {strange}", self.source.path, "see what data() gives")
        for name, t in (*self.parameters.items(), *self.buffers.items()):
            if odd(t).nan or isinstance(t, nn.Parameter) and odd(t):
                raise not_finite_before(f"{name} had {odd(t)} when {when} began: an earlier step left it so")
        self.watch = Watch(self.place, when)
        with self.watch:
            value = module(*arguments)
        if self.watch.found is not None:
            raise self.watch.found
        return value

    def place(self) -> tuple[str, str]:
        """The operation that is computed now, and the user's line."""
        name = self.keyed.layer
        return name, user_line(self.source.path) or self.places.get(name, "") or self.source.path

    def failed(self, error: Exception, micro_batch: int, backward: bool = False) -> Refusal:
        if out_of_memory(error):
            return self.full(error, micro_batch, backward)
        name = self.keyed.layer
        inside = traceback.extract_tb(error.__traceback__)
        at = self.source.place(error) if any(users(f.filename) for f in inside) else self.places.get(name, "")
        if asynchronous(error):
            return Refusal(
                "run",
                f"the device fails at operation {name} or at an earlier one, as it tells late: {described(error)}",
                at or self.source.path,
                "set CUDA_LAUNCH_BLOCKING=1 to find the operation",
                traced(error),
            )
        return Refusal(
            "run",
            f"operation {name} fails: {described(error)}",
            at or self.source.path,
            "make the model run on a batch of the data first",
            traced(error),
        )

    def full(self, error: Exception, micro_batch: int, backward: bool) -> Refusal:
        """Tells what does not fit on the device, and what would."""
        begin, end = self.span(micro_batch)
        samples = end - begin
        # What the optimizer keeps is there from the first step on.
        known, keeps = self.usage(), self.optimizer.defaults
        slots = 2 if "betas" in keeps else int(bool(keeps.get("momentum")))
        state = max(known["optimizer"], known["gradients"] * slots)
        fixed = known["parameters"] + known["gradients"] + known["buffers"] + state
        most, held = room(self.device, self.memory), 0
        if self.device.type == "cuda":
            held = torch.cuda.memory_allocated(self.device)
        name = self.keyed.layer
        where = f"in the backward pass, after operation {name}" if backward else f"at operation {name}"
        hints = ["recompute activations", "split the model into more parts", "use a device with more memory"]
        if most and held:
            fits = fitting(samples, fixed, held + tried(error), most)
            if fits:
                count = -(-self.batch_samples // fits)
                hints.insert(0, f"cut the batch into {count} micro-batches: {fits} samples would fit, not {samples}")
            else:
                hints.insert(0, "no micro-batch is small enough for this part")
        elif samples > 1:
            hints.insert(0, "cut the batch into more micro-batches")
        bounds = f"{amount(held)} are held of {amount(most)}, " if most and held else ""
        return Refusal(
            "memory",
            f"part {self.index} on {self.device} is out of memory {where}, with micro-batches of {samples} samples: "
            f"{bounds}{amount(fixed)} by parameters, gradients and the optimizer: {described(error).splitlines()[0]}",
            self.places.get(name, ""),
            ", or ".join(hints),
        )

    def receive(
        self, batch: dict[str, Any], messages: dict[str, Any], sources: list[tuple[Any, Any]]
    ) -> tuple[list[Any], list[Leaf]]:
        """The arguments of a module from their sources, and those tensors of them that get a gradient."""
        arguments: list[Any] = []
        leaves: list[Leaf] = []
        made: dict[tuple[int, int], torch.Tensor] = {}
        for where, what in sources:
            if where == "batch":
                arguments.append(batch["inputs"][what])
                continue
            message = messages[str(where)]

            def tensor(number: int, where: int = where, message: dict[str, Any] = message) -> torch.Tensor:
                if (where, number) not in made:
                    offset, kind, shape, gradient = message["tensors"][number]
                    there = self.arena.tensor(message["at"], message["bytes"], offset, TYPE_NAMES[kind], shape)
                    t = there.to(self.device, non_blocking=True)
                    if gradient:
                        leaves.append((where, number, t.requires_grad_()))
                    made[where, number] = t
                return made[where, number]

            arguments.append(restore(message["values"][what], tensor))
        return arguments, leaves

    def batch_of(self, request: dict[str, Any]) -> dict[str, Any]:
        """Inputs and target of a micro-batch."""
        if self.index == 0:
            return self.micro[request["micro_batch"]]
        message = request.get("batch")
        if not message:
            return {"inputs": {}}

        def take(i: int) -> torch.Tensor:
            there = self.arena.tensor(message["at"], message["bytes"], *self.typed(message["tensors"][i]))
            return there.to(self.device, non_blocking=True)

        inputs = {name: restore(form, take) for name, form in message["inputs"].items()}
        return {"inputs": inputs, "target": restore(message["target"], take)}

    @staticmethod
    def typed(place: Place) -> tuple[int, torch.dtype, list[int]]:
        offset, kind, shape = place
        return offset, TYPE_NAMES[kind], shape

    def forward(self, request: dict[str, Any]) -> dict[str, Any] | None:
        micro_batch = request["micro_batch"]
        if micro_batch in self.flights:
            raise Refusal(
                "order",
                f"part {self.index}: the forward pass of micro-batch {micro_batch} comes before the backward pass of "
                "the last one",
            )
        if not self.slots:
            raise Refusal("order", f"part {self.index}: more micro-batches are in flight than it was loaded for")
        batch, messages = self.batch_of(request), request.get("from") or {}
        self.follow(messages)
        arguments, leaves = self.receive(batch, messages, self.sources)
        origins = {int(part): m["slot"] for part, m in messages.items()}
        flight = Flight(request["step"], batch, arguments, leaves, origins)
        learn = self.written is None
        with torch.set_grad_enabled(learn or not self.recompute):
            value = self.run(flight, micro_batch)
        if self.last:
            self.losses.append(value.detach())
            flight.loss = host_number(value.detach())
            flight.outputs = [value]
            message = None
        else:
            flight.slot = self.slots.pop()
            message = self.send(flight, flight.slot, value)
            if self.leads and micro_batch == 0:
                message["tied"] = self.lead()
        if self.recompute:
            flight.outputs = []
        self.flights[micro_batch] = flight
        self.finish_if(request)
        return message

    def send(self, flight: Flight, slot: Slot, value: Any) -> dict[str, Any]:
        found: list[torch.Tensor] = []
        forms = [flatten(v, found) for v in value]
        if self.gradients is None:
            self.gradients = [t.requires_grad for t in found]
        copies, places = slot.write(found)
        flight.outputs = found
        if self.device.type == "cpu":
            for t, copy in zip(found, copies):
                if not t.is_leaf:
                    t.data = copy  # the backward pass needs its history, and its numbers are in the slot until then
        return {
            "slot": slot.number,
            "at": slot.at,
            "bytes": slot.count,
            "values": forms,
            "tensors": [p + [g] for p, g in zip(places, self.gradients)],
        }

    def again(self, request: dict[str, Any]) -> None:
        """Repeats the forward pass of a micro-batch from its inputs. What the first one did to the buffers is not done
        again."""
        micro_batch = request["micro_batch"]
        flight = self.flights.get(micro_batch)
        if flight is None:
            raise Refusal(
                "order", f"part {self.index}: there is no forward pass of micro-batch {micro_batch} to repeat"
            )
        before = [(self.buffers[n], self.buffers[n].detach().clone()) for n in self.statistics]
        value = self.run(flight, micro_batch)
        for buffer, values in before:
            buffer.data.copy_(values)  # .data: autograd need not know
        found: list[torch.Tensor] = []
        flatten(value, found)
        flight.outputs = found
        self.finish_if(request)

    def backward(self, request: dict[str, Any]) -> dict[int, Any]:
        micro_batch = request["micro_batch"]
        flight = self.flights.pop(micro_batch, None)
        if flight is None:
            raise Refusal("order", f"part {self.index}: there is no forward pass of micro-batch {micro_batch}")
        roots: list[torch.Tensor] = []
        cotangents: list[torch.Tensor] | None = None
        taken: Callable[[], None] | None = None
        try:
            if self.last:
                roots = flight.outputs if flight.outputs[0].requires_grad else []
                if self.scaler is not None:
                    cotangents = [torch.full_like(root, self.scaler.scale) for root in roots]
            else:
                roots, cotangents = self.gather(flight, request.get("cotangents") or {})
                taken = mark(self.device)
            if roots:
                torch.autograd.backward(roots, cotangents)
            if self.watch is not None and self.watch.found is not None:
                raise self.watch.found
            if self.last:
                self.check_loss(flight, micro_batch)
        except Refusal:
            raise
        except Exception as error:
            raise self.failed(error, micro_batch, backward=True) from error
        if flight.slot is not None:
            self.slots.append(flight.slot)
        messages = self.reply(flight)
        if micro_batch == self.micro_batches - 1:
            self.return_gradients(messages)
        # What was received may be overwritten when this returns. Who replied has waited for all. The first part, which
        # replies nothing, leaves its device at work.
        if self.index > 0 and not messages:
            self.finish()
        elif taken is not None and not messages:
            taken()
        self.finish_if(request)
        return messages

    def gather(self, flight: Flight, messages: dict[str, Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The outputs that have cotangents, and their sums, from the last part that read them to the first."""
        sums: dict[int, torch.Tensor] = {}  # by number of the output
        for part in sorted(messages, key=int, reverse=True):
            message = messages[part]
            self.add_gradients(message.get("tied"))
            for number, *place in message["tensors"]:
                there = self.arena.tensor(message["at"], message["bytes"], *self.typed(place))
                t = there.to(self.device, non_blocking=True)
                sums[number] = t if number not in sums else sums[number] + t
        numbers = [n for n in sorted(sums) if flight.outputs[n].requires_grad]
        return [flight.outputs[n] for n in numbers], [sums[n] for n in numbers]

    def reply(self, flight: Flight) -> dict[int, Any]:
        """The cotangents of what was received, by the part that it came from."""
        gradients: dict[int, list[tuple[int, torch.Tensor]]] = {}  # by part, with the tensor's number
        for part, number, leaf in flight.leaves:
            if leaf.grad is not None:
                gradients.setdefault(part, []).append((number, leaf.grad))
        messages = {}
        for part, found in gradients.items():
            key = part, flight.origins[part]
            if key not in self.replies:
                self.replies[key] = Slot(self.arena, key[1])
            slot = self.replies[key]
            _, places = slot.write([t for _, t in found])
            messages[part] = {
                "at": slot.at,
                "bytes": slot.count,
                "tensors": [[n] + place for (n, _), place in zip(found, places)],
            }
        return messages

    # Parameters that several parts read. The part that trains one sends it with the first micro-batch of a step, and
    # with the last one the others return the sums of their gradients.

    def lead(self) -> dict[str, Any]:
        """A message with the parameters of this part that others read."""
        _, places = self.tied_slot.write([self.parameters[name].detach() for name in self.leads])
        return {"at": self.tied_slot.at, "bytes": self.tied_slot.count, "tensors": dict(zip(self.leads, places))}

    def follow(self, messages: dict[str, Any]) -> None:
        """Takes the parameters of other parts from the messages that have them."""
        for part, names in self.follows.items():
            message = messages[str(part)].get("tied")
            for name in names if message else ():
                there = self.arena.tensor(message["at"], message["bytes"], *self.typed(message["tensors"][name]))
                self.parameters[name].data.copy_(there)

    def return_gradients(self, messages: dict[int, Any]) -> None:
        """Adds the gradients of other parts' parameters to the messages that go there, and forgets them."""
        for part, names in self.follows.items():
            found = {n: self.parameters[n].grad for n in names}
            given = {n: g for n, g in found.items() if g is not None}
            slot = self.tied_replies.setdefault(part, Slot(self.arena, 0))
            _, places = slot.write(list(given.values()))
            tied = {"at": slot.at, "bytes": slot.count, "tensors": dict(zip(given, places))}
            messages.setdefault(part, {"at": 0, "bytes": 0, "tensors": []})["tied"] = tied
            for name in names:
                self.parameters[name].grad = None

    def add_gradients(self, message: dict[str, Any] | None) -> None:
        """Adds what another part returned to the gradients of this part's parameters."""
        if message is None:
            return
        for name, place in message["tensors"].items():
            there = self.arena.tensor(message["at"], message["bytes"], *self.typed(place))
            parameter, gradient = self.parameters[name], there.to(self.device, copy=True)
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    # A step.

    def batch(self, request: dict[str, Any]) -> dict[str, Any]:
        """Fetches a batch and returns what other parts read of each micro-batch."""
        assert self.data is not None, "the engine asks the first part alone"
        inputs, target = self.data.batch(request["step"], 0, self.batch_samples)
        inputs = self.binder.bind(inputs, "cpu")
        self.check_shapes(inputs, request["step"])
        tokens = tokens_of(inputs)
        inputs = self.binder.placeholders(inputs)
        spans = [self.span(m) for m in range(self.micro_batches)]

        def rows(begin: int, end: int) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda t: t[begin:end] if t.dim() and t.shape[0] == self.batch_samples else t

        self.micro = {}
        for m, span in enumerate(spans):
            own = each({"inputs": inputs, "target": target if self.last else None}, rows(*span))
            self.micro[m] = each(own, lambda t: t.to(self.device, non_blocking=True))
        samples = [end - begin for begin, end in spans]
        if self.last:
            return {"micro_batches": [None] * len(spans), "samples": samples, "tokens": tokens}
        found: list[torch.Tensor] = []
        forms = {name: flatten(inputs[name], found) for name in sorted(self.shared_inputs)}
        target = flatten(target, found)
        _, places = self.batch_slot.write(found)
        messages = []
        for begin, end in spans:
            cut = [self.rows_of(place, begin, end) for place in places]
            messages.append(
                {
                    "at": self.batch_slot.at,
                    "bytes": self.batch_slot.count,
                    "inputs": forms,
                    "target": target,
                    "tensors": cut,
                }
            )
        return {"micro_batches": messages, "samples": samples, "tokens": tokens}

    def check_shapes(self, inputs: dict[str, Any], step: int) -> None:
        """Refuses a batch of other shapes than the graph was made for."""
        if self.shapes is None:
            return
        for name, value in inputs.items():
            found = each(value, lambda t: t.shape[1:])
            if found != self.shapes.get(name):
                raise Refusal(
                    "inputs",
                    f"{name} of step {step} is {shapes(value)}, and the model was traced with samples of "
                    f"{self.shapes.get(name)}: its graph belongs to them",
                    self.source.path,
                    "pad all batches to one length in data(), or define blocks(model), which take any length",
                )

    def rows_of(self, place: Place, begin: int, end: int) -> Place:
        """Where the rows of a micro-batch are in a tensor that was written."""
        offset, kind, shape = place
        if not shape or shape[0] != self.batch_samples:
            return place
        row = math.prod(shape[1:]) * torch.empty(0, dtype=TYPE_NAMES[kind]).element_size()
        return [offset + begin * row, kind, [end - begin] + shape[1:]]

    def finish(self) -> None:
        """Waits until the device has done all that it was given."""
        wait(self.device)

    def finish_if(self, request: dict[str, Any]) -> None:
        """Waits where who asks measures the pass: a device is only told what to do, and does it later."""
        if request.get("wait"):
            self.finish()

    def gradient_squares(self) -> float:
        """The sum of the squares of the gradients, in double precision and in the order of the parameters."""
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float64) for _, p in self.trained if p.grad is not None]
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return math.fsum((n / scale) ** 2 for n in torch.stack(norms).tolist()) if norms else 0.0

    def step(self, scale: float) -> float:
        if self.flights:
            raise Refusal(
                "order", f"part {self.index}: a step with {len(self.flights)} micro-batches between their passes"
            )
        made = scale > 0  # else gradients overflowed, here or in another part
        if self.scaler is not None:
            scale /= self.scaler.scale
            self.scaler.stepped() if made else self.scaler.overflowed()
        if made and scale != 1:
            for _, p in self.trained:
                if p.grad is not None:
                    p.grad.mul_(scale)
        if made:
            self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step(made)
        self.optimizer.zero_grad(set_to_none=True)
        self.finish()
        loss = sum(torch.stack(self.losses).double().tolist()) if self.losses else 0.0
        self.losses = []
        return loss

    # What outlives the process.

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """A copy of what was learnt, and what describes it."""
        found, metadata = self.learnt()
        return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in found.items()}, metadata

    def learnt(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """What was learnt, by its name in a file, and what describes it."""
        found = {"parameter/" + n: t for n, t in self.parameters.items() if n not in self.copies}
        found.update(("buffer/" + n, t) for n, t in self.buffers.items() if n not in self.copies)
        found.update(self.recipe.optimizer_state(self.optimizer, self.trained))
        metadata = {
            "format": FORMAT,
            "model": self.digest,
            "groups": json.dumps(self.recipe.optimizer_groups(self.optimizer, self.trained)),
            "scheduler": json.dumps(self.recipe.scheduler_state(self.scheduler)),
        }
        if self.scaler is not None:
            metadata["scaler"] = json.dumps(self.scaler.state())
        return found, metadata

    def like(self, _: torch.Tensor, loaded: torch.Tensor) -> torch.Tensor:
        """What was loaded, as the tensor is kept that it is to replace."""
        return loaded

    def load(self, paths: list[str]) -> None:
        """Replaces parameters, buffers and the optimizer's state by those in files of any split."""
        found = Files(paths, self.digest)
        mine = dict(self.trained)
        state = {
            key: self.like(mine[key.split("/", 2)[2]], found.read(key))
            for key in found.where
            if key.startswith("optimizer/") and key.split("/", 2)[2] in mine
        }
        pairs = []  # all is read before anything is replaced
        for prefix, own in (("parameter/", self.parameters), ("buffer/", self.buffers)):
            for name, tensor in own.items():
                loaded = found.read(prefix + name)
                if loaded.shape != tensor.shape or loaded.dtype != tensor.dtype:
                    raise Refusal(
                        "state",
                        f"{name} is {shape(loaded)} of {loaded.dtype} in the file, and {shape(tensor)} of "
                        f"{tensor.dtype} in the model",
                        found.where[prefix + name][0],
                        "use the files of this model",
                    )
                pairs.append((tensor, loaded))
        for tensor, loaded in pairs:
            tensor.data.copy_(self.like(tensor, loaded))
        self.recipe.load_optimizer_state(self.optimizer, self.trained, state)
        groups = [json.loads(m.get("groups", "[]")) for m in found.metadata]
        self.recipe.load_optimizer_groups(self.optimizer, self.trained, [g for of_part in groups for g in of_part])
        # A scheduler keeps the rates that its groups began with: of a part without parameters these are another one's.
        of_mine = [any(name in mine for g in of_part for name in g["parameters"]) for of_part in groups]
        schedulers = [(own, m["scheduler"]) for own, m in zip(of_mine, found.metadata) if "scheduler" in m]
        if schedulers:
            _, said = max(schedulers, key=lambda s: s[0])
            self.recipe.load_scheduler_state(self.scheduler, json.loads(said))
        scalers = [json.loads(m["scaler"]) for m in found.metadata if "scaler" in m]
        if scalers and self.scaler is not None:
            self.scaler.load(scalers[0])
        self.slots += [f.slot for f in self.flights.values() if f.slot is not None]
        self.flights, self.losses = {}, []
        self.optimizer.zero_grad(set_to_none=True)

    def write(self, paths: list[str], path: str) -> None:
        """Makes the state_dict of the unsplit model, as torch.load reads it, and the same beside it as safetensors, for
        which nobody needs pickle. What is tied is in that under each of its names."""
        found = Files(paths, self.digest)
        made, whole = {}, {}
        for key, name in self.keys:
            if name not in made:
                made[name] = found.read("parameter/" + name if "parameter/" + name in found.where else "buffer/" + name)
            whole[key] = made[name]
        replace(path, lambda file: torch.save(whole, file))
        save(os.path.splitext(path)[0] + ".safetensors", whole, {"format": "pt"})

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


def tokens_of(inputs: dict[str, Any]) -> int:
    """How many tokens a batch has: the numbers of its input_ids or, without, of its first input, where that has a whole
    number for each place of a sequence; else 0."""
    ids = inputs.get("input_ids", next(iter(inputs.values()), None))
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
        return 0
    return ids.numel()


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


def host_number(t: torch.Tensor) -> Callable[[], float]:
    """Returns what waits for a number of a device, and for nothing that the device is given after this."""
    if t.device.type != "cuda":
        return lambda: float(t)
    copy = torch.empty((), dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True)
    taken = mark(t.device)

    def number() -> float:
        taken()
        return float(copy)

    return number


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
