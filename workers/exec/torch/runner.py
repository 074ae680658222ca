"""Runs PyTorch for Spillway: one process for one model.

It reads one request a line on a pipe, {"command": name, ...}, and answers each with one line on another, {"result": ...} or {"error": ...}.
Standard output and error belong to the model. It runs on Python 3.8 or later with torch 1.13 or later.
"""

import importlib.util
import inspect
import json
import linecache
import math
import operator
import os
import statistics
import sys
import sysconfig
import time
import traceback

TRACE_LINES = 16  # of a traceback are worth reading in an error
WARM_UPS = 2  # runs before the measured ones: the first allocates, the second finds the caches as the others do


class Refusal(Exception):
    """Something that the author of the model can change: what is wrong, at which file and line, and what to do."""

    def __init__(self, kind, message, at="", hint="", trace=""):
        super().__init__(message)
        self.fields = {"kind": kind, "message": message, "at": at, "hint": hint, "trace": trace}


try:
    import torch
    from torch import fx, nn
except ImportError as missing:
    raise Refusal(
        "no_torch",
        "%s cannot import torch: %s" % (sys.executable, missing),
        hint="install PyTorch 1.13 or later (Debian and Ubuntu: apt-get install python3-torch libopenblas0, whose matrix products are "
        "many times faster than those of Debian's default; elsewhere: pip install torch), "
        "or name a Python that has it",
    )

if tuple(int("".join(filter(str.isdigit, n)) or 0) for n in torch.__version__.split(".")[:2]) < (1, 13):
    raise Refusal("no_torch", "%s has torch %s" % (sys.executable, torch.__version__), hint="install PyTorch 1.13 or later")

TORCH_DIRECTORY = os.path.dirname(torch.__file__) + os.sep
LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


# The user's file.


