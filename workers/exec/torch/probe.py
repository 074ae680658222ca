"""Measures the operations of a model: what they hold, keep and cost, and what passes between them.

This file is run after model.py, in its namespace.
"""


def last_uses(graph):
    """For each node, the nodes whose values nobody reads after it."""
    last, ends = {}, {}
    for node in graph.nodes:
        for source in node.all_input_nodes:
            last[source] = node
    for source, node in last.items():
        ends.setdefault(node, []).append(source)
    return ends


class Walk:
    """Visits the operations in order with the values they read."""

    def __init__(self, graph, model, placeholders):
        self.graph, self.model, self.placeholders = graph, model, placeholders
        self.values = {}  # that are still to be read

    def run(self, visit):
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


def failed(model, operation, args, error):
    """Tells which operation failed on which shapes."""
    held = (
        ["%s %s" % (n, shape(p)) for n, p in operation.module.named_parameters()]
        if operation.node.op == "call_module"
        else []
    )
    message = "%s (%s) fails on %s%s: %s" % (
        operation.name,
        operation.title(),
        ", ".join(map(shape, args)) or "no arguments",
        " with %s" % ", ".join(held[:4]) if held else "",
        described(error),
    )
    inside = traceback.extract_tb(error.__traceback__)
    at = model.source.place(error) if any(users(f.filename) for f in inside) else operation.node.meta.get("at", "")
    return Refusal(
        "run", message, at or model.source.path, "make the shapes of the example inputs and of the layers agree"
    )


# What an operation keeps, and how much it computes.


def memory(tensor):
    """The address and the bytes of what holds a tensor's elements; views share it."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without one
        return id(tensor), tensor.numel() * tensor.element_size()


class Kept:
    """Counts what the forward pass keeps for the backward pass: each storage once, at the operation that keeps it
    first."""

    def __init__(self, module):
        self.seen = {memory(t)[0] for t in list(module.parameters()) + list(module.buffers())}
        self.alive = []  # so that no address is used twice
        self.bytes = 0

    def pack(self, tensor):
        address, count = memory(tensor)
        if address not in self.seen:
            self.seen.add(address)
            self.alive.append(tensor)
            self.bytes += count

    def take(self):
        taken, self.bytes = self.bytes, 0
        return taken


try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    TorchDispatchMode = None


def multiply_adds(name, args, out):
    """Multiplications with an addition of one low-level operation; 0 where it is none of the products below.

    A matrix product of m x k and k x n takes m*k*n; a convolution takes the elements of its output times those of one
    filter; a transposed one the elements of its input times those; attention the product of queries and keys and that
    of weights and values.
    """
    if name in ("mm", "bmm"):
        return math.prod(args[0].shape) * args[1].shape[-1]
    if name in ("addmm", "baddbmm"):
        return math.prod(args[1].shape) * args[2].shape[-1]
    if name in ("mv", "dot"):
        return math.prod(args[0].shape)
    if name in ("convolution", "_convolution"):
        over = args[0] if args[6] else out
        return math.prod(over.shape[:1]) * math.prod(over.shape[2:]) * math.prod(args[1].shape)
    if name.startswith("_scaled_dot_product"):
        query, key, value = args[0], args[1], args[2]
        return math.prod(query.shape[:-1]) * key.shape[-2] * (query.shape[-1] + value.shape[-1])
    return 0


if TorchDispatchMode is not None:

    class Counter(TorchDispatchMode):
        """Counts floating-point operations: two for each multiplication with an addition."""

        total = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "").split(".")[0]
            self.total += 2 * multiply_adds(name, args, out)
            return out


def count(operation, copy):
    """Runs an operation once on copies. Returns them and its floating-point operations; -1 where this torch cannot
    count them."""
    if TorchDispatchMode is not None:
        copies = copy()
        try:
            with Counter() as counter:
                operation.call(*copies)
            return copies, counter.total
        except (
            Exception
        ):  # a mode that meets an operator it does not know is no fault of the model, which ran before without it
            pass
    copies = copy()
    operation.call(*copies)
    return copies, -1


# The times.


class Clock:
    """Times calls on a device. overhead is what one gradient costs that computes nothing: a whole model pays it once,
    each operation alone would."""

    def __init__(self, device):
        self.wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
        self.overhead = 0.0
        leaf = torch.zeros(1, device=device, requires_grad=True)
        _, _, self.overhead = measure(self, 100, lambda _: leaf.view(1), [leaf])

    def time(self, call):
        """What call returns and the seconds until the device is done with it."""
        self.wait()
        start = time.perf_counter()
        value = call()
        self.wait()
        return value, time.perf_counter() - start


def measure(clock, repeats, forward, wrt, prepare=lambda: None):
    """The last value and the median seconds of forward(prepared) and of its gradient with respect to the tensors
    wrt."""
    forwards, backwards, value = [], [], None
    for i in range(WARM_UPS + repeats):
        prepared = prepare()
        value, seconds = clock.time(lambda: forward(prepared))
        forwards.append(seconds)
        outputs = [t for t in tensors(value) if t.requires_grad]
        if outputs and wrt:
            cotangents = [torch.ones_like(t) for t in outputs]
            _, seconds = clock.time(lambda: torch.autograd.grad(outputs, wrt, cotangents, allow_unused=True))
            backwards.append(seconds)
    backward = statistics.median(backwards[WARM_UPS:] or [0.0])
    return value, statistics.median(forwards[WARM_UPS:]), max(backward - clock.overhead, 0.0)


def unique(items):
    return list({id(t): t for t in items}.values())


def time_operation(clock, repeats, operation, args, kwargs):
    """The value of one operation, detached, and what it costs."""
    copy = lambda: (each(args, torch.clone), each(kwargs, torch.clone))
    copies, flops = count(operation, copy)
    # Autograd refuses to write to a leaf, so what writes to its inputs gets copies, made outside the measured time. A
    # copy that was written to has another version than its own copy, which has the first.
    originals = list(tensors((args, kwargs)))
    written = [(t, c) for t, c in zip(originals, tensors(copies)) if c._version > 0]
    prepare = copy if written else (lambda: (args, kwargs))
    wrt = unique([t for t in originals + operation.held if t.requires_grad and t.is_leaf])
    value, forward, backward = measure(clock, repeats, lambda p: operation.call(*p), wrt, prepare)
    for original, written_copy in written:
        original.data.copy_(written_copy.data)
    detached = each(value, lambda t: t.detach().requires_grad_(t.requires_grad))
    return detached, {"forward": forward, "backward": backward, "flops": flops}


# The commands.


def probe(request, _):
    """Looks into a model: its operations, what they hold, keep and cost, and what passes between them.

    With "training", its inputs are the first batch of the data, and its loss is an operation.
    """
    device = request["device"]
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Refusal(
            "device",
            "torch %s finds no CUDA device" % torch.__version__,
            hint="probe on the cpu, or install the driver and a torch with CUDA",
        )
    if request.get("threads"):
        torch.set_num_threads(request["threads"])
    if request.get("training") and request["device"] == "cpu":
        warm_up()
    source, inputs = Source(request["file"]), None
    trim()
    found = {"base": resident()}
    if request.get("training"):
        data = Data(source, request["data"], None, 0)
        (inputs, target), found["dataset"] = data.example_batch(request["batch"]), data.samples
    model = Model(source, request, inputs)
    graph, placeholders = trace(model)
    if request.get("training"):
        recipe, target = Recipe(source, {}), each(target, lambda t: t.to(model.device))

        def loss(output):
            return recipe.loss(output, target)

        add_loss(graph, loss)
    walk = Walk(graph, model, placeholders)
    keyed, within = None, contextlib.nullcontext
    if request.get("training"):  # the masks that it draws cost other times than torch's and keep other tensors
        keyed = KeyedDropout(0)
        within = lambda: keyed.micro_batch(0, 0, model.batch)
    with within():
        rows = account(walk)
    edges = connect(graph, rows)
    clock = Clock(model.device)

    def visit(operation, args, kwargs):
        if keyed is not None:
            keyed.operation(operation.name)
        value, costs = time_operation(clock, request["repeats"], operation, args, kwargs)
        rows[operation.node].update(costs)
        return value

    with within():
        walk.run(visit)
    weights = [p for p in model.module.parameters() if p.requires_grad]
    with model.source.blamed("run", "the model fails", "make it run on the example inputs first"):
        _, forward, backward = measure(clock, request["repeats"], lambda _: model.run(), weights)
    used = {id(p) for row in rows.values() for p in row["parameters"]}
    unused = [readable(n) for n, p in model.module.named_parameters() if id(p) not in used]
    held = number(rows, model.module)
    return {
        **found,
        "model": model.digest(),
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
        "device": device_name(model.device),
    }


def number(rows, module):
    """Replaces the tensors in the rows by numbers. Returns the name and the size of each number's."""
    names = {id(t): n for n, t in list(module.named_buffers()) + list(module.named_parameters())}
    numbers, held = {}, []
    for row in rows.values():
        for key in ("parameters", "buffers", "constants"):
            for t in row[key]:
                if id(t) not in numbers:
                    numbers[id(t)] = len(held)
                    held.append(
                        {
                            "name": readable(
                                names.get(
                                    id(t), "what is written in place %d" % len(held) if t.numel() == 0 else "constant"
                                )
                            ),
                            "bytes": size(t),
                        }
                    )
            row[key] = sorted({numbers[id(t)] for t in row[key]})
        del row["value"]
    return held


