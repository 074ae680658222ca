"""The model of the user: what their function returned, and the graph of its operations.

This file is run after runner.py, in its namespace.
"""

import random

try:
    import numpy
except ImportError:  # torch does not need it
    numpy = None


# The model and its inputs.


class Model:
    """What the user's function returned, on its device, in training mode, with example inputs by name of the
    argument."""

    def __init__(self, source, request, inputs=None):
        """inputs are examples in place of those that the file gives."""
        self.source, self.device = source, torch.device(request["device"])
        name = request["function"]
        seed = request.get("seed", 0)
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed & 0xFFFFFFFF)
        with self.source.blamed(
            "function", "%s() fails" % name, "it is called without arguments and returns the model"
        ):
            made = self.source.function(name)()
        if isinstance(made, tuple) and len(made) == 2:
            made, inputs = made[0], made[1] if inputs is None else inputs
        if not isinstance(made, nn.Module):
            raise Refusal(
                "module",
                "%s() returns %s, not a torch.nn.Module" % (name, type(made).__name__),
                self.source.path,
                "return the model, or (model, example inputs)",
            )
        self.whole = self.module = made.to(self.device).train()
        self.blocks = self.find_blocks(name)
        if self.blocks is not None:
            self.module = Chain(self.blocks).to(self.device).train()
        self.binder = Binder(self.module, self.source)
        self.inputs = self.binder.bind(self.find_inputs(inputs, request), self.device)
        self.batch = next((t.shape[0] for t in tensors(self.inputs) if t.dim()), 0)

    def find_blocks(self, name):
        """The named modules of the file's blocks(), or None. They must hold the same parameters as the model."""
        function = self.source.optional("blocks")
        if function is None:
            return None
        with self.source.blamed("blocks", "blocks() fails", "it takes the model or nothing, and returns named modules"):
            made = function(self.module) if inspect.signature(function).parameters else function()
            items = (
                made.items()
                if isinstance(made, dict)
                else made.named_children()
                if isinstance(made, nn.Module)
                else made
            )
            blocks = [item if isinstance(item, tuple) else ("block%d" % i, item) for i, item in enumerate(items)]
        names = [n for n, _ in blocks]
        wrong = [n for n, m in blocks if not isinstance(n, str) or not n or "." in n or not isinstance(m, nn.Module)]
        if wrong or not blocks or len(set(names)) < len(names):
            raise Refusal(
                "blocks",
                "blocks() returns %s" % (names if blocks else "nothing"),
                self.source.path,
                "return a list of (name, torch.nn.Module) with different names without dots",
            )
        own, theirs = weight(self.module), weight(nn.ModuleList(m for _, m in blocks))
        if own != theirs:
            raise Refusal(
                "blocks",
                "blocks() holds %d bytes of parameters, and the model of %s() holds %d" % (theirs, name, own),
                self.source.path,
                "return modules that together are the whole model",
            )
        return blocks

    def find_inputs(self, inputs, request):
        if inputs is not None:
            return inputs
        batch, function = request["batch"], self.source.optional("example_inputs")
        if function is not None:
            with self.source.blamed(
                "inputs",
                "example_inputs(%d) fails" % batch,
                "it takes the batch size and returns the inputs of the model",
            ):
                return function(batch)
        if request.get("shape") is not None:
            return self.random((batch, *request["shape"]), request.get("dtype") or "float32")
        if request.get("dtype"):
            raise Refusal("inputs", "a type of elements was given and no shape", self.source.path, "give both")
        first = next((m for m in self.module.modules() if not list(m.children())), None)
        if isinstance(first, nn.Linear) and len(positional(self.module)) == 1:
            return self.random((batch, first.in_features), "float32")
        raise Refusal(
            "inputs",
            "the shapes of the model's inputs are not known",
            self.source.path,
            "define example_inputs(batch) in the file, return (model, inputs) from the function, or give a shape",
        )

    def random(self, shape, dtype):
        kind = getattr(torch, dtype, None)
        if not isinstance(kind, torch.dtype):
            raise Refusal(
                "inputs", "torch has no type %s" % dtype, hint="give float32, int64 or another of torch's types"
            )
        if kind.is_floating_point:
            return torch.randn(shape).to(kind)
        most = min([m.num_embeddings for m in self.module.modules() if isinstance(m, nn.Embedding)] or [2])
        return torch.randint(0, most, shape).to(kind)

    def names(self):
        """The names of parameters and buffers by identity, in the order of the model's: the first where a tensor has
        several."""
        names = {}
        for module in (self.whole, self.module):
            for name, tensor in list(module.named_parameters()) + list(module.named_buffers()):
                names.setdefault(id(tensor), readable(name))
        return names

    def held(self):
        """Parameters, then buffers, by name; each once."""
        names, found = self.names(), {}
        for tensor in (
            list(self.module.parameters())
            + list(self.module.buffers())
            + list(self.whole.parameters())
            + list(self.whole.buffers())
        ):
            found.setdefault(names[id(tensor)], tensor)
        return found

    def digest(self):
        """The same for models whose parameters and buffers have the same names, shapes and types."""
        lines = sorted("%s %s %s" % (name, shape(tensor), tensor.dtype) for name, tensor in self.held().items())
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def run(self):
        if isinstance(self.module, Chain):
            return self.module(*self.inputs["inputs"])
        return self.module(**self.inputs)