class Source:
    """The user's file, imported, and the places in it that errors point to."""

    def __init__(self, path):
        self.path = os.path.abspath(path)
        sys.path.insert(0, os.path.dirname(self.path))
        sys.argv = [self.path]
        name = "spillway_" + os.path.splitext(os.path.basename(path))[0]  # no other module has it
        spec = importlib.util.spec_from_file_location(name, self.path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[name] = self.module  # so that classes of the file can be pickled
        with self.blamed("import", "it does not import", "make `python3 %s` work first" % os.path.basename(path)):
            spec.loader.exec_module(self.module)

    def function(self, name):
        found = getattr(self.module, name, None)
        if callable(found):
            return found
        own = [n for n, v in vars(self.module).items() if callable(v) and getattr(v, "__module__", "") == self.module.__name__]
        raise Refusal("function", "there is no function %s" % name, self.path,
                      "name one of those that are there: %s" % ", ".join(own) if own else "define it: it returns the model")

    def optional(self, name):
        found = getattr(self.module, name, None)
        return found if callable(found) else None

    def blamed(self, kind, what, hint):
        return Blamed(self, kind, what, hint)

    def place(self, error):
        """The last place of the user's in the way of an error: file:line, or the file alone."""
        if isinstance(error, SyntaxError) and error.filename:
            return "%s:%s" % (error.filename, error.lineno)
        frames = [f for f in traceback.extract_tb(error.__traceback__) if users(f.filename)]
        within = [f for f in frames if os.path.abspath(f.filename) == self.path] or frames
        return "%s:%d" % (within[-1].filename, within[-1].lineno) if within else self.path


class Blamed:
    """Turns what the user's code raises into a Refusal."""

    def __init__(self, source, kind, what, hint):
        self.source, self.kind, self.what, self.hint = source, kind, what, hint

    def __enter__(self):
        return self

    def __exit__(self, _, error, __):
        if error is None or isinstance(error, (Refusal, KeyboardInterrupt, GeneratorExit)):
            return False
        message = "%s: %s" % (self.what, described(error))
        raise Refusal(self.kind, message, self.source.place(error), self.hint, traced(error)) from error


def users(filename):
    """Whether a frame of this file belongs to the user's code."""
    library = filename.startswith(LIBRARY) and "-packages" not in filename
    return not (library or filename == "runner.py" or filename.startswith((TORCH_DIRECTORY, "<")))


def described(error):
    return "%s: %s" % (type(error).__name__, error) if str(error) else type(error).__name__


def traced(error):
    """The end of the traceback, without this file's frames."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != "runner.py" and not f.filename.startswith("<")]
    lines = "".join(traceback.format_list(frames) + traceback.format_exception_only(type(error), error)).splitlines()
    return "\n".join(lines[-TRACE_LINES:])


# The model and its inputs.


class Model:
    """What the user's function returned, on its device, in training mode, with example inputs by name of the argument."""

    def __init__(self, request):
        self.source = Source(request["file"])
        self.device = torch.device(request["device"])
        name = request["function"]
        torch.manual_seed(0)
        with self.source.blamed("function", "%s() fails" % name, "it is called without arguments and returns the model"):
            made = self.source.function(name)()
        inputs = None
        if isinstance(made, tuple) and len(made) == 2:
            made, inputs = made
        if not isinstance(made, nn.Module):
            raise Refusal("module", "%s() returns %s, not a torch.nn.Module" % (name, type(made).__name__), self.source.path,
                          "return the model, or (model, example inputs)")
        self.module = made.to(self.device).train()
        self.blocks = self.find_blocks(name)
        if self.blocks is not None:
            self.module = Chain(self.blocks).to(self.device).train()
        self.inputs = self.bind(self.find_inputs(inputs, request))
        self.batch = next((t.shape[0] for t in tensors(self.inputs) if t.dim()), 0)

    def find_blocks(self, name):
        """The named modules of the file's blocks(), or None. They must hold the same parameters as the model."""
        function = self.source.optional("blocks")
        if function is None:
            return None
        with self.source.blamed("blocks", "blocks() fails", "it takes the model or nothing, and returns named modules"):
            made = function(self.module) if inspect.signature(function).parameters else function()
            items = made.items() if isinstance(made, dict) else made.named_children() if isinstance(made, nn.Module) else made
            blocks = [item if isinstance(item, tuple) else ("block%d" % i, item) for i, item in enumerate(items)]
        names = [n for n, _ in blocks]
        wrong = [n for n, m in blocks if not isinstance(n, str) or not n or "." in n or not isinstance(m, nn.Module)]
        if wrong or not blocks or len(set(names)) < len(names):
            raise Refusal("blocks", "blocks() returns %s" % (names if blocks else "nothing"), self.source.path,
                          "return a list of (name, torch.nn.Module) with different names without dots")
        own, theirs = weight(self.module), weight(nn.ModuleList(m for _, m in blocks))
        if own != theirs:
            raise Refusal("blocks", "blocks() holds %d bytes of parameters, and the model of %s() holds %d" % (theirs, name, own),
                          self.source.path, "return modules that together are the whole model")
        return blocks

    def find_inputs(self, inputs, request):
        if inputs is not None:
            return inputs
        batch, function = request["batch"], self.source.optional("example_inputs")
        if function is not None:
            with self.source.blamed("inputs", "example_inputs(%d) fails" % batch, "it takes the batch size and returns the inputs of the model"):
                return function(batch)
        if request.get("shape") is not None:
            return self.random((batch, *request["shape"]), request.get("dtype") or "float32")
        if request.get("dtype"):
            raise Refusal("inputs", "a type of elements was given and no shape", self.source.path, "give both")
        first = next((m for m in self.module.modules() if not list(m.children())), None)
        if isinstance(first, nn.Linear) and len(positional(self.module)) == 1:
            return self.random((batch, first.in_features), "float32")
        raise Refusal("inputs", "the shapes of the model's inputs are not known", self.source.path,
                      "define example_inputs(batch) in the file, return (model, inputs) from the function, or give a shape")

    def random(self, shape, dtype):
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise Refusal("inputs", "torch has no type %s" % dtype, hint="give float32, int64 or another of torch's types")
        if kind.is_floating_point:
            return torch.randn(shape).to(kind)
        most = min([m.num_embeddings for m in self.module.modules() if isinstance(m, nn.Embedding)] or [2])
        return torch.randint(0, most, shape).to(kind)

    def bind(self, inputs):
        """Gives each input the name of its argument."""
        inputs = each(inputs, lambda t: t.detach().to(self.device))
        signature = inspect.signature(self.module.forward)
        try:
            if isinstance(inputs, dict):
                bound = signature.bind(**inputs)
            elif isinstance(inputs, (tuple, list)):
                bound = signature.bind(*inputs)
            else:
                bound = signature.bind(inputs)
        except TypeError as error:
            raise Refusal("inputs", "the example inputs do not fit forward%s: %s" % (signature, error), self.source.path,
                          "give a tensor, a tuple of the arguments in order, or a dict of them by name")
        for name, value in list(bound.arguments.items()):
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                raise Refusal("inputs", "the inputs %s have no names in forward%s" % (sorted(value), signature), self.source.path,
                              "name the arguments of forward")
            if kind is inspect.Parameter.VAR_POSITIONAL and not isinstance(self.module, Chain):
                raise Refusal("inputs", "forward%s does not say how many inputs there are" % signature, self.source.path,
                              "name the arguments of forward")
        if not any(True for _ in tensors(bound.arguments)):
            raise Refusal("inputs", "the example inputs hold no tensor", self.source.path, "return the inputs of the model")
        return dict(bound.arguments)

    def run(self):
        if isinstance(self.module, Chain):
            return self.module(*self.inputs["inputs"])
        return self.module(**self.inputs)


class Chain(nn.Module):
    """The user's blocks in turn; a tuple that one returns is the arguments of the next."""

    def __init__(self, blocks):
        super().__init__()
        self.names = [name for name, _ in blocks]
        for name, module in blocks:
            self.add_module("block " + name, Block(module))

    def forward(self, *inputs):
        value = inputs
        for block in self.children():
            value = block(value)
        return value

    def graph(self, count):
        graph = fx.Graph()
        value = tuple(graph.placeholder("input%d" % i) for i in range(count))
        for name in self.names:
            value = graph.create_node("call_module", "block " + name, (value,), name=name)
        graph.output(value)
        return graph


class Block(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, value):
        return self.module(*value) if isinstance(value, tuple) else self.module(value)


def positional(module):
    return [p for p in inspect.signature(module.forward).parameters.values() if p.default is p.empty]


def weight(module):
    return sum(p.numel() * p.element_size() for p in module.parameters())


def each(value, change):
    """value with every tensor in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: each(v, change) for k, v in value.items()} if type(value) is dict else value
    if isinstance(value, (tuple, list)):
        items = [each(v, change) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, slice):
        return slice(*(each(v, change) for v in (value.start, value.stop, value.step)))
    return value


def tensors(value):
    """All tensors in value, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for v in value.values():
            yield from tensors(v)
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from tensors(v)


def size(value):
    """Bytes that travel when value does. Whatever is no tensor travels as one number each."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, (tuple, list)):
        return sum(map(size, value))
    if isinstance(value, dict):
        return sum(map(size, value.values()))
    return 8 if isinstance(value, (int, float)) else 0


# The trace.


class Tracer(fx.Tracer):
    """Enters the user's modules and notes the user's line of each operation. Modules of torch.nn stay whole, but for containers.

    What is no tensor and holds none is fixed, as are defaults of arguments that are not given.
    """

    def __init__(self, inputs):
        super().__init__()
        self.inputs = inputs

    def create_args_for_root(self, forward, is_module, concrete_args=None):
        def call():
            given = {n: self.create_proxy("placeholder", n, (), {}) if any(True for _ in tensors(v)) else v for n, v in self.inputs.items()}
            encoded = encode(self.root, (), given)
            return forward(self.root, **given) if encoded is None else encoded

        return call, []

    def create_node(self, *args, **kwargs):
        node = super().create_node(*args, **kwargs)
        node.meta["at"] = caller()
        return node

    def call_module(self, module, forward, args, kwargs):
        encoded = encode(module, args, kwargs)
        return super().call_module(module, forward, args, kwargs) if encoded is None else encoded


def encode(module, args, kwargs):
    """The layers of PyTorch's encoder in turn; None for every other module.

    Its forward looks at its input to choose a faster way for inference, which cannot be traced. In training it is this loop.
    """
    if type(module) is not nn.TransformerEncoder:
        return None
    try:
        given = inspect.signature(lambda src, mask=None, src_key_padding_mask=None: None).bind(*args, **kwargs).arguments
    except TypeError:
        return None
    value, masks = given.pop("src"), {"src_mask": given.get("mask"), "src_key_padding_mask": given.get("src_key_padding_mask")}
    for layer in module.layers:
        value = layer(value, **{k: v for k, v in masks.items() if v is not None})
    return value if module.norm is None else module.norm(value)


def caller():
    """The user's place that is being run, or nothing."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_code.co_filename
        if users(name):
            return "%s:%d" % (name, frame.f_lineno)
        frame = frame.f_back
    return ""


def trace(model):
    """The graph of operations and the values of its placeholders by name."""
    if isinstance(model.module, Chain):
        values = model.inputs["inputs"]
        return model.module.graph(len(values)), {"input%d" % i: v for i, v in enumerate(values)}
    try:
        graph = Tracer(model.inputs).trace(model.module)
    except Exception as error:
        at = model.source.place(error)
        name, _, line = at.rpartition(":")
        text = linecache.getline(name, int(line)).strip() if line.isdigit() else ""
        message = "the model cannot be traced%s: %s" % (" at `%s`" % text if text else "", described(error))
        raise Refusal("untraceable", message, at,
                      "write that line so that torch.fx can follow it (it may not depend on the values of tensors), or define blocks(model) in the file, which returns a list of "
                      "(name, module) that run in turn: each is then one operation")
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)
    return graph, model.inputs


