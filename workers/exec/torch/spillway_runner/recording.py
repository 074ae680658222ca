"""The graph of a model that symbolic tracing cannot follow: what its forward pass calls is noted while it runs.

Modules that are repeated, such as the layers of a transformer, and those of torch.nn are one operation each. What is
called between them is noted function by function, with the sizes of the example: so the graph belongs to inputs of
these shapes. A module in which something cannot be noted, such as a choice that depends on the values of tensors, is
one operation, too; where that is the model itself, it is refused.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import linecache
import operator
import random
import weakref
from typing import Any, Callable, Iterator

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from spillway_runner.arrays import numpy
from spillway_runner.model import Model
from spillway_runner.refusal import Refusal
from spillway_runner.source import described
from spillway_runner.values import tensors

READS = frozenset(
    "__bool__ __complex__ __contains__ __float__ __index__ __int__ allclose argwhere equal is_nonzero item "
    "masked_select nonzero numpy tolist unique unique_consecutive".split()
)  # functions whose result is, or has the shape of, the values of a tensor
SIZES = frozenset("__len__ nelement numel shape size".split())  # functions and properties that tell how large one is
CHOOSING = ("__getitem__", "index.Tensor")  # the second is what torch 1.13 tells of x[mask]
PLAIN = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)  # what a graph says as it is
DEPTH = 4  # how far objects are looked into for tensors
MARK = "spillway_recorded"  # an attribute of graphs that were made here


class Unfollowed(Exception):
    """Something that cannot be noted, within a module and at a place."""

    def __init__(self, why: str, module: nn.Module, at: str) -> None:
        super().__init__(why)
        self.module, self.at = module, at


def recorded(graph: fx.Graph) -> bool:
    """Whether the graph belongs to inputs of certain shapes, and to the device that it was made on."""
    return hasattr(graph, MARK)


def rebuilt(kind: Any, fields: dict[str, Any]) -> Any:
    """An object of its parts, as one operation: what models return beside tensors and plain containers."""
    return kind(**fields)


def apply_function(kind: Any, *args: Any) -> Any:
    return kind.apply(*args)


def record(model: Model, placed: Callable[[], str]) -> fx.Graph:
    """The graph of one forward pass of the model on its inputs. placed() is the user's place that is being run."""
    whole: set[nn.Module] = repeated(model.module)
    for module in model.module.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "use_cache", False):  # of the transformers library: keys and values are kept for generation
            config.use_cache = False
    while True:
        recorder = Recorder(model, whole, placed)
        try:
            return recorder.run()
        except Unfollowed as found:
            if found.module is model.module or found.module in whole:
                name, _, line = found.at.rpartition(":")
                text = linecache.getline(name, int(line)).strip() if line.isdigit() else ""
                raise Refusal(
                    "untraceable",
                    f"the model cannot be traced{f' at `{text}`' if text else ''}: {found}",
                    found.at or model.source.path,
                    "put that line into a torch.nn.Module of its own, which is then one operation, or define "
                    "blocks(model) in the file, which returns a list of (name, module) that run in turn",
                ) from found
            whole.add(found.module)


def repeated(root: nn.Module) -> set[nn.Module]:
    """The outermost modules that are several of one class in a list, but for those of torch.nn, which are one operation
    anyhow."""
    found: set[nn.Module] = set()
    inside: set[nn.Module] = set()
    for module in root.modules():  # from the outside to the inside
        if module in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        kinds = [type(child) for child in module]
        for child in module:
            if kinds.count(type(child)) > 1 and not library(child) and list(child.children()):
                found.add(child)
                inside.update(child.modules())
    return found


def library(module: nn.Module) -> bool:
    """Whether a module is one of PyTorch's that is no container."""
    containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.TransformerEncoder)
    return type(module).__module__.startswith("torch.") and type(module) not in containers


