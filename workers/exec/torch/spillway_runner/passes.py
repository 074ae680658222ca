"""The passes of a part, and the messages between parts."""

from __future__ import annotations

import math
import traceback
from typing import Any, Callable, ContextManager

import torch
from torch import nn

from spillway_runner.answers import asynchronous, out_of_memory
from spillway_runner.arena import TYPE_NAMES, Slot
from spillway_runner.compiling import compiled
from spillway_runner.devices import fitting, mark, room, tried, wait
from spillway_runner.finite import Watch, not_finite, not_finite_before, odd, user_line
from spillway_runner.forms import flatten, restore
from spillway_runner.holding import Flight, Holding, Leaf
from spillway_runner.precision import cast
from spillway_runner.refusal import Refusal
from spillway_runner.source import described, traced, users
from spillway_runner.values import amount, each, tensors


class Passes(Holding):
    """A part that does passes."""

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

    def finish(self) -> None:
        """Waits until the device has done all that it was given."""
        wait(self.device)

    def finish_if(self, request: dict[str, Any]) -> None:
        """Waits where who asks measures the pass: a device is only told what to do, and does it later."""
        if request.get("wait"):
            self.finish()


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