def attribute(module, path):
    for name in path.split("."):
        module = getattr(module, name)
    return module


# The operations.


class Operation:
    """One node of the graph and what it computes with."""

    def __init__(self, node, root):
        self.node, self.root, self.name = node, root, node.name
        self.held = []  # parameters and buffers that it reads
        self.own_buffers = []  # those of its module, which it may write
        if node.op == "call_module":
            self.module = attribute(root, node.target)
            self.held = list(self.module.parameters())
            self.own_buffers = list(self.module.buffers())
        for source in node.all_input_nodes:
            if source.op == "get_attr":
                value = attribute(root, source.target)
                self.held += [v for v in (value.parameters() if isinstance(value, nn.Module) else tensors(value))]

    def kind(self):
        node = self.node
        if node.op == "call_module":
            module = self.module.module if isinstance(self.module, Block) else self.module
            return type(module).__name__
        if node.op == "placeholder":
            return node.op
        return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))

    def title(self):
        if self.node.op == "call_module":
            return "%s %s" % (self.node.target, self.kind())
        return "input" if self.node.op == "placeholder" else self.kind()

    def arguments(self, values):
        """args and kwargs from the values of earlier nodes."""
        look = lambda n: values[n]
        return fx.node.map_arg(self.node.args, look), fx.node.map_arg(self.node.kwargs, look)

    def call(self, args, kwargs):
        if self.node.op == "call_module":
            return self.module(*args, **kwargs)
        if self.node.op == "call_method":
            return getattr(args[0], self.node.target)(*args[1:], **kwargs)
        return self.node.target(*args, **kwargs)


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

    def run(self, visit):
        """visit(operation, args, kwargs) returns the value of an operation; it is not called for inputs and attributes."""
        values, ends = {}, last_uses(self.graph)
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