class Binder:
    """Gives inputs the names of a model's arguments. It holds no model."""

    def __init__(self, module, source):
        self.signature, self.chain, self.source = inspect.signature(module.forward), isinstance(module, Chain), source

    def bind(self, inputs, device):
        """The inputs by name of the argument: a tensor, arguments in order or arguments by name."""
        signature = self.signature
        inputs = each(inputs, lambda t: t.detach().to(device))
        try:
            if isinstance(inputs, dict):
                bound = signature.bind(**inputs)
            elif isinstance(inputs, (tuple, list)):
                bound = signature.bind(*inputs)
            else:
                bound = signature.bind(inputs)
        except TypeError as error:
            raise Refusal(
                "inputs",
                "the example inputs do not fit forward%s: %s" % (signature, error),
                self.source.path,
                "give a tensor, a tuple of the arguments in order, or a dict of them by name",
            )
        for name, value in list(bound.arguments.items()):
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                raise Refusal(
                    "inputs",
                    "the inputs %s have no names in forward%s" % (sorted(value), signature),
                    self.source.path,
                    "name the arguments of forward",
                )
            if kind is inspect.Parameter.VAR_POSITIONAL and not self.chain:
                raise Refusal(
                    "inputs",
                    "forward%s does not say how many inputs there are" % signature,
                    self.source.path,
                    "name the arguments of forward",
                )
        if not any(True for _ in tensors(bound.arguments)):
            raise Refusal(
                "inputs", "the example inputs hold no tensor", self.source.path, "return the inputs of the model"
            )
        return dict(bound.arguments)

    def placeholders(self, bound):
        """What bind returned, by the names that the graph has for it."""
        return {"input%d" % i: v for i, v in enumerate(bound["inputs"])} if self.chain else bound


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


def readable(name):
    """A name without what Chain and Block add."""
    return name.replace("block ", "", 1).replace(".module.", ".", 1) if name.startswith("block ") else name


def shape(value):
    if isinstance(value, torch.Tensor):
        return "(%s)" % ", ".join(map(str, value.shape))
    if isinstance(value, (tuple, list)):
        return "[%s]" % ", ".join(map(shape, value))
    return repr(value)[:40]


def weight(module):
    return sum(p.numel() * p.element_size() for p in module.parameters())


# The trace.


class Tracer(fx.Tracer):
    """Enters the user's modules and notes the user's line of each operation. Modules of torch.nn stay whole, but for
    containers.

    What is no tensor and holds none is fixed, as are defaults of arguments that are not given.
    """

    def __init__(self, inputs):
        super().__init__()
        self.inputs = inputs

    def create_args_for_root(self, forward, is_module, concrete_args=None):
        def call():
            given = {
                n: self.create_proxy("placeholder", n, (), {}) if any(True for _ in tensors(v)) else v
                for n, v in self.inputs.items()
            }
            encoded = encode(self.root, (), given)
            return forward(self.root, **given) if encoded is None else encoded

        return call, []

    def create_node(self, *args, **kwargs):
        node = super().create_node(*args, **kwargs)
        node.meta["at"] = caller()
        return node

    def iter(self, value):
        """Lets `a, b = value` through: the instruction tells how many there are. Torch 1.13 does not find it in Python
        3.11, whose instructions have gaps."""
        frame = sys._getframe(2)  # of the user, who called Proxy.__iter__
        for instruction in dis.get_instructions(frame.f_code):
            if instruction.offset == frame.f_lasti and instruction.opname == "UNPACK_SEQUENCE":
                return (value[i] for i in range(instruction.argval))
        return super().iter(value)

    def call_module(self, module, forward, args, kwargs):
        encoded = encode(module, args, kwargs)
        return super().call_module(module, forward, args, kwargs) if encoded is None else encoded


def encode(module, args, kwargs):
    """The layers of PyTorch's encoder in turn; None for every other module.

    Its forward looks at its input to choose a faster way for inference, which cannot be traced. In training it is this
    loop.
    """
    if type(module) is not nn.TransformerEncoder:
        return None
    try:
        given = (
            inspect.signature(lambda src, mask=None, src_key_padding_mask=None: None).bind(*args, **kwargs).arguments
        )
    except TypeError:
        return None
    value, masks = (
        given.pop("src"),
        {"src_mask": given.get("mask"), "src_key_padding_mask": given.get("src_key_padding_mask")},
    )
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
    placeholders = model.binder.placeholders(model.inputs)
    if isinstance(model.module, Chain):
        return model.module.graph(len(placeholders)), placeholders
    try:
        graph = Tracer(model.inputs).trace(model.module)
    except Exception as error:
        at = model.source.place(error)
        name, _, line = at.rpartition(":")
        text = linecache.getline(name, int(line)).strip() if line.isdigit() else ""
        message = "the model cannot be traced%s: %s" % (" at `%s`" % text if text else "", described(error))
        raise Refusal(
            "untraceable",
            message,
            at,
            "write that line so that torch.fx can follow it (it may not depend on the values of tensors), "
            "or define blocks(model) in the file, which returns a list of "
            "(name, module) that run in turn: each is then one operation",
        )
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)
    return graph, placeholders


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

    def all_held(self):
        return self.held + self.own_buffers

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
