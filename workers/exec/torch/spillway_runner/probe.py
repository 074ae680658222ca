"""Measures the operations of a model: what they hold, keep and cost, and what passes between them."""

from __future__ import annotations

import contextlib
import operator
import sys
import traceback
from functools import partial
from typing import Any, Callable, ContextManager, Dict

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from spillway_runner import precision
from spillway_runner.answers import out_of_memory
from spillway_runner.bench import Bench
from spillway_runner.costs import Cast, Clock, Kept, measure, time_operation
from spillway_runner.data import Data
from spillway_runner.devices import device_name, prepare, room
from spillway_runner.dropout import KeyedDropout
from spillway_runner.model import Model, readable, weight
from spillway_runner.parts import LOSS, add_loss
from spillway_runner.peak import peak
from spillway_runner.process import imported, resident, trim, warm_up
from spillway_runner.recipe import Recipe
from spillway_runner.recording import recorded
from spillway_runner.refusal import Refusal
from spillway_runner.source import Source, described, users
from spillway_runner.tracing import Operation, attribute, trace
from spillway_runner.validation import Validation, check
from spillway_runner.values import each, shape, size, tensors

Rows = Dict[fx.Node, Dict[str, Any]]  # of operations and inputs, as account makes them


def probe(request: dict[str, Any]) -> dict[str, Any]:
    """Looks into a model: its operations, what they hold, keep and cost, and what passes between them.

    With "training", its inputs are the first batch of the data, and its loss is an operation.
    """
    if request.get("threads"):
        torch.set_num_threads(request["threads"])
    memory = request.get("memory") or 0
    device = prepare(request["device"], memory)
    chosen = request.get("precision") or "float32"
    precision.set_precision(chosen, device)
    # A model may be larger than a GPU.
    bench = Bench(device, device.type == "cuda" or bool(request.get("apart")))
    if request.get("training") and device.type == "cpu":
        warm_up()
    source, inputs = Source(request["file"]), None
    trim()
    found: dict[str, Any] = {"base": resident()}
    if request.get("training"):
        data = Data(source, request["data"], None, 0)
        (inputs, target), found["dataset"] = data.example_batch(request["batch"]), data.samples
        validation = Validation.of(source, request, request["batch"])
        found["validates"] = validation is not None
        trim()
        found["data_bytes"] = max(resident() - found["base"], 0)
        found.update(data.cost(request["batch"]))
        del data
        trim()
    modules, before = len(sys.modules), resident()
    model = Model(source, {**request, "device": "cpu"} if bench.apart else request, inputs)
    graph, placeholders = trace(model)
    if device.type == "cpu":
        found["base"] += imported(modules, before, sum(map(size, model.held().values())))
    if request.get("training"):
        recipe, target = Recipe(source, {}), each(target, lambda t: t.to(device))

        def loss(output: Any) -> torch.Tensor:
            return recipe.loss(output, target)

        add_loss(graph, loss)
    walk = Walk(graph, model, placeholders, bench)
    # The masks that it draws cost other times than torch's and keep other tensors.
    keyed = KeyedDropout(0) if request.get("training") else None
    cast = partial(precision.cast, chosen, device)

    def within() -> ContextManager[None]:
        return contextlib.nullcontext() if keyed is None else keyed.micro_batch(0, 0, model.batch)

    with within():
        rows = account(walk, cast)
    edges = connect(graph, rows)
    clock = Clock(device)

    def visit(operation: Operation, args: Any, kwargs: Any) -> Any:
        if keyed is not None:
            keyed.operation(operation.name)
        try:
            with bench.loan(operation, args, kwargs, leaves=True) as (lent, named):
                value, costs = time_operation(clock, request["repeats"], operation, lent, named, cast)
                value = bench.home(value)
        except Exception as error:
            raise failed(walk, operation, args, error) from error
        rows[operation.node].update(costs)
        return value

    with within():
        walk.run(visit)
    used = {id(p) for row in rows.values() for p in row["parameters"] + row["constants"]}
    unused = [readable(n) for n, p in model.module.named_parameters() if id(p) not in used]
    held = number(rows, model.module)
    digest = model.digest()
    if request.get("training") and validation is not None:
        found["metrics"] = check(validation, model, recipe, bench, recorded(graph), cast)
    if request.get("training"):
        found["peak_flops"] = peak(device, cast)
    forward, backward = measure_whole(model, clock, request["repeats"], bench, cast, list(rows.values()), memory)
    return {
        **found,
        "model": digest,
        "ops": list(rows.values()),
        "edges": edges,
        "held": held,
        "batch": model.batch,
        "parameter_bytes": weight(model.module),
        "buffer_bytes": sum(map(size, model.module.buffers())),
        "unused": unused,
        "forward": forward,
        "backward": backward,
        "blocks": model.blocks is not None,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "",
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "slowdown": precision.slowdown(chosen, device),
        "statistics": statistics(model.module, graph),
    }