def shape(value):
    if isinstance(value, torch.Tensor):
        return "(%s)" % ", ".join(map(str, value.shape))
    if isinstance(value, (tuple, list)):
        return "[%s]" % ", ".join(map(shape, value))
    return repr(value)[:40]


def failed(model, operation, args, error):
    """Tells which operation failed on which shapes."""
    held = ["%s %s" % (n, shape(p)) for n, p in operation.module.named_parameters()] if operation.node.op == "call_module" else []
    message = "%s (%s) fails on %s%s: %s" % (
        operation.name, operation.title(), ", ".join(map(shape, args)) or "no arguments",
        " with %s" % ", ".join(held[:4]) if held else "", described(error))
    inside = traceback.extract_tb(error.__traceback__)
    at = model.source.place(error) if any(users(f.filename) for f in inside) else operation.node.meta.get("at", "")
    return Refusal("run", message, at or model.source.path, "make the shapes of the example inputs and of the layers agree")


# What an operation keeps, and how much it computes.


def memory(tensor):
    """The address and the bytes of what holds a tensor's elements; views share it."""
    try:
        storage = tensor.untyped_storage() if hasattr(tensor, "untyped_storage") else tensor.storage()
        return storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError):  # sparse and other tensors without one
        return id(tensor), tensor.numel() * tensor.element_size()


class Kept:
    """Counts what the forward pass keeps for the backward pass: each storage once, at the operation that keeps it first."""

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

    A matrix product of m x k and k x n takes m*k*n; a convolution takes the elements of its output times those of one filter; a transposed
    one the elements of its input times those; attention the product of queries and keys and that of weights and values.
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
    """Runs an operation once on copies. Returns them and its floating-point operations; -1 where this torch cannot count them."""
    if TorchDispatchMode is not None:
        copies = copy()
        try:
            with Counter() as counter:
                operation.call(*copies)
            return copies, counter.total
        except Exception:  # a mode that meets an operator it does not know is no fault of the model, which ran before without it
            pass
    copies = copy()
    operation.call(*copies)
    return copies, -1