class Recorder(TorchFunctionMode):
    """Notes what a forward pass calls. It is used once."""

    def __init__(self, model: Model, whole: set[nn.Module], placed: Callable[[], str]) -> None:
        super().__init__()
        self.model, self.root, self.whole, self.placed = model, model.module, whole, placed
        self.graph = fx.Graph()
        setattr(self.graph, MARK, True)
        self.nodes: dict[int, tuple[torch.Tensor, fx.Node]] = {}  # by identity of the tensor, which is kept
        self.seen = Seen()
        self.paths: dict[int, str] = {}  # of what the model holds, by identity
        for name, held in (*self.root.named_parameters(), *self.root.named_buffers()):
            self.paths.setdefault(id(held), name)
        self.names = {id(m): n for n, m in self.root.named_modules()}
        self.attributes: dict[str, fx.Node] = {}  # by path
        self.unsized: set[int] = set()  # identities of tensors whose sizes depend on the values of others
        self.drawn: Any = None  # the state of the generators that are not torch's, where nothing was drawn
        self.stack: list[nn.Module] = []  # modules that are being followed
        self.inside = 0  # an operation

    def run(self) -> fx.Graph:
        inputs = self.model.inputs
        for name, value in inputs.items():
            if any(True for _ in tensors(value)):
                self.name(value, self.graph.placeholder(name))
        self.drawn = generators()
        # Modules that keep out of autocast do so where it is on.
        cast = torch.autocast("cpu", dtype=torch.bfloat16) if self.model.half else contextlib.nullcontext()
        with kept(self.root), torch.enable_grad(), cast, self.patched(), self.seen, self:
            value = self.root(**inputs)
            self.graph.output(self.argument(value))
        for node in reversed(list(self.graph.nodes)):
            unread = node.op in ("placeholder", "get_attr") or getattr(node, "spillway_item", False)
            if unread and not node.users:
                self.graph.erase_node(node)
        return self.graph

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Modules and functions of torch.autograd call this; libraries take it for a tracer, which values of tensors
        are hidden from."""
        modules, tracing = nn.Module.__call__, torch.jit.is_tracing
        functions = inspect.getattr_static(torch.autograd.Function, "apply")
        inherited = "apply" not in vars(torch.autograd.Function)

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.called(modules, module, args, kwargs)

        def apply(kind: Any, *args: Any) -> Any:
            original = functions.__get__(None, kind)
            if self.inside:
                return original(*args)
            return self.operation(apply_function, (kind, *args), {}, lambda: original(*args))

        enter = torch.autocast.__enter__

        def entered(cast: Any) -> Any:
            if not self.inside:
                raise self.unfollowed("it chooses the precision of products, which a graph does not tell")
            return enter(cast)

        try:
            torch.autocast.__enter__ = entered
            nn.Module.__call__ = call
            torch.autograd.Function.apply = classmethod(apply)
            torch.jit.is_tracing = lambda: True
            yield
        finally:
            nn.Module.__call__ = modules
            if inherited:
                del torch.autograd.Function.apply
            else:
                torch.autograd.Function.apply = functions
            torch.jit.is_tracing = tracing
            torch.autocast.__enter__ = enter

    def called(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        name = self.names.get(id(module))
        if self.inside:
            return original(module, *args, **kwargs)
        if name and (library(module) or module in self.whole):
            return self.operation(name, args, kwargs, lambda: original(module, *args, **kwargs))
        self.stack.append(module)
        try:
            value = original(module, *args, **kwargs)
            self.check_generators()
            return value
        except (Unfollowed, Refusal):
            raise
        except Exception as error:
            raise self.unfollowed(described(error), error) from error
        finally:
            self.stack.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if self.inside:
            return func(*args, **given)
        title = getattr(func, "__name__", "")
        if title == "_set_grad_enabled":
            return func(*args, **given)
        if title in READS and any(id(t) in self.nodes for t in tensors((args, given))):
            raise self.unfollowed(f"{title} looks at the values of a tensor, which differ from batch to batch")
        asked = func.__self__.__name__ if title == "__get__" else title
        if asked in SIZES and any(id(t) in self.unsized for t in tensors((args, given))):
            raise self.unfollowed(f"{asked} of a tensor that was chosen by values, which differs from batch to batch")
        return self.operation(func, args, given, lambda: func(*args, **given))

    def operation(self, target: Any, args: Any, kwargs: Any, call: Callable[[], Any]) -> Any:
        """Runs one operation and notes it, unless it makes no tensor and writes none."""
        self.check_generators()
        if not torch.is_grad_enabled():
            raise self.unfollowed("gradients are switched off there, which a graph does not tell")
        self.inside += 1
        try:
            with torch.no_grad():  # what the operations keep is not wanted
                value = call()
        except Exception as error:
            raise self.unfollowed(described(error), error) from error
        finally:
            self.inside -= 1
            self.drawn = generators()
        writes = getattr(target, "__name__", "") == "__setitem__"
        if not writes and not any(True for _ in tensors(fields(value))):
            return value
        # What it reads is looked up before what it returns is named: both are one tensor where it writes in place.
        self.name(value, self.node(target, self.argument(args), self.argument(kwargs)))
        given = list(tensors((args, kwargs)))
        choosing = getattr(target, "__name__", "") in CHOOSING
        masked = choosing and any(t.dtype is torch.bool for t in given[1:])
        if masked or any(id(t) in self.unsized for t in given):
            self.unsized.update(id(t) for t in tensors(fields(value)) if t.dim())
        return value

    def check_generators(self) -> None:
        if generators() != self.drawn:
            raise self.unfollowed("it draws random numbers from another generator than torch's, anew in each step")

    def node(self, target: Any, args: Any, kwargs: Any) -> fx.Node:
        name = getattr(target, "__name__", "")
        if isinstance(target, str):
            made = self.graph.create_node("call_module", target, args, kwargs)
        elif name == "__get__":  # of a property, such as x.T
            made = self.graph.call_function(getattr, (args[0], target.__self__.__name__))
        elif name == "__getitem__":
            made = self.graph.call_function(operator.getitem, args, kwargs)
        elif name == "__setitem__":
            made = self.graph.call_function(operator.setitem, args, kwargs)
        elif getattr(torch.Tensor, name, None) is target or isinstance(target, type(torch.Tensor.add)):
            made = self.graph.call_method(name, args, kwargs)
        else:
            made = self.graph.call_function(target, args, kwargs)
        made.meta["at"] = self.placed()
        return made

    def name(self, value: Any, node: fx.Node) -> None:
        """Notes that a value is what a node makes: each tensor in it is the node, or an item of it."""
        if isinstance(value, torch.Tensor):
            self.nodes[id(value)] = value, node
            return
        value = fields(value)
        if isinstance(value, dict):
            items: Any = value.items()
        elif isinstance(value, (tuple, list)):
            items = enumerate(value)
        else:
            return
        for key, item in items:
            if any(True for _ in tensors(fields(item))):
                child = self.graph.call_function(operator.getitem, (node, key))
                child.spillway_item = True
                child.meta["at"] = node.meta.get("at", "")
                self.name(item, child)

    def argument(self, value: Any) -> Any:
        """What a graph has for a value."""
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, torch.Size):
            return tuple(value)
        if type(value) in (tuple, list):
            return type(value)(self.argument(v) for v in value)
        if type(value) is dict and all(isinstance(k, str) for k in value):
            return {k: self.argument(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self.argument(v) for v in (value.start, value.stop, value.step)))
        found = fields(value)
        if isinstance(found, dict) and any(True for _ in tensors(found)):
            parts = {k: self.argument(v) for k, v in found.items()}
            return self.graph.call_function(rebuilt, (self.constant(type(value)), parts))
        for tensor in within(value, DEPTH):
            if id(tensor) in self.nodes or self.seen.has(tensor):
                raise self.unfollowed(f"a {type(value).__name__} carries tensors of the batch from one call to another")
        return self.constant(value)

    def tensor(self, value: torch.Tensor) -> fx.Node:
        if id(value) in self.nodes:
            return self.nodes[id(value)][1]
        if id(value) not in self.paths:
            if self.seen.has(value):
                raise self.unfollowed(
                    "a tensor that was made in a way that cannot be noted, or within a module that is one operation"
                )
            path = f"spillway_constant{len(self.root._buffers)}"
            self.root.register_buffer(path, value, persistent=False)
            self.paths[id(value)] = path
        return self.attribute(self.paths[id(value)])

    def constant(self, value: Any) -> fx.Node:
        """An object that is the same for every batch, as an attribute of the model."""
        held = self.root.__dict__.setdefault("spillway_objects", [])
        index = next((i for i, other in enumerate(held) if other is value), len(held))
        if index == len(held):
            held.append(value)
        path = f"spillway_object{index}"
        self.root.__dict__[path] = value
        return self.attribute(path)

    def attribute(self, path: str) -> fx.Node:
        if path not in self.attributes:
            self.attributes[path] = self.graph.create_node("get_attr", path)
        return self.attributes[path]

    def unfollowed(self, why: str, error: BaseException | None = None) -> Unfollowed:
        at = "" if error is None else self.model.source.place(error)
        if not at.rpartition(":")[2].isdigit():  # it is no error of the user's code, which is further up
            at = self.placed()
        return Unfollowed(why, self.stack[-1] if self.stack else self.root, at)


def generators() -> Any:
    """The states of Python's generator and of numpy's."""
    state = None if numpy is None else numpy.random.get_state()
    return random.getstate(), state and (state[2], state[1].tobytes())


class Seen(TorchDispatchMode):
    """Knows the tensors that were made while it is active, also where nothing else tells of them."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, weakref.ref[torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        value = func(*args, **(kwargs or {}))
        for tensor in tensors(value):
            self.made[id(tensor)] = weakref.ref(tensor)
        return value

    def has(self, tensor: torch.Tensor) -> bool:
        made = self.made.get(id(tensor))
        return made is not None and made() is tensor


@contextlib.contextmanager
def kept(root: nn.Module) -> Iterator[None]:
    """Leaves buffers as they were, such as running statistics: what is run within is no step of a training."""
    held = [(module._buffers, dict(module._buffers)) for module in root.modules()]
    values = [(b, b.detach().clone()) for b in root.buffers()]
    try:
        yield
    finally:
        for now, before in held:
            now.update(before)
        with torch.no_grad():
            for buffer, value in values:
                if buffer._version > 0:
                    buffer.copy_(value)


def fields(value: Any) -> Any:
    """The parts of an object as a dict of the arguments that make it again; other values as they are."""
    if isinstance(value, dict) or hasattr(value, "_fields"):
        return value._asdict() if hasattr(value, "_fields") else dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    return value


def within(value: Any, depth: int) -> Iterator[torch.Tensor]:
    """Tensors in an object and what it refers to."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and not isinstance(value, (nn.Module, type)) and not inspect.isroutine(value):
        inner: Any = value if isinstance(value, (tuple, list, set)) else ()
        if isinstance(value, dict):
            inner = value.values()
        for item in (*inner, *getattr(value, "__dict__", {}).values()):
            yield from within(item, depth - 1)
