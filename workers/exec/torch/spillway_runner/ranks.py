"""Trains replicas of parts: each rank is a process that holds one part of one replica, and torch.distributed does what
they do together.

The parts of one replica are a pipeline of torch.distributed.pipelining; the replicas of a part average their gradients
by DistributedDataParallel or, sharded, by fully_shard.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import hashlib
import inspect
import math
import time
from collections import Counter
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from spillway_runner.data import PATIENCE, Data
from spillway_runner.forms import flatten, restore
from spillway_runner.holding import Flight
from spillway_runner.meeting import meet, serve
from spillway_runner.refusal import Refusal
from spillway_runner.train import Part
from spillway_runner.values import each, shapes, size, tensors

Key = tuple[int, int]  # of a value that is passed on: the part that makes it, and its number there

NONE, OPTIMIZER, GRADIENTS, PARAMETERS = "none", "optimizer", "gradients", "parameters"
ALONE = "or use --replicas 1 and --shard none, whose parts pass anything"


class Rank(Part):
    """A part of one replica."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.replica, self.replicas = request["replica"], request["replicas"]
        self.sharding, self.schedule_name = request["sharding"], request["schedule"]
        self.begin, self.end = (r * request["batch"] // self.replicas for r in (self.replica, self.replica + 1))
        super().__init__(request)
        if self.sharding != NONE and (request.get("validation") or self.source.optional("validation")):
            raise Refusal(
                "validation",
                f"replicas that divide what the {self.sharding} take are not evaluated with validation data",
                self.source.path,
                "leave --shard out, or validation data and validation(), and evaluate the trained model afterwards",
            )
        if self.data is None and self.reads_batch:  # a part between that reads an input
            self.open_data(request)
        self.rank = self.replica * self.count + self.index
        self.wanted = [what for where, what in self.sources if where == "batch"]  # inputs that this part reads
        self.at, self.turn = 0, 0  # the step, and the micro-batch whose forward pass comes next
        self.fetched: list[dict[str, Any]] = []  # inputs and target of each micro-batch
        self.seen = ""  # a digest of what parts after the first read of the first samples, of a part that reads data
        self.busy = 0.0  # seconds of this step
        self.held: tuple[dict[str, torch.Tensor], dict[str, str]] | None = None  # what was captured for a checkpoint
        self.store: dist.Store | None = None

    def build(self, request: dict[str, Any], inputs: Any) -> None:
        """As of Part; the last part reads targets, which processes fetch that are not to hold the model."""
        if self.last and self.data is None:
            self.open_data(request)
        super().build(request, inputs)

    def open_data(self, request: dict[str, Any]) -> None:
        patience = request.get("data_timeout") or PATIENCE
        self.data = Data(self.source, request["data"], self.batch_samples, request["seed"], patience)
        self.data.start(request.get("data_workers", 0), request.get("data_cpus"), self.device.type == "cuda")

    def span(self, micro_batch: int) -> tuple[int, int]:
        """The first sample of a micro-batch of this replica and that of the next, in the batch of all."""
        samples = self.end - self.begin
        first, following = (self.begin + m * samples // self.micro_batches for m in (micro_batch, micro_batch + 1))
        return first, following

    def loss(self, output: Any) -> torch.Tensor:
        """Replicas average gradients, and each has but its share of the batch's mean loss."""
        return super().loss(output) * self.factor()

    def factor(self) -> float:
        """By what the loss of a micro-batch is multiplied."""
        return self.replicas * (1.0 if self.scaler is None else self.scaler.scale)

    def code(self) -> dict[str, str]:
        """Digests of the model's file and of the operations of this part."""
        with open(self.source.path, "rb") as file:
            text = file.read()
        nodes = self.module.graph.nodes
        modules = [repr(self.module.get_submodule(n.target)) for n in nodes if n.op == "call_module"]
        operations = "\n".join([str(n.format_node()) for n in nodes] + modules)
        return {"file": hashlib.sha256(text).hexdigest(), "code": hashlib.sha256(operations.encode()).hexdigest()}

    def lend(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """As of Part, also of the first part's own tensors, and as often as there are replicas."""
        part = request["part"]
        if part == self.count:
            return super().lend(request)
        if part == 0:
            found = {**self.parameters, **self.buffers}
        else:
            found = self.others[part - 1]
        if self.loan.count:
            self.arena.give_back(self.loan.at, self.loan.count)
        self.loan = type(self.loan)(self.arena, 0)
        _, places = self.loan.write(list(found.values()))
        if request["last"] and part > 0:
            self.others[part - 1] = {}
        return {
            "model": self.digest,
            "at": self.loan.at,
            "bytes": self.loan.count,
            "tensors": dict(zip(found, places)),
        }

    # Before the first step.

    def serve_store(self, request: dict[str, Any]) -> int:
        """Makes the store at which the ranks meet, on an address of this host, and returns its port."""
        self.store, port = serve(request)
        return port

    def join(self, request: dict[str, Any]) -> None:
        """Meets the other ranks, and gets ready for steps with them."""
        with self.together("meet the other ranks"):
            self.store = meet(request, self.store, self.rank, self.replicas * self.count)
            self.make_groups(datetime.timedelta(seconds=request["timeout"]))
            self.rehearse()
            self.wrap()

    def make_groups(self, timeout: datetime.timedelta) -> None:
        """Every rank makes every group, in one order."""

        def group(ranks: list[int]) -> dist.ProcessGroup | None:
            made = dist.new_group(ranks, timeout=timeout)
            return made if self.rank in ranks else None

        def of(replica: int, part: int) -> int:
            return replica * self.count + part

        lines = [group([of(r, k) for k in range(self.count)]) for r in range(self.replicas)]
        peers = [group([of(r, k) for r in range(self.replicas)]) for k in range(self.count)]
        self.line, self.peers = lines[self.replica], peers[self.index]
        # of the parts that hold a parameter that several read, with the rank that trains it
        self.ties: list[tuple[str, int, dist.ProcessGroup]] = []
        made: dict[tuple[int, ...], list[dist.ProcessGroup | None]] = {}
        for name, parts in sorted(self.tied.items()):
            key = tuple(parts)
            if key not in made:
                made[key] = [group([of(r, k) for k in parts]) for r in range(self.replicas)]
            own = made[key][self.replica]
            if own is not None and self.index in parts:
                self.ties.append((name, of(self.replica, parts[0]), own))

    def fetch(self, step: int | None) -> None:
        """Gets this replica's share of a batch; of no step, the first samples."""
        self.turn, self.fetched = 0, []
        if self.data is None:
            self.fetched = [{"inputs": {}, "target": None}] * self.micro_batches
            return
        samples = self.end - self.begin
        if step is None:
            inputs, target = self.data.example_batch(samples)
        else:
            inputs, target = self.data.batch(step, self.begin, self.end)
        inputs = self.binder.bind(inputs, "cpu")
        self.check_shapes(inputs, step or 0)
        inputs = self.binder.placeholders(inputs)
        if step is None:  # of what parts read that are not the first
            self.seen = digest([[inputs[n] for n in sorted(self.shared_inputs)], target])
        own = {"inputs": {n: inputs[n] for n in self.wanted}, "target": target if self.last else None}

        def rows(begin: int, end: int) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda t: t[begin:end] if t.dim() and t.shape[0] == samples else t

        for m in range(self.micro_batches):
            first, following = self.span(m)
            cut = each(own, rows(first - self.begin, following - self.begin))
            self.fetched.append(each(cut, lambda t: t.to(self.device, non_blocking=True)))

    def rehearse(self) -> None:
        """Runs the first micro-batch forward, part after part, to learn what passes between them. Buffers are left as
        they were."""
        self.fetch(None)
        self.check_data()
        before = [(b, b.detach().clone()) for b in self.module.buffers()]
        self.incoming: dict[Key, Any] = {}  # forms of what comes, by key
        arrived: list[torch.Tensor] = []
        if self.index > 0:
            received: list[Any] = [None]
            dist.recv_object_list(received, src=self.rank - 1, group=self.line, device=torch.device("cpu"))
            self.incoming, sent = received[0]
            arrived = [t.to(self.device).requires_grad_(needs) for t, needs in sent]
        self.came = [described(t) for t in arrived]
        value = self.pass_on(arrived, learn=True)
        self.went = [described(t) for t in value]
        trained = [p for _, p in self.everything_trained()]
        reached: list[torch.Tensor | None] = []
        roots = [t for t in value if t.requires_grad]
        if roots and trained:
            grads = [torch.zeros_like(t) for t in roots]
            reached = list(torch.autograd.grad(roots, trained, grads, allow_unused=True))
        self.unused = len(reached) < len(trained) or any(g is None for g in reached)
        if self.index + 1 < self.count:
            sent = [(t.detach().cpu(), t.requires_grad) for t in value]
            dist.send_object_list(
                [(self.outgoing, sent)], dst=self.rank + 1, group=self.line, device=torch.device("cpu")
            )
        for buffer, values in before:
            buffer.data.copy_(values)
        self.losses, self.turn = [], 0

    def check_data(self) -> None:
        """Refuses data that are others for each part of a replica: inputs would not belong to targets."""
        seen: list[Any] = [None] * self.count
        dist.all_gather_object(seen, self.seen, group=self.line)
        if len(set(filter(None, seen))) > 1:
            raise Refusal(
                "data",
                "two processes that read the data find other samples: the parts of a replica read inputs and targets "
                "each for themselves",
                self.source.path,
                f"seed all that data() draws from, such as numpy.random.default_rng(0), {ALONE}",
            )

    def everything_trained(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters of this part's module with a gradient, also those that another part trains."""
        return [(n, p) for n, p in self.module.named_parameters() if p.requires_grad]

    def pass_on(self, arrived: list[torch.Tensor], learn: bool = False) -> list[torch.Tensor]:
        """Runs this part on the micro-batch whose turn it is. Takes the tensors that come from the part before, and
        returns those that go to the next one: what was made here, and what came and is read later."""
        if not learn:
            self.check_arrived(arrived)
        micro_batch, self.turn = self.turn, self.turn + 1
        values = {key: restore(form, lambda i: arrived[i]) for key, form in self.incoming.items()}
        batch = self.fetched[micro_batch]
        arguments = [batch["inputs"][what] if where == "batch" else values[where, what] for where, what in self.sources]
        flight = Flight(self.at, batch, arguments, [], {})
        began = time.perf_counter()
        if self.recompute and not learn:
            made = self.repeatable(flight, micro_batch)
        else:
            made = self.run(flight, micro_batch)
        self.busy += time.perf_counter() - began
        if self.last:
            self.losses.append(made.detach())
            return [made]
        onward = {key: value for key, value in values.items() if self.until[key] > self.index}
        onward.update({(self.index, i): value for i, value in enumerate(made)})
        found: list[torch.Tensor] = []
        forms = {key: flatten(value, found) for key, value in sorted(onward.items())}
        if learn:
            self.outgoing = forms
        elif forms != self.outgoing:
            raise Refusal(
                "messages",
                f"what part {self.index} passes on is another thing in step {self.at} than it was first",
                self.source.path,
                f"let the model pass the same things in each step, {ALONE}",
            )
        # What came is a leaf, which cannot be both the end and the beginning of a pass; and only what is dense is sent.
        return [t.contiguous() if t.grad_fn is not None else t.view_as(t).contiguous() for t in found]

    def check_arrived(self, arrived: list[torch.Tensor]) -> None:
        if [described(t)[:2] for t in arrived] != [c[:2] for c in self.came]:
            raise Refusal(
                "messages",
                f"part {self.index} gets {shapes(arrived)} in step {self.at}, and got other shapes first",
                self.source.path,
                f"pad all batches to one length in data(), {ALONE}",
            )

    def repeatable(self, flight: Flight, micro_batch: int) -> Any:
        """As run, without the activations, which the backward pass makes again. What the first pass did to the buffers
        is not done again."""
        from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

        passes = 0

        def compute(*arguments: Any) -> Any:
            nonlocal passes
            passes += 1
            again = Flight(flight.step, flight.batch, list(arguments), [], {})
            if passes == 1:
                return self.run(again, micro_batch)
            before = [(self.buffers[n], self.buffers[n].detach().clone()) for n in self.statistics]
            value = self.run(again, micro_batch)
            for buffer, values in before:
                buffer.data.copy_(values)
            return value

        with set_checkpoint_early_stop(False):  # which would end the pass by an exception in the middle of it
            return checkpoint(compute, *flight.arguments, use_reentrant=False, preserve_rng_state=False)

    def wrap(self) -> None:
        """Puts what torch has for replicas around the module, and for parts around that."""
        self.schedule: Any = None
        self.model: nn.Module = Passing(self)
        if self.sharding != NONE:
            self.shard()
        elif self.everything_trained() and self.replicas > 1:
            self.model = DistributedDataParallel(
                self.model,
                process_group=self.peers,
                find_unused_parameters=self.unused,
                **own_buffers(),
            )
        if self.count > 1:
            self.schedule = scheduled(self)

    def shard(self) -> None:
        """Divides the parameters among the replicas, and what belongs to them. Where they are gathered for each pass,
        those of one block are at a time."""
        from torch.distributed import fsdp
        from torch.distributed.device_mesh import DeviceMesh

        if len({id(m) for m in self.modules.values()}) > 1:
            raise Refusal(
                "sharding",
                f"the model is traced for micro-batches of {sorted(self.modules)} samples",
                self.source.path,
                "choose a batch that replicas and micro-batches divide, or train without sharding",
            )
        names = {id(p): name for name, p in self.parameters.items()}
        paths = {path: names[id(p)] for path, p in self.module.named_parameters(remove_duplicate=False)}
        mesh = DeviceMesh.from_group(self.peers, self.device.type)
        anew = self.sharding == PARAMETERS
        for unit in units(self.module) if anew else []:
            fsdp.fully_shard(unit, mesh=mesh, reshard_after_forward=True)
        fsdp.fully_shard(self.model, mesh=mesh, reshard_after_forward=anew)
        if dist.get_backend(self.peers) == "gloo":
            for unit in self.model.modules():
                if hasattr(unit, "set_custom_reduce_scatter"):
                    unit.set_custom_reduce_scatter(ReduceScatter())
        self.parameters.update({paths[path]: p for path, p in self.module.named_parameters()})
        self.trained = [(name, self.parameters[name]) for name, _ in self.trained]
        self.make_optimizer()

    # A step.

    def train_step(self, request: dict[str, Any]) -> dict[str, Any]:
        """Trains on this replica's share of a batch."""
        self.at, self.busy = request["step"], 0.0
        began = time.perf_counter()
        self.fetch(self.at)
        fetched = time.perf_counter()
        with self.together(f"do step {self.at}"):
            if self.schedule is not None:
                self.go_through_parts()
            else:
                self.accumulate()
            self.sum_tied()
            loss, squares = self.totals()
            norm, clip = math.sqrt(squares), request["clip"]
            skipped = self.scaler is not None and not math.isfinite(norm)
            updated = math.isfinite(loss) and (skipped or math.isfinite(norm))
            if updated:
                stepping = time.perf_counter()
                self.step(0.0 if skipped else min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0)
                self.busy += time.perf_counter() - stepping
            self.losses = []
            for _, p in self.everything_trained():
                p.grad = None
            self.share_tied()
        self.finish()
        return {
            "loss": repr(loss),
            "norm": repr(norm if clip > 0 or skipped or not updated else 0.0),
            "updated": updated,
            "skipped": skipped,
            "samples": self.end - self.begin if self.index == 0 else 0,
            "seconds": time.perf_counter() - fetched,
            "waited": fetched - began,
            "busy": self.busy,
        }

    def accumulate(self) -> None:
        """Adds the gradients of all micro-batches up, and averages those of the replicas with the last one."""
        for m in range(self.micro_batches):
            final = m == self.micro_batches - 1
            alone = isinstance(self.model, DistributedDataParallel) and not final
            if self.sharding != NONE:
                model: Any = self.model
                model.set_requires_gradient_sync(final or self.sharding != OPTIMIZER)
                model.set_reshard_after_backward(final or self.sharding == PARAMETERS)
                model.set_is_last_backward(final)
            with self.model.no_sync() if alone else contextlib.nullcontext():
                (loss,) = self.model()
                with self.backward_of(m):
                    if loss.requires_grad:
                        loss.backward()

    def go_through_parts(self) -> None:
        """Has the schedule of torch run the micro-batches through the parts of this replica. The schedule cuts numbers
        of samples; who reads samples has them already."""
        numbers = torch.arange(self.end - self.begin, device=self.device)
        given = (numbers,) if self.index == 0 else ()
        if self.last:
            self.schedule.step(*given, target=numbers, losses=[], return_outputs=False)
        else:
            self.schedule.step(*given)

    def sum_tied(self) -> None:
        """Sums the gradients of parameters that several parts hold, in the part that trains them."""
        for name, trainer, group in self.ties:
            parameter = self.parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.reduce(local(parameter.grad), trainer, group=group)

    def share_tied(self) -> None:
        """Gives the parts that hold such a parameter what became of it."""
        for name, trainer, group in self.ties:
            dist.broadcast(local(self.parameters[name].detach()), trainer, group=group)

    def totals(self) -> tuple[float, float]:
        """The loss of the whole batch, and the sum of the squares of all gradients."""
        own = sum(torch.stack(self.losses).double().tolist()) if self.losses else 0.0
        once = self.replicas if self.sharding == NONE else 1
        sums = [own / self.factor(), self.gradient_squares() / once]
        found = torch.tensor(sums, dtype=torch.float64, device=self.device)
        dist.all_reduce(found)
        loss, squares = found.tolist()
        return loss, squares

    def gradient_squares(self) -> float:
        """As of Part, of what this rank holds."""
        norms = [
            torch.linalg.vector_norm(local(p.grad), dtype=torch.float64) for _, p in self.trained if p.grad is not None
        ]
        scale = 1.0 if self.scaler is None else self.scaler.scale
        return math.fsum((n / scale) ** 2 for n in torch.stack(norms).tolist()) if norms else 0.0

    def usage(self) -> dict[str, int]:
        """As of Part, of what this rank holds."""
        found = super().usage()
        if self.sharding != NONE:
            state = self.recipe.optimizer_state(self.optimizer, self.trained)
            found["parameters"] = sum(size(local(p)) for p in self.parameters.values())
            found["gradients"] = sum(size(local(p)) for _, p in self.everything_trained())
            found["optimizer"] = sum(size(local(t)) for t in state.values())
        return found

    # What outlives the process.

    def like(self, tensor: torch.Tensor, loaded: torch.Tensor) -> torch.Tensor:
        """This rank's piece of what was loaded, where it holds a piece."""
        if not hasattr(tensor, "placements") or not loaded.dim():
            return loaded
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(loaded.to(self.device), tensor.device_mesh, tensor.placements, src_data_rank=None)

    def capture(self) -> None:
        """Copies what this rank is to write of a checkpoint: the replicas of a part share its tensors, and the first
        one has the buffers, as each has statistics of its own samples."""
        found, metadata = self.learnt()
        inside = {id(t) for t in self.module.parameters()}
        own: dict[str, torch.Tensor] = {}
        with self.together("make a checkpoint"):
            for i, name in enumerate(sorted(found)):
                t = found[name].detach()
                spare = name.startswith("parameter/") and id(found[name]) not in inside
                writer = 0 if spare or name.startswith("buffer/") else i % self.replicas
                t = whole(t)
                if writer == self.replica:
                    own[name] = t.to("cpu", copy=True).contiguous()
        self.held = own, metadata

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """What was captured, once."""
        assert self.held is not None, "all ranks capture a checkpoint before one exports it"
        held, self.held = self.held, None
        return held

    @contextlib.contextmanager
    def together(self, what: str) -> Iterator[None]:
        """Tells errors of what ranks do together apart from those of the model."""
        try:
            yield
        except Refusal:
            raise
        except Exception as error:
            cause = origin(error)
            if isinstance(cause, Refusal):
                raise cause from error
            if not collective(cause):
                raise
            raise Refusal("collective", f"cannot {what} with the other ranks: {cause}".split("\n")[0]) from error

    @contextlib.contextmanager
    def backward_of(self, micro_batch: int) -> Iterator[None]:
        """Counts the time of a backward pass, and tells which operation fails in it."""
        began = time.perf_counter()
        try:
            yield
        except Exception as error:
            cause = origin(error)
            if isinstance(cause, Refusal) or collective(cause):
                raise
            raise self.failed(cause, micro_batch, backward=True) from error
        finally:
            self.busy += time.perf_counter() - began


class Passing(nn.Module):
    """The module of a part, from the tensors that come to those that go."""

    def __init__(self, rank: Rank) -> None:
        super().__init__()
        self.module = rank.module
        self.run, self.first = rank.pass_on, rank.index == 0

    def forward(self, *arrived: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(self.run([] if self.first else list(arrived)))  # to the first part come numbers of samples


def units(module: nn.Module) -> list[list[nn.Module]]:
    """The modules with parameters that a graph calls, those of one block together: of one layer of a list, or of one
    field of the model. Those that share parameters with others are left out, as these need all of them at once."""
    held = Counter(id(p) for _, p in module.named_parameters(remove_duplicate=False))
    found: dict[str, list[nn.Module]] = {}
    for node in module.graph.nodes:
        if node.op != "call_module":
            continue
        called = module.get_submodule(node.target)
        path = node.target.split(".")
        number = next((i for i, name in enumerate(path) if name.isdigit()), 0)
        block = found.setdefault(".".join(path[: number + 1]), [])
        counts = [held[id(p)] for p in called.parameters()]
        if counts and max(counts) == 1 and all(called is not other for other in block):
            block.append(called)
    return [block for block in found.values() if block]


class ReduceScatter:
    """That of fully_shard, by an exchange: gloo's own sums whole tensors on every rank, which sends twice as much."""

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        if op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            raise ValueError(f"a reduction by {op}; want a sum or a mean")
        pieces = torch.empty_like(input_tensor)
        dist.all_to_all_single(pieces, input_tensor, group=group)
        torch.sum(pieces.view(group.size(), -1), 0, out=output_tensor)  # in the order of the replicas
        if op == dist.ReduceOp.AVG:
            output_tensor.div_(group.size())


def scheduled(rank: Rank) -> Any:
    """The schedule of torch.distributed.pipelining over the parts of a replica, for this one."""
    from torch.distributed import pipelining

    class Stage(pipelining.PipelineStage):
        """One that knows how long its backward passes take, and what fails in them."""

        def backward_one_chunk(self, bwd_chunk_id: int, *arguments: Any, **named: Any) -> Any:
            with rank.backward_of(bwd_chunk_id):
                return super().backward_one_chunk(bwd_chunk_id, *arguments, **named)

    first, following = rank.span(0)
    came = [torch.empty(s, dtype=t, device=rank.device, requires_grad=g) for s, t, g in rank.came]
    if rank.index == 0:
        came = [torch.arange(following - first, device=rank.device)]
    went = [torch.empty(s, dtype=t, device=rank.device, requires_grad=g) for s, t, g in rank.went]
    stage = Stage(
        rank.model,
        rank.index,
        rank.count,
        rank.device,
        input_args=tuple(came),
        output_args=tuple(went),
        group=rank.line,
    )
    # With fewer micro-batches than parts, one forward and one backward in turn is all forward, then all backward.
    interleaved = rank.schedule_name == "1f1b" and rank.micro_batches >= rank.count
    kind = pipelining.Schedule1F1B if interleaved else pipelining.ScheduleGPipe
    return kind(stage, rank.micro_batches, loss_fn=lambda output, _: output[0], scale_grads=False)


def origin(error: BaseException) -> Any:
    """What an error was raised for in the first place: the pipeline wraps what its parts raise."""
    while error.__cause__ is not None and not isinstance(error, Refusal):
        error = error.__cause__
    return error


def own_buffers() -> dict[str, Any]:
    """The option of DistributedDataParallel that leaves each replica its buffers; torch has given it another name."""
    options = inspect.signature(DistributedDataParallel.__init__).parameters
    return {next(name for name in ("forward_sync_buffers", "broadcast_buffers") if name in options): False}


def digest(value: Any) -> str:
    """A digest of all tensors of a value."""
    found = hashlib.sha256()
    for t in tensors(value):
        found.update(f"{t.dtype} {list(t.shape)}".encode())
        own = t.detach().cpu().contiguous()
        found.update(ctypes.string_at(own.data_ptr(), size(own)))
    return found.hexdigest()


def described(t: torch.Tensor) -> tuple[torch.Size, torch.dtype, bool]:
    return t.shape, t.dtype, t.requires_grad


def local(t: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor."""
    return t.to_local() if hasattr(t, "to_local") else t


def whole(t: torch.Tensor) -> torch.Tensor:
    """A tensor of which each replica may hold a piece."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def collective(error: Exception) -> bool:
    """Whether the error is one of a connection to another rank."""
    if isinstance(error, getattr(dist, "DistError", ())):
        return True
    text = str(error)
    return any(sign in text for sign in ("/gloo/", "NCCL", "Timed out waiting", "Connection", "connection"))