def device_name(device):
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def account(walk):
    """Runs the operations once; the row of each says what it is, holds, keeps, computes and returns."""
    kept = Kept(walk.model.module)
    rows, overwritten = {}, []

    def row(operation, value, activation=0):
        module_buffers = {id(b) for b in operation.own_buffers}
        rows[operation.node] = {
            "id": operation.name,
            "name": readable(operation.title()),
            "kind": operation.kind(),
            "at": operation.node.meta.get("at", ""),
            "parameters": [t for t in operation.held if isinstance(t, nn.Parameter)],
            "buffers": operation.own_buffers,
            "constants": [t for t in operation.held if not isinstance(t, nn.Parameter) and id(t) not in module_buffers],
            "shape": shape(value),
            "output_bytes": size(value),
            "activation_bytes": activation,
            "forward": 0.0,
            "backward": 0.0,
            "flops": 0,
            "value": [size(v) for v in value] if isinstance(value, (tuple, list)) else size(value),
        }

    def visit(operation, args, kwargs):
        versions = {node: [t._version for t in tensors(v)] for node, v in walk.values.items()}
        try:
            with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda packed: packed):
                value = operation.call(args, kwargs)
        except Exception as error:
            raise failed(walk.model, operation, args, error) from error
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


def connect(graph, rows):
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
                wanted, sizes = [0], [sizes]
            elif node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[1], int):
                wanted = [node.args[1] % len(sizes)]
            else:
                wanted = range(len(sizes))
            edges += [{"from": source.name, "to": node.name, "output": i, "bytes": sizes[i]} for i in wanted]
    return edges


COMMANDS["probe"] = probe