# The times.


class Clock:
    """Times calls on a device. overhead is what one gradient costs that computes nothing: a whole model pays it once, each operation alone would."""

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
    """The last value and the median seconds of forward(prepared) and of its gradient with respect to the tensors wrt."""
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
    # Autograd refuses to write to a leaf, so what writes to its inputs gets copies, made outside the measured time. A copy that was written
    # to has another version than its own copy, which has the first.
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


def probe(request):
    """Looks into a model: its operations, what they hold, keep and cost, and what passes between them."""
    device = request["device"]
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise Refusal("device", "torch %s finds no CUDA device" % torch.__version__, hint="probe on the cpu, or install the driver and a torch with CUDA")
    if request.get("threads"):
        torch.set_num_threads(request["threads"])
    model = Model(request)
    graph, placeholders = trace(model)
    walk = Walk(graph, model, placeholders)
    rows = account(walk)
    edges = connect(graph, rows)
    clock = Clock(model.device)

    def visit(operation, args, kwargs):
        value, costs = time_operation(clock, request["repeats"], operation, args, kwargs)
        rows[operation.node].update(costs)
        return value

    walk.run(visit)
    weights = [p for p in model.module.parameters() if p.requires_grad]
    with model.source.blamed("run", "the model fails", "make it run on the example inputs first"):
        _, forward, backward = measure(clock, request["repeats"], lambda _: model.run(), weights)
    used = {id(p) for row in rows.values() for p in row["parameters"]}
    unused = [readable(n) for n, p in model.module.named_parameters() if id(p) not in used]
    held = number(rows, model.module)
    return {
        "ops": list(rows.values()), "edges": edges, "held": held, "batch": model.batch,
        "parameter_bytes": weight(model.module), "buffer_bytes": sum(map(size, model.module.buffers())),
        "unused": unused,
        "forward": forward, "backward": backward, "blocks": model.blocks is not None,
        "python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda or "",
        "threads": torch.get_num_threads(), "device": device_name(model.device),
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
                    held.append({"name": readable(names.get(id(t), "constant")), "bytes": size(t)})
            row[key] = sorted({numbers[id(t)] for t in row[key]})
        del row["value"]
    return held


def readable(name):
    """A name without what Chain and Block add."""
    return name.replace("block ", "", 1).replace(".module.", ".", 1) if name.startswith("block ") else name


def device_name(device):
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def account(walk):
    """Runs the operations once; the row of each says what it is, holds, keeps, computes and returns."""
    kept = Kept(walk.model.module)
    rows = {}

    def row(operation, value, activation=0):
        module_buffers = {id(b) for b in operation.own_buffers}
        rows[operation.node] = {
            "id": operation.name, "name": readable(operation.title()), "kind": operation.kind(), "at": operation.node.meta.get("at", ""),
            "parameters": [t for t in operation.held if isinstance(t, nn.Parameter)], "buffers": operation.own_buffers,
            "constants": [t for t in operation.held if not isinstance(t, nn.Parameter) and id(t) not in module_buffers],
            "shape": shape(value), "output_bytes": size(value), "activation_bytes": activation,
            "forward": 0.0, "backward": 0.0, "flops": 0, "value": [size(v) for v in value] if isinstance(value, (tuple, list)) else size(value),
        }

    def visit(operation, args, kwargs):
        try:
            with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda packed: packed):
                value = operation.call(args, kwargs)
        except Exception as error:
            raise failed(walk.model, operation, args, error) from error
        row(operation, value, kept.take())
        return value

    for node in walk.graph.nodes:
        if node.op == "placeholder":
            row(Operation(node, walk.model.module), walk.placeholders[node.target])
    walk.run(visit)
    return rows


def connect(graph, rows):
    """The edges. Items of a tuple are outputs of their own: who takes one by its index needs no other."""
    edges = []
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


COMMANDS = {"probe": probe}


def serve(requests, answers):
    """Says that it is ready, then answers requests until there are no more."""

    def answer_with(answer):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    answer_with({"result": {"torch": torch.__version__}})  # ready
    for line in requests:
        request = json.loads(line)
        try:
            answer = {"result": COMMANDS[request["command"]](request)}
        except Refusal as refusal:
            answer = {"error": refusal.fields}
        except Exception as error:
            answer = {"error": {"kind": "runner", "message": described(error), "at": "", "hint": "", "trace": traceback.format_exc()}}
        answer_with(answer)