def statistics(module: nn.Module, graph: fx.Graph) -> str:
    """The name of the first operation that computes statistics over the samples which pass together; empty without."""
    for name, m in module.named_modules():
        if isinstance(m, (_BatchNorm, _InstanceNorm)):
            own = m.training or m.running_mean is None
            if own and (isinstance(m, _BatchNorm) or m.track_running_stats):
                return f"{readable(name)} ({type(m).__name__})"
    functions = (nn.functional.batch_norm, torch.batch_norm)
    found = next((n for n in graph.nodes if n.op == "call_function" and n.target in functions), None)
    return "" if found is None else str(found.name)


def last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the nodes whose values nobody reads after it."""
    last: dict[fx.Node, fx.Node] = {}
    ends: dict[fx.Node, list[fx.Node]] = {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            last[source] = node
    for source, node in last.items():
        ends.setdefault(node, []).append(source)
    return ends


class Walk:
    """Visits the operations in order with the values they read."""

    def __init__(self, graph: fx.Graph, model: Model, placeholders: dict[str, Any], bench: Bench) -> None:
        self.graph, self.model, self.placeholders, self.bench = graph, model, placeholders, bench
        self.values: dict[fx.Node, Any] = {}  # that are still to be read

    def run(self, visit: Callable[[Operation, Any, Any], Any]) -> None:
        """visit(operation, args, kwargs) returns the value of an operation; it is not called for inputs and
        attributes."""
        values, ends = self.values, last_uses(self.graph)
        values.clear()
        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node] = self.placeholders[node.target]
            elif node.op == "get_attr":
                values[node] = attribute(self.model.module, node.target)
            elif node.op != "output":
                operation = Operation(node, self.model.module)
                args, kwargs = operation.arguments(values)
                values[node] = visit(operation, args, kwargs)
            for dead in ends.get(node, ()):
                del values[dead]


def failed(walk: Walk, operation: Operation, args: Any, error: Exception) -> Refusal:
    """Tells which operation failed on which shapes."""
    model = walk.model
    held = (
        [f"{n} {shape(p)}" for n, p in operation.module.named_parameters()]
        if operation.node.op == "call_module"
        else []
    )
    given = ", ".join(map(shape, args)) or "no arguments"
    parameters = f" with {', '.join(held[:4])}" if held else ""
    if out_of_memory(error):
        return Refusal(
            "memory",
            f"out of memory: operation {operation.name} ({operation.title()}) alone does not fit on "
            f"{walk.bench.device} with {model.batch} samples: {given}{parameters}: {described(error)}",
            operation.node.meta.get("at", "") or model.source.path,
            "cut the batch into more micro-batches, make the layer smaller, or use a device with more memory",
        )
    message = f"{operation.name} ({operation.title()}) fails on {given}{parameters}: {described(error)}"
    inside = traceback.extract_tb(error.__traceback__)
    at = model.source.place(error) if any(users(f.filename) for f in inside) else operation.node.meta.get("at", "")
    return Refusal(
        "run", message, at or model.source.path, "make the shapes of the example inputs and of the layers agree"
    )


def number(rows: Rows, module: nn.Module) -> list[dict[str, Any]]:
    """Replaces the tensors in the rows by numbers. Returns the name and the size of each number's."""
    names = {id(t): n for n, t in list(module.named_buffers()) + list(module.named_parameters())}
    numbers: dict[int, int] = {}  # by identity
    held: list[dict[str, Any]] = []
    for row in rows.values():
        for key in ("parameters", "buffers", "constants"):
            for t in row[key]:
                if id(t) not in numbers:
                    numbers[id(t)] = len(held)
                    unnamed = f"what is written in place {len(held)}" if t.numel() == 0 else "constant"
                    held.append({"name": readable(names.get(id(t), unnamed)), "bytes": size(t)})
            row[key] = sorted({numbers[id(t)] for t in row[key]})
        del row["value"]
    return held


