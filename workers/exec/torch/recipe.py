"""What the user's file says about training: data, loss, optimizer and scheduler, with defaults for what it does not
say.

    data(path)             what Data describes
    loss(output, target)   the mean over the samples; or loss(output)
    optimizer(parameters)  a torch.optim.Optimizer
    scheduler(optimizer)   a torch.optim.lr_scheduler, stepped after each step

This file is run after runner.py and dropout.py, in their namespace.
"""

import bisect
import csv
import inspect
import os
import random
from collections.abc import Mapping

from torch.utils import data as torch_data

try:
    from torch.utils.data import default_collate
except ImportError:
    from torch.utils.data._utils.collate import default_collate

KINDS = ("sgd", "momentum", "adam", "adamw")
NUMBERS = (bool, int, float)


class Recipe:
    """The loss, the optimizer and the scheduler."""

    def __init__(self, source, config):
        """config is the optimizer that was asked for, as JSON: kind, learning_rate, momentum, beta1, beta2, epsilon,
        weight_decay; without a kind, the file's own."""
        self.source, self.config = source, config or {}
        self.user_loss = source.optional("loss")
        self.loss_takes_target = self.user_loss is not None and takes(
            getattr(self.user_loss, "forward", self.user_loss), 2
        )
        kind = self.config.get("kind") or ""
        if kind and kind not in KINDS:
            raise Refusal("optimizer", "there is no optimizer %s" % kind, hint="choose one of %s" % ", ".join(KINDS))

    # The loss.

    def loss(self, output, target=None):
        """The mean loss of the samples, a scalar tensor.

        Without loss() in the file it is the cross entropy where targets are integers (numbers of classes, which are the
        last dimension of output, or the second where only that fits), the mean squared error where they are not, and
        the output itself where there is no target. Nothing is broadcast. The cross entropy leaves targets of -100 out
        of its mean, as torch does; where there are some, the loss of a batch depends on how it is cut, since each
        micro-batch counts by its samples.
        """
        if self.user_loss is None:
            return default_loss(output, target, self.source)
        with self.source.blamed(
            "loss",
            "loss() fails on an output %s and a target %s" % (shapes(output), shapes(target)),
            "it takes the model's output and the target, and returns a scalar tensor",
        ):
            value = self.user_loss(output, target) if self.loss_takes_target else self.user_loss(output)
        return scalar(value, self.source, "loss() returns", "return the mean over the samples, with a gradient")

    # The optimizer.

    def optimizer(self, named_parameters, config=None):
        """An optimizer of the parameters, (name, parameter) each: the one that was asked for, else the file's, else
        Adam at 0.001."""
        config = self.config if config is None else config
        parameters = [p for _, p in named_parameters]
        if not parameters:
            return torch.optim.SGD(
                [{"params": []}], lr=0.0
            )  # a part may have none; schedulers are content with a group of none
        function = self.source.optional("optimizer")
        if config.get("kind"):
            return made_optimizer(config, parameters)
        if function is None:
            return made_optimizer({"kind": "adam"}, parameters)
        with self.source.blamed(
            "optimizer",
            "optimizer() fails",
            "it takes a list of parameters and returns a torch.optim.Optimizer of them",
        ):
            made = function(parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise Refusal(
                "optimizer",
                "optimizer() returns %s, not a torch.optim.Optimizer" % type(made).__name__,
                self.source.path,
                "return one such as torch.optim.AdamW(parameters)",
            )
        if isinstance(made, torch.optim.LBFGS):
            raise Refusal(
                "optimizer",
                "LBFGS runs the model several times a step, which a pipeline cannot",
                self.source.path,
                "return another optimizer",
            )
        own = {id(p) for p in parameters}
        if any(id(p) not in own for group in made.param_groups for p in group["params"]):
            raise Refusal(
                "optimizer",
                "optimizer() holds a parameter that it was not given",
                self.source.path,
                "use its argument only: it is called for each part of the model with that part's parameters",
            )
        return made

    def scheduler(self, optimizer):
        """The file's scheduler of this optimizer, or None. It is stepped once after each step of the optimizer."""
        function = self.source.optional("scheduler")
        if function is None:
            return None
        with self.source.blamed(
            "scheduler",
            "scheduler() fails",
            "it takes an optimizer and returns a scheduler of torch.optim.lr_scheduler",
        ):
            made = function(optimizer)
        if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise Refusal(
                "scheduler",
                "ReduceLROnPlateau needs the loss, which only the last part of a split model knows",
                self.source.path,
                "return a scheduler that goes by the number of steps",
            )
        for method in ("step", "state_dict", "load_state_dict"):
            if not callable(getattr(made, method, None)):
                raise Refusal(
                    "scheduler",
                    "scheduler() returns %s, which has no %s()" % (type(made).__name__, method),
                    self.source.path,
                    "return a scheduler of torch.optim.lr_scheduler",
                )
        return made

    # What outlives a process.

    def optimizer_state(self, optimizer, named_parameters):
        """{"optimizer/SLOT/NAME": tensor} of what the optimizer keeps for each parameter. Numbers become tensors
        without dimensions: int64, or float64."""
        state = optimizer.state_dict()["state"]
        found = {}
        for index, name in numbered(optimizer, named_parameters):
            for slot, value in state.get(index, {}).items():
                if value is None:
                    continue
                if isinstance(value, NUMBERS):
                    value = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
                if not isinstance(value, torch.Tensor) or "/" in slot:
                    raise Refusal(
                        "optimizer",
                        "%s keeps %s as a %s, which cannot be saved"
                        % (type(optimizer).__name__, slot, type(value).__name__),
                        self.source.path,
                        "use an optimizer that keeps tensors and numbers for each parameter",
                    )
                found["optimizer/%s/%s" % (slot, name)] = value.detach()
        return found

    def load_optimizer_state(self, optimizer, named_parameters, tensors):
        """Replaces what the optimizer keeps by tensors of optimizer_state, whatever the split that they come from.
        Parameters without any start anew."""
        slots = {}
        for key, value in tensors.items():
            prefix, slot, name = key.split("/", 2)
            if prefix != "optimizer":
                raise Refusal("optimizer", "%s is no state of an optimizer" % key)
            slots.setdefault(name, {})[slot] = value
        by_name = dict(named_parameters)
        state = {}
        for index, name in numbered(optimizer, named_parameters):
            for slot, value in slots.get(name, {}).items():
                if value.dim() and value.shape != by_name[name].shape:
                    raise Refusal(
                        "optimizer",
                        "optimizer/%s/%s has shape %s, and the parameter %s"
                        % (slot, name, shapes(value), shapes(by_name[name])),
                    )
                state.setdefault(index, {})[slot] = number_again(value, by_name[name])
        whole = optimizer.state_dict()
        whole["state"] = state
        optimizer.load_state_dict(whole)

    def optimizer_groups(self, optimizer, named_parameters):
        """What the optimizer's groups say, such as the learning rate that a scheduler set, as JSON: [{"parameters":
        [NAME, ...], "lr": 0.1, ...}, ...]."""
        names = {id(p): n for n, p in named_parameters}
        groups = []
        for group in optimizer.param_groups:
            values = {k: float(v) if isinstance(v, torch.Tensor) else v for k, v in group.items() if k != "params"}
            groups.append({"parameters": [names[id(p)] for p in group["params"]], **plain(values)})
        return groups

    def load_optimizer_groups(self, optimizer, named_parameters, groups):
        """Sets each group to what optimizer_groups said of its first parameter, whatever the split that it comes
        from."""
        said = {name: group for group in groups for name in group["parameters"]}
        names = {id(p): n for n, p in named_parameters}
        for group in optimizer.param_groups:
            values = said.get(names[id(group["params"][0])], {}) if group["params"] else {}
            for key, value in values.items():
                if isinstance(group.get(key), torch.Tensor):
                    group[key].fill_(value)
                elif key != "parameters":
                    group[key] = tuple(value) if isinstance(value, list) else value

    def scheduler_state(self, scheduler):
        """The scheduler's state as JSON, without what JSON has no form for, such as functions: those the file makes
        again."""
        return None if scheduler is None else plain(scheduler.state_dict())

    def load_scheduler_state(self, scheduler, state):
        """Sets the scheduler to what scheduler_state returned. Lists of one value for each group are left alone where
        this part has another number of groups."""
        if scheduler is not None and state is not None:
            scheduler.load_state_dict(merged(scheduler.state_dict(), state))


def default_loss(output, target, source):
    if target is None:
        return scalar(
            output,
            source,
            "there is no target, and the model returns",
            "return the loss from the model, or have data() return (inputs, targets)",
        )
    if not isinstance(output, torch.Tensor) or not isinstance(target, torch.Tensor):
        raise Refusal(
            "loss",
            "the output is %s and the target is %s" % (shapes(output), shapes(target)),
            source.path,
            "define loss(output, target): without it both are one tensor",
        )
    if target.is_floating_point():
        if output.shape != target.shape:
            raise Refusal(
                "loss",
                "the output has shape %s and the target %s" % (shapes(output), shapes(target)),
                source.path,
                "give them equal shapes, or define loss(output, target)",
            )
        return nn.functional.mse_loss(output, target)
    if output.dim() < 2 or target.dtype == torch.bool or target.is_complex() or not output.is_floating_point():
        raise Refusal(
            "loss",
            "an output %s and a target %s have no usual loss" % (described_tensor(output), described_tensor(target)),
            source.path,
            "define loss(output, target)",
        )
    if output.shape[:-1] == target.shape:
        classes, output, target = output.shape[-1], output.reshape(-1, output.shape[-1]), target.reshape(-1)
    elif output.shape[:1] + output.shape[2:] == target.shape:
        classes = output.shape[1]
    else:
        raise Refusal(
            "loss",
            "the output has shape %s and the target, of classes, %s" % (shapes(output), shapes(target)),
            source.path,
            "give the target one number for each row of the output, or define loss(output, target)",
        )
    if classes < 2:
        raise Refusal(
            "loss",
            "the output has shape %s: with one class the cross entropy is always 0" % shapes(output),
            source.path,
            "return two classes, or define loss(output, target) with binary_cross_entropy_with_logits",
        )
    with source.blamed(
        "loss", "the cross entropy of an output %s fails" % shapes(output), "targets are from 0 to %d" % (classes - 1)
    ):
        return nn.functional.cross_entropy(output, target.long())


def scalar(value, source, what, hint):
    if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.is_floating_point():
        raise Refusal("loss", "%s %s, not a floating scalar" % (what, described_tensor(value)), source.path, hint)
    return value.reshape(())


def made_optimizer(config, parameters):
    """One of KINDS; 0 and what is not given stand for the default."""
    kind, decay = config["kind"], config.get("weight_decay") or 0.0
    if kind in ("sgd", "momentum"):
        momentum = (config.get("momentum") or 0.9) if kind == "momentum" else 0.0
        return torch.optim.SGD(
            parameters, lr=config.get("learning_rate") or 0.01, momentum=momentum, weight_decay=decay
        )
    values = {
        "lr": config.get("learning_rate") or 0.001,
        "betas": (config.get("beta1") or 0.9, config.get("beta2") or 0.999),
        "eps": config.get("epsilon") or 1e-8,
    }
    if kind == "adam":
        return torch.optim.Adam(parameters, weight_decay=decay, **values)
    return torch.optim.AdamW(parameters, weight_decay=decay or 0.01, **values)


def numbered(optimizer, named_parameters):
    """The parameters' numbers in the optimizer's state_dict, with their names."""
    names = {id(p): n for n, p in named_parameters}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [(i, names[id(p)]) for i, p in enumerate(parameters)]


def number_again(value, parameter):
    """A number that optimizer_state made a tensor of; torch keeps its own counts as floating tensors."""
    if value.dim() == 0 and (value.dtype == torch.int64 or value.dtype == torch.float64 != parameter.dtype):
        return value.item()
    return value


def plain(value):
    """value without what JSON has no form for."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items() if isinstance(k, str) and expressible(v)}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


def expressible(value):
    if isinstance(value, dict):
        return all(isinstance(k, str) for k in value)
    if isinstance(value, (list, tuple)):
        return all(expressible(v) for v in value)
    return value is None or isinstance(value, NUMBERS + (str,))


def merged(own, loaded):
    """own with what was loaded in its place, within dicts and lists, where lengths agree."""
    if isinstance(own, dict) and isinstance(loaded, dict):
        return {**own, **{k: merged(own[k], v) if k in own else v for k, v in loaded.items()}}
    if isinstance(own, (list, tuple)) and isinstance(loaded, list):
        return type(own)(merged(o, n) for o, n in zip(own, loaded)) if len(own) == len(loaded) else own
    return loaded


def takes(function, count):
    """Whether a function can be called with so many arguments in order."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # without a signature
        pass
    return True


def shapes(value):
    """The shapes of what is in value, for people."""
    if isinstance(value, torch.Tensor) or numpy is not None and isinstance(value, numpy.ndarray):
        return "(%s)" % ", ".join(map(str, value.shape))
    if isinstance(value, dict):
        return "{%s}" % ", ".join("%s: %s" % (k, shapes(v)) for k, v in value.items())
    if isinstance(value, (tuple, list)):
        return "(%s)" % ", ".join(map(shapes, value))
    return type(value).__name__


def described_tensor(value):
    return (
        "%s of %s" % (shapes(value), str(value.dtype).replace("torch.", ""))
        if isinstance(value, torch.Tensor)
        else "a " + type(value).__name__
    )


# The data.


class Data:
    """Batches by number, the same ones in any process that has the same seed and batch, whatever was asked before.

    data(path) of the file returns
      a pair (inputs, targets) of tensors or arrays, where inputs may be a tuple or a dict of them; or inputs alone,
      where the model returns its loss; a torch Dataset of samples (inputs, target), of inputs, or of dicts of the
      model's arguments by name; an IterableDataset of such samples; or a DataLoader or anything else that can be
      iterated, of batches of such samples, all of the size of the layout's.
    Without it, path names an .npz (arrays x and y, or its first two), a .pt of one of the above, or a .csv of numbers
    whose last column is the target.

    Samples that have numbers are put in another order for each epoch. What is iterated is seeded for each epoch and
    each batch, and read from the start of its epoch where a step needs it; generators of its own that are not in a
    torch sampler are not seeded. The last batch of an epoch is left out where it is incomplete. Floating arrays of
    numpy become torch's default type.
    """

    def __init__(self, source, path, batch, seed):
        """batch is the number of samples of a step; None, for a probe, takes batches of any size."""
        self.source, self.path, self.seed = source, path or "", seed
        with source.blamed(
            "data", "the data cannot be read", "data(path) returns a pair of tensors, a Dataset or a DataLoader"
        ):
            made = self.read()
        self.reader = self.reading(made, batch)
        if batch is not None and 0 < self.samples < batch:
            raise Refusal(
                "data",
                "the data has %d samples, fewer than one batch of %d" % (self.samples, batch),
                self.at(),
                "use smaller batches or more data",
            )

    @property
    def samples(self):
        """How many there are; 0 where the data does not say."""
        return self.reader.samples

    @property
    def steps_per_epoch(self):
        """How many batches a pass over the data has; 0 where the data does not say and none has ended yet."""
        return self.reader.steps_per_epoch

    def batch(self, step):
        """(inputs, target) of a step, from 0. Inputs are a list of tensors in the order of the model's arguments or a
        dict of them by name; target may be None. It seeds the generators of this process, so nothing else may draw
        meanwhile.
        """
        seed_all(self.seed, "batch", step)  # for what samples draw
        return self.parted(self.reader.batch(step))

    def example(self, samples):
        """The inputs of the first samples, for a probe; they start again where there are too few."""
        return self.example_batch(samples)[0]

    def example_batch(self, samples):
        """The inputs and the target of the first samples."""
        seed_all(self.seed, "example")
        return self.parted(self.reader.example(samples))

    def at(self):
        return self.source.path if self.source.optional("data") else self.path

    # Where it comes from.

    def read(self):
        function = self.source.optional("data")
        if function is not None:
            seed_all(self.seed, "data")
            if takes(function, 1) and (self.path or not takes(function, 0)):
                if not self.path:
                    raise Refusal(
                        "data", "data(path) needs a path, and none was given", self.source.path, "say where the data is"
                    )
                return function(self.path)
            if self.path:
                raise Refusal(
                    "data", "data() takes no path, and %s was given" % self.path, self.source.path, "define data(path)"
                )
            return function()
        if not self.path:
            raise Refusal(
                "data",
                "there is no data",
                self.source.path,
                "define data(path) in the file: it returns (inputs, targets), a Dataset or a DataLoader; "
                "or give the path of an .npz, .pt or .csv file",
            )
        if not os.path.isfile(self.path):
            raise Refusal(
                "data",
                "there is no file %s" % self.path,
                self.path,
                "give the path of an .npz, .pt or .csv file, or define data(path)",
            )
        ending = os.path.splitext(self.path)[1].lower()
        if ending not in FORMATS:
            raise Refusal(
                "data",
                "files *%s are read by data(path), which is not there" % ending,
                self.source.path,
                "define it, or give an .npz, .pt or .csv file",
            )
        try:
            return FORMATS[ending](self.path)
        except Refusal:
            raise
        except Exception as error:
            raise Refusal(
                "data",
                "%s cannot be read: %s" % (self.path, described(error)),
                self.path,
                "define data(path) in the file to read it another way",
            ) from error

    def reading(self, made, batch):
        if isinstance(made, torch_data.DataLoader):
            size = made.batch_size
            if batch is not None and size is not None and size != batch:
                raise Refusal(
                    "data",
                    "the DataLoader of data() makes batches of %d samples, and a batch has %d here" % (size, batch),
                    self.source.path,
                    "make them equal, or return the Dataset",
                )
            samples = counted(made.sampler) if size else counted(made.dataset)
            return Stream(self, made, batch, samples, samples // size if size else 0)
        if isinstance(made, torch_data.IterableDataset):
            samples = counted(made)
            return Stream(
                self, torch_data.DataLoader(made, batch_size=batch or 1), batch, samples, samples // (batch or 1)
            )
        if isinstance(made, dict) and set(made) == {"inputs", "targets"}:
            made = (made["inputs"], made["targets"])
        if isinstance(made, list) and len(made) == 2 and all(map(is_array, made)):
            made = tuple(made)
        if isinstance(made, (tuple, dict)) or is_array(made):
            return Rows(self, made, batch)
        if isinstance(made, torch_data.TensorDataset):
            return Rows(self, made.tensors, batch)
        if hasattr(made, "__getitem__") and hasattr(made, "__len__") and not isinstance(made, (list, str)):
            return Samples(self, made, batch)
        if hasattr(made, "__iter__") and not isinstance(made, str):
            return Stream(self, made, batch)
        raise Refusal(
            "data",
            "data() returns a %s" % type(made).__name__,
            self.source.path,
            "return a pair of tensors, a Dataset or a DataLoader",
        )

    def parted(self, batch):
        """(inputs, target) of a batch, or a Refusal."""
        batch = self.converted(batch)
        inputs, target = batch, None
        if isinstance(batch, dict) and set(batch) == {"inputs", "targets"}:
            inputs, target = batch["inputs"], batch["targets"]
        elif isinstance(batch, (tuple, list)):
            if len(batch) not in (1, 2):
                raise Refusal(
                    "data",
                    "a sample has %d parts" % len(batch),
                    self.at(),
                    "return (inputs, target), where inputs may be a tuple or a dict",
                )
            inputs, target = batch if len(batch) == 2 else (batch[0], None)
        inputs = inputs if isinstance(inputs, dict) else list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
        if not any(True for _ in tensors(inputs)):
            raise Refusal(
                "data",
                "the inputs of a batch are %s, without a tensor" % shapes(inputs),
                self.at(),
                "return tensors, arrays or numbers",
            )
        if len(set(map(rows, tensors([inputs, target])))) != 1:
            raise Refusal(
                "data",
                "a batch has inputs %s and a target %s" % (shapes(inputs), shapes(target)),
                self.at(),
                "all of its tensors have one row for each sample",
            )
        return inputs, target

    def converted(self, value):
        """value with tensors in the place of arrays, and plain dicts and lists."""
        if isinstance(value, torch.Tensor):
            return value.detach()
        if is_array(value):
            with self.source.blamed(
                "data", "torch has no tensors like an array of %s" % value.dtype, "convert it with astype"
            ):
                made = torch.from_numpy(
                    value
                    if value.flags.writeable and value.dtype.isnative
                    else value.astype(value.dtype.newbyteorder("="))
                )
            return made.to(torch.get_default_dtype()) if made.is_floating_point() else made
        if isinstance(value, Mapping):
            return {k: self.converted(v) for k, v in value.items()}
        if isinstance(value, (tuple, list)):
            return [self.converted(v) for v in value]
        return value


class Rows:
    """Tensors whose first dimension counts the samples."""

    def __init__(self, data, made, batch):
        self.whole = data.converted(made)
        sizes = [rows(t) for t in tensors(self.whole)]
        if not sizes or min(sizes) < 1 or min(sizes) != max(sizes):
            raise Refusal(
                "data",
                "the data is %s" % shapes(self.whole),
                data.at(),
                "all of its tensors have one row for each sample, and there is one at least",
            )
        self.samples, self.order = sizes[0], Order(data.seed, sizes[0], batch)
        self.steps_per_epoch = self.order.steps_per_epoch

    def batch(self, step):
        numbers = self.order.numbers(step)
        return each(self.whole, lambda t: t.index_select(0, numbers))

    def example(self, samples):
        numbers = torch.arange(samples) % self.samples
        return each(self.whole, lambda t: t.index_select(0, numbers))


class Samples:
    """A Dataset whose samples have numbers."""

    def __init__(self, data, made, batch):
        self.data, self.dataset, self.samples = data, made, len(made)
        if self.samples < 1:
            raise Refusal(
                "data", "the %s of data() is empty" % type(made).__name__, data.at(), "look whether its path is right"
            )
        self.order = Order(data.seed, self.samples, batch)
        self.steps_per_epoch = self.order.steps_per_epoch

    def batch(self, step):
        return self.collated(self.order.numbers(step).tolist())

    def example(self, samples):
        return self.collated([i % self.samples for i in range(samples)])

    def collated(self, numbers):
        samples = [self.sample(number) for number in numbers]
        try:
            return default_collate(samples)
        except Exception as error:
            first = shapes(samples[0])
            other = next(((n, shapes(s)) for n, s in zip(numbers, samples) if shapes(s) != first), None)
            message = (
                "sample %d is %s and sample %d is %s" % ((numbers[0], first) + other) if other else described(error)
            )
            raise Refusal(
                "data",
                "the samples of a batch do not fit together: %s" % message,
                self.data.at(),
                "return samples of equal shapes, or a DataLoader with a collate_fn",
            ) from error

    def sample(self, number):
        with self.data.source.blamed(
            "data", "sample %d cannot be read" % number, "find out what dataset[%d] does" % number
        ):
            return self.dataset[number]


class Order:
    """The order of numbered samples: another permutation in each epoch."""

    def __init__(self, seed, samples, batch):
        self.seed, self.samples, self.size = seed, samples, batch or 1
        self.steps_per_epoch = samples // self.size
        self.epoch, self.permutation = -1, None

    def numbers(self, step):
        """Those of the samples of a step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(derived(self.seed, "order", epoch)[0] >> 65)
            self.epoch, self.permutation = epoch, torch.randperm(self.samples, generator=generator)
        return self.permutation[position * self.size : (position + 1) * self.size]


class Stream:
    """Batches that are made elsewhere and come in their order. A generator is made again for each epoch, by data()."""

    def __init__(self, data, made, batch, samples=0, steps_per_epoch=0):
        self.data, self.made, self.size, self.samples = data, made, batch, samples
        self.said, self.steps_per_epoch = steps_per_epoch, steps_per_epoch
        self.starts = [0]  # the first step of each epoch that was begun
        self.iterator, self.epoch, self.next = None, 0, 0  # what batches come from, and the step of the next one

    def batch(self, step):
        epoch, first = self.located(step)
        if self.iterator is None or step < self.next or epoch > self.epoch:
            self.start(epoch, first)
        while True:
            found = self.take()
            if found is None:
                self.end()
                continue
            self.next += 1
            if self.next > step:
                return found

    def located(self, step):
        """The last epoch known to begin at or before a step, and its first step."""
        if self.said:
            epoch = step // self.said
            return epoch, epoch * self.said
        epoch = bisect.bisect_right(self.starts, step) - 1
        return epoch, self.starts[epoch]

    def start(self, epoch, first):
        if self.iterator is not None and self.iterator is self.made:  # a generator, and used up
            self.made = self.data.read()
        self.iterator, self.epoch, self.next = None, epoch, first
        seed_all(self.data.seed, "order", epoch)
        batch_sampler = getattr(self.made, "batch_sampler", None)
        for holder in (
            self.made,
            batch_sampler,
            getattr(self.made, "sampler", None),
            getattr(batch_sampler, "sampler", None),
        ):
            if isinstance(getattr(holder, "generator", None), torch.Generator):
                holder.generator.manual_seed(derived(self.data.seed, "order", epoch)[0] >> 65)
            if callable(getattr(holder, "set_epoch", None)):
                holder.set_epoch(epoch)
        with self.blamed():
            self.iterator = iter(self.made)

    def end(self):
        """Goes on to the next epoch."""
        first = self.said * self.epoch if self.said else self.starts[self.epoch]
        if self.next == first or self.said:
            raise Refusal(
                "data",
                "the data ends after %d batches" % (self.next - first) + (" of %d" % self.said if self.said else ""),
                self.data.at(),
                "make sure that it can be iterated again and that there is one whole batch at least",
            )
        if self.epoch + 1 == len(self.starts):
            self.starts.append(self.next)
        self.steps_per_epoch = self.steps_per_epoch or self.next
        self.start(self.epoch + 1, self.next)

    def take(self):
        """The next batch, or None at the end of the epoch."""
        found = self.draw()
        if found is None or self.size is None:
            return found
        count = max(map(rows, tensors(found)), default=0)
        if count == self.size:
            return found
        if count < self.size and self.draw() is None:  # the last one
            return None
        raise Refusal(
            "data",
            "batch %d of the data has %d samples, and a batch has %d here" % (self.next, count, self.size),
            self.data.at(),
            "make them equal, or return a Dataset",
        )

    def draw(self):
        seed_all(self.data.seed, "batch", self.next)
        with self.blamed():
            return self.data.converted(next(self.iterator, None))

    def blamed(self):
        return self.data.source.blamed(
            "data", "batch %d of the data cannot be read" % self.next, "iterate over what data() returns"
        )

    def example(self, samples):
        self.start(0, 0)
        found = []
        while sum(count for count, _ in found) < samples:
            batch = self.draw()
            if batch is None:
                break
            found.append((max(map(rows, tensors(batch)), default=0), batch))
        self.start(0, 0)
        whole = sum(count for count, _ in found)
        if not whole:
            raise Refusal("data", "the data is empty", self.data.at(), "look whether its path is right")
        columns = zip(*(tensors(batch) for _, batch in found))
        joined = iter([torch.cat(column).index_select(0, torch.arange(samples) % whole) for column in columns])
        return each(found[0][1], lambda _: next(joined))


# Files.


def read_npz(path):
    if numpy is None:
        raise Refusal("data", "%s needs numpy" % path, path, "install numpy")
    with numpy.load(path) as arrays:
        names = ["x", "y"] if {"x", "y"} <= set(arrays.files) else arrays.files[:2]
        return tuple(arrays[name] for name in names)


def read_pt(path):
    options = {"weights_only": True} if "weights_only" in inspect.signature(torch.load).parameters else {}
    return torch.load(path, map_location="cpu", **options)


def read_csv(path):
    """Numbers with an optional line of names. The last column, the target, is of classes where all of it is written as
    integers."""
    with open(path, newline="") as file:
        lines = [line for line in csv.reader(file) if line]
    if lines and not all(map(is_number, lines[0])):
        del lines[0]
    if not lines:
        raise Refusal("data", "there are no numbers", path, "write at least two numbers, and as many in each row")
    for number, line in enumerate(lines, 1):
        if len(line) != len(lines[0]) or len(line) < 2 or not all(map(is_number, line)):
            raise Refusal(
                "data",
                "row %d of numbers is %s" % (number, ",".join(line)),
                path,
                "write at least two numbers, and as many in each row",
            )
    inputs = torch.tensor([[float(cell) for cell in line[:-1]] for line in lines])
    last = [line[-1] for line in lines]
    if all(cell.strip().lstrip("+-").isdigit() for cell in last):
        return inputs, torch.tensor([int(cell) for cell in last])
    return inputs, torch.tensor([[float(cell)] for cell in last])


FORMATS = {".npz": read_npz, ".pt": read_pt, ".pth": read_pt, ".csv": read_csv}


def is_number(text):
    try:
        float(text)
    except ValueError:
        return False
    return True


def is_array(value):
    return isinstance(value, torch.Tensor) or numpy is not None and isinstance(value, numpy.ndarray)


def rows(tensor):
    return tensor.shape[0] if tensor.dim() else 0


def counted(value):
    """How many items are in value; 0 where it does not say."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return 0


def seed_all(*what):
    """Seeds what data may draw from: the generators of torch, random and numpy."""
    seed_torch(*what)
    number = derived(*what)[0]
    random.seed(number)
    if numpy is not None:
        numpy.random.seed(number & 0xFFFFFFFF)
