"""Cuts the graph of a model into parts."""

from __future__ import annotations

import operator
from typing import Any, Callable

import torch
from torch import fx, nn

from spillway_runner.recording import rebuilt, recorded
from spillway_runner.refusal import Refusal
from spillway_runner.tracing import Operation

LOSS = "loss"  # the operation that training adds


def add_loss(graph: fx.Graph, function: Callable[[Any], torch.Tensor]) -> fx.Node:
    """Puts function(output) between what the model returns and the end. Returns the operation."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    with graph.inserting_before(output):
        node = graph.create_node("call_function", function, (output.args[0],), name=LOSS)
    output.args = (node,)
    return node


def is_operation(node: fx.Node) -> bool:
    return node.op not in ("placeholder", "get_attr", "output")


def is_item(node: fx.Node) -> bool:
    """Whether a node takes an item or a field of another's value: it goes where that one is, so that the rest of the
    value need not travel."""
    return (
        node.op == "call_function"
        and node.target in (operator.getitem, getattr)
        and not any(isinstance(a, fx.Node) for a in node.args[1:])
    )


class Split:
    """Which part computes each operation, and what passes between the parts. Inputs belong to nobody: who reads one
    gets it with the batch."""

    def __init__(self, graph: fx.Graph, root: nn.Module, parts: list[list[str] | None], names: dict[int, str]) -> None:
        """parts are lists of names of operations; the only one may be None, which is all. names are those of parameters
        and buffers by identity."""
        self.graph, self.root, self.names = graph, root, names
        self.owner = self.assign(parts)
        self.exports: list[list[fx.Node]] = [[] for _ in parts]  # of each part, what later ones read
        for node in graph.nodes:
            for user in node.users:
                if is_operation(node) and is_operation(user) and self.owner[user] != self.owner[node]:
                    self.exports[self.owner[node]].append(node)
                    break
        self.check_sharing()

    def assign(self, parts: list[list[str] | None]) -> dict[fx.Node, int]:
        nodes = {n.name: n for n in self.graph.nodes if n.op in ("placeholder",) or is_operation(n)}
        if len(parts) == 1 and parts[0] is None:
            return {n: 0 for n in nodes.values() if is_operation(n)}
        place: dict[str, int] = {}
        for i, names in enumerate(parts):
            for name in names or ():
                if name not in nodes:
                    raise Refusal(
                        "split",
                        f"part {i} has an operation {name}, which the model has not",
                        hint="split the graph that a probe of this model returned",
                    )
                if name in place:
                    raise Refusal(
                        "split",
                        f"operation {name} is in part {place[name]} and in part {i}",
                        hint="put each operation into one part",
                    )
                place[name] = i
        owner: dict[fx.Node, int] = {}
        for node in filter(is_operation, self.graph.nodes):
            if node.name not in place and node.name != LOSS:
                raise Refusal("split", f"operation {node.name} is in no part", hint="put each operation into one part")
            owner[node] = place.get(node.name, len(parts) - 1)
            sources = [s for s in node.all_input_nodes if is_operation(s)]
            for source in sources:
                if owner[source] > place.get(node.name, len(parts) - 1):
                    raise Refusal(
                        "split",
                        f"operation {node.name} of part {owner[node]} reads {source.name} of part {owner[source]}",
                        hint="order the parts so that no tensor goes backwards",
                    )
            if is_item(node) and len(sources) == 1:
                owner[node] = owner[sources[0]]
        for node in reversed(list(owner)):
            if node.target is rebuilt:  # what it is made of travels instead
                owner[node] = min((owner[u] for u in node.users if u in owner), default=owner[node])
        last = [n for n in owner if n.name == LOSS]
        if last and owner[last[0]] != len(parts) - 1:
            raise Refusal(
                "split", f"the loss is in part {owner[last[0]]} of {len(parts)}", hint="put it into the last part"
            )
        return owner

    def held(self, part: int) -> dict[int, torch.Tensor]:
        """What a part holds, by identity."""
        operations = (Operation(node, self.root) for node, owner in self.owner.items() if owner == part)
        return {id(t): t for operation in operations for t in operation.all_held()}

    def tied(self) -> dict[str, list[int]]:
        """The trained parameters that several parts read, by name, with these parts. The first one's optimizer updates
        it, and the others get it and return its gradients."""
        readers: dict[str, list[int]] = {}
        for part in range(len(self.exports)):
            for identity, tensor in self.held(part).items():
                if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
                    readers.setdefault(self.names[identity], []).append(part)
        return {name: parts for name, parts in readers.items() if len(parts) > 1}

    def check_sharing(self) -> None:
        """Refuses buffers that several parts would write."""
        holder: dict[int, int] = {}
        for node, part in self.owner.items():
            for tensor in Operation(node, self.root).own_buffers:
                if holder.setdefault(id(tensor), part) != part:
                    raise Refusal(
                        "split",
                        f"parts {holder[id(tensor)]} and {part} both hold {self.names.get(id(tensor), 'a tensor')}",
                        hint="operations of one colour belong into one part",
                    )

    def placeholders(self, part: int) -> list[fx.Node]:
        """The inputs that a part reads."""
        return [
            n for n in self.graph.nodes if n.op == "placeholder" and any(self.owner.get(u) == part for u in n.users)
        ]

    def module(
        self, part: int, enter: Callable[[str], None], device: torch.device
    ) -> tuple[fx.GraphModule, list[tuple[Any, Any]]]:
        """The module of a part, and where its arguments come from: ("batch", name of the input) or (number of the part,
        number among its exports).

        It returns what later parts read, the last one the loss. enter(name) is called before each operation. What was
        recorded on one device is made on another.
        """
        graph, here, sources = fx.Graph(), {}, []

        def there(argument: Any) -> Any:
            return device if isinstance(argument, torch.device) else argument

        own = [n for n in self.graph.nodes if self.owner.get(n) == part]
        for node in own:
            for source in node.all_input_nodes:
                if source in here or self.owner.get(source) == part:
                    continue
                if source.op == "get_attr":
                    here[source] = graph.node_copy(source)
                    continue
                here[source] = graph.placeholder(source.name)
                where = self.owner.get(source)
                sources.append(
                    ("batch", source.target) if where is None else (where, self.exports[where].index(source))
                )
        for node in own:
            graph.call_function(enter, (node.name,))
            here[node] = graph.node_copy(node, lambda n: here[n])
            if recorded(self.graph):
                here[node].args = fx.node.map_aggregate(here[node].args, there)
                here[node].kwargs = fx.node.map_aggregate(here[node].kwargs, there)
        last = part == len(self.exports) - 1
        graph.output(
            next(here[n] for n in own if n.name == LOSS) if last else tuple(here[n] for n in self.exports[part])
        )
        return fx.GraphModule(self.root, graph), sources
