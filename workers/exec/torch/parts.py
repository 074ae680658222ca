"""Cuts the graph of a model into parts.

This file is run after model.py, in its namespace.
"""

LOSS = "loss"  # the operation that training adds


def add_loss(graph, function):
    """Puts function(output) between what the model returns and the end. Returns the operation."""
    output = next(n for n in reversed(graph.nodes) if n.op == "output")
    with graph.inserting_before(output):
        node = graph.create_node("call_function", function, (output.args[0],), name=LOSS)
    output.args = (node,)
    return node


def is_operation(node):
    return node.op not in ("placeholder", "get_attr", "output")


def is_item(node):
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

    def __init__(self, graph, root, parts, names):
        """parts are lists of names of operations; the only one may be None, which is all. names are those of parameters
        and buffers by identity."""
        self.graph, self.root, self.names = graph, root, names
        self.owner = self.assign(parts)
        self.exports = [[] for _ in parts]  # of each part, what later ones read
        for node in graph.nodes:
            for user in node.users:
                if is_operation(node) and is_operation(user) and self.owner[user] != self.owner[node]:
                    self.exports[self.owner[node]].append(node)
                    break
        self.check_sharing()

    def assign(self, parts):
        nodes = {n.name: n for n in self.graph.nodes if n.op in ("placeholder",) or is_operation(n)}
        if len(parts) == 1 and parts[0] is None:
            return {n: 0 for n in nodes.values() if is_operation(n)}
        place = {}
        for i, names in enumerate(parts):
            for name in names or ():
                if name not in nodes:
                    raise Refusal(
                        "split",
                        "part %d has an operation %s, which the model has not" % (i, name),
                        hint="split the graph that a probe of this model returned",
                    )
                if name in place:
                    raise Refusal(
                        "split",
                        "operation %s is in part %d and in part %d" % (name, place[name], i),
                        hint="put each operation into one part",
                    )
                place[name] = i
        owner = {}
        for node in filter(is_operation, self.graph.nodes):
            if node.name not in place and node.name != LOSS:
                raise Refusal(
                    "split", "operation %s is in no part" % node.name, hint="put each operation into one part"
                )
            owner[node] = place.get(node.name, len(parts) - 1)
            sources = [s for s in node.all_input_nodes if is_operation(s)]
            for source in sources:
                if owner[source] > place.get(node.name, len(parts) - 1):
                    raise Refusal(
                        "split",
                        "operation %s of part %d reads %s of part %d"
                        % (node.name, owner[node], source.name, owner[source]),
                        hint="order the parts so that no tensor goes backwards",
                    )
            if is_item(node) and len(sources) == 1:
                owner[node] = owner[sources[0]]
        last = [n for n in owner if n.name == LOSS]
        if last and owner[last[0]] != len(parts) - 1:
            raise Refusal(
                "split", "the loss is in part %d of %d" % (owner[last[0]], len(parts)), hint="put it into the last part"
            )
        return owner

    def check_sharing(self):
        """Refuses parameters and buffers that several parts would write."""
        holder = {}
        for node, part in self.owner.items():
            operation = Operation(node, self.root)
            for tensor in [t for t in operation.held if isinstance(t, nn.Parameter)] + operation.own_buffers:
                if holder.setdefault(id(tensor), part) != part:
                    raise Refusal(
                        "split",
                        "parts %d and %d both hold %s"
                        % (holder[id(tensor)], part, self.names.get(id(tensor), "a tensor")),
                        hint="operations of one colour belong into one part",
                    )

    def placeholders(self, part):
        """The inputs that a part reads."""
        return [
            n for n in self.graph.nodes if n.op == "placeholder" and any(self.owner.get(u) == part for u in n.users)
        ]

    def module(self, part, enter):
        """The module of a part, and where its arguments come from: ("batch", name of the input) or (number of the part,
        number among its exports).

        It returns what later parts read, the last one the loss. enter(name) is called before each operation.
        """
        graph, here, sources = fx.Graph(), {}, []
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
        last = part == len(self.exports) - 1
        graph.output(
            next(here[n] for n in own if n.name == LOSS) if last else tuple(here[n] for n in self.exports[part])
        )
        return fx.GraphModule(self.root, graph), sources