def measure_whole(
    model: Model, clock: Clock, repeats: int, bench: Bench, cast: Cast, rows: list[dict[str, Any]], memory: int
) -> tuple[float, float]:
    """The seconds of both passes of the unsplit model; 0 where a device apart from the host cannot hold it."""
    device = bench.device
    if bench.apart:
        # parameters, their gradients, and what the passes keep and work on
        needs = 2 * weight(model.module) + sum(r["activation_bytes"] for r in rows)
        needs += 2 * max((r["output_bytes"] for r in rows), default=0)
        most = room(device, memory)
        if 0 < most < needs:
            return 0.0, 0.0
    weights = [p for p in model.module.parameters() if p.requires_grad]

    def run(_: Any) -> Any:
        with cast():
            return model.run()

    try:
        if bench.apart:
            model.to(device)
        with model.source.blamed("run", "the model fails", "make it run on the example inputs first"):
            return measure(clock, repeats, run, weights)[1:]
    except Exception as error:
        if bench.apart and out_of_memory(error):
            return 0.0, 0.0
        raise


def trained(tensor: torch.Tensor) -> bool:
    """Whether an optimizer is given a tensor: neither a buffer nor frozen."""
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def account(walk: Walk, cast: Cast) -> Rows:
    """Runs the operations once; the row of each says what it is, holds, keeps, computes and returns."""
    kept = Kept(walk.model.module)
    rows: Rows = {}
    overwritten: list[tuple[fx.Node, fx.Node]] = []  # what was written to, and who wrote

    def row(operation: Operation, value: Any, activation: int = 0) -> None:
        module_buffers = {id(b) for b in operation.own_buffers}
        rows[operation.node] = {
            "id": operation.name,
            "name": readable(operation.title()),
            "kind": operation.kind(),
            "at": operation.node.meta.get("at", ""),
            "parameters": [t for t in operation.held if trained(t)],
            "buffers": operation.own_buffers,
            "constants": [t for t in operation.held if not trained(t) and id(t) not in module_buffers],
            "shape": shape(value),
            "output_bytes": size(value),
            "activation_bytes": activation,
            "forward": 0.0,
            "backward": 0.0,
            "flops": 0,
            "forward_bytes": 0,
            "backward_bytes": 0,
            "library_bytes": 0,
            "value": [size(v) for v in value] if isinstance(value, (tuple, list)) else size(value),
        }

    def visit(operation: Operation, args: Any, kwargs: Any) -> Any:
        versions = {node: [t._version for t in tensors(v)] for node, v in walk.values.items()}
        try:
            with walk.bench.loan(operation, args, kwargs, leaves=False) as (lent, named):
                if walk.bench.apart:
                    kept.begin(walk.bench.lent(), operation.all_held())
                with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda packed: packed), cast():
                    value = operation.call(lent, named)
                value = walk.bench.home(value, kept)
        except Exception as error:
            raise failed(walk, operation, args, error) from error
        row(operation, value, kept.take())
        changed = [
            node for node, before in versions.items() if before != [t._version for t in tensors(walk.values[node])]
        ]
        overwritten.extend((node, operation.node) for node in changed if len(node.users) > 1)
        return value

    for node in walk.graph.nodes:
        if node.op == "placeholder":
            row(Operation(node, walk.model.module), walk.placeholders[node.target])
    walk.run(visit)
    # Where one operation writes to a value that others read, too, all of them must be on one device, as they are in one
    # order.
    for node, writer in overwritten:
        together = torch.empty(0)
        for operation in {writer, *node.users} & set(rows):
            rows[operation]["buffers"] = rows[operation]["buffers"] + [together]
    return rows


def connect(graph: fx.Graph, rows: Rows) -> list[dict[str, Any]]:
    """The edges. Items of a tuple are outputs of their own: who takes one by its index needs no other.

    What nobody reads leads to the loss with nothing, so that the loss is in the last part of every split.
    """
    edges = []
    loss = next((n for n in rows if n.name == LOSS and n.op == "call_function"), None)
    if loss is not None:
        edges += [
            {"from": n.name, "to": LOSS, "output": 0, "bytes": 0}
            for n in rows
            if n is not loss and not any(u in rows for u in n.users)
        ]
    for node in graph.nodes:
        if node not in rows:
            continue
        for source in node.all_input_nodes:
            if source not in rows:
                continue
            sizes = rows[source]["value"]
            if not isinstance(sizes, list):
                wanted, sizes = range(1), [sizes]
            elif node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int):
                taken = node.args[1] % len(sizes)
                wanted = range(taken, taken + 1)
            else:
                wanted = range(len(sizes))
            edges += [{"from": source.name, "to": node.name, "output": i, "bytes": sizes[i]} for i in wanted]
    return edges
