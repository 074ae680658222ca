"""The data of a training, by batch: what data(path) of the user's file returns, or what a file of data holds."""

from __future__ import annotations

import bisect
import os
import signal
import time
import warnings
from collections.abc import Mapping
from typing import Any, Callable, Iterator

import torch
from torch.utils import data as torch_data

from spillway_runner.ahead import Ahead, nameless
from spillway_runner.arrays import is_array
from spillway_runner.patience import bounded
from spillway_runner.process import highest, open_files, reset_highest, resident
from spillway_runner.readers import FORMATS
from spillway_runner.refusal import Refusal
from spillway_runner.seeds import derived, seed_all
from spillway_runner.source import Blamed, Source, described, takes
from spillway_runner.values import each, shapes, size, tensors

try:
    from torch.utils.data import default_collate
except ImportError:
    from torch.utils.data._utils.collate import default_collate

PATIENCE = 600.0  # seconds that a batch may take
MANY = 1 << 16  # processes


class Data:
    """Batches by number, the same ones in any process that has the same seed and batch, whatever was asked before.

    data(path) of the file returns
      a pair (inputs, targets) of tensors or arrays, where inputs may be a tuple or a dict of them; or inputs alone,
      where the model returns its loss; a torch Dataset of samples (inputs, target), of inputs, or of dicts of the
      model's arguments by name; an IterableDataset of such samples; or a DataLoader or anything else that can be
      iterated, of batches of such samples, all of the size of the layout's. Of a DataLoader without processes of its
      own, the samples are read as those of its Dataset, in the order of its sampler, and put together by its
      collate_fn.
    Without it, path names an .npz (arrays x and y, or its first two), a .pt of one of the above, or a .csv of numbers
    whose last column is the target.

    Samples that have numbers are put in another order for each epoch, and the generators of torch, random and numpy
    are seeded for each of them, so that what it draws belongs to it, whoever reads it. What is iterated is seeded for
    each epoch and each batch, and read from the start of its epoch where a step needs it; generators of its own that
    are not in a torch sampler are not seeded. The last batch of an epoch is left out where it is incomplete. Floating
    arrays of numpy become torch's default type.
    """

    def __init__(
        self, source: Source, path: str | None, batch: int | None, seed: int, patience: float = PATIENCE
    ) -> None:
        """batch is the number of samples of a step; None, for a probe, takes batches of any size. patience is how many
        seconds one may take."""
        self.source, self.path, self.seed, self.size, self.patience = source, path or "", seed, batch, patience
        self.ahead: Ahead | None = None
        self.form: Any = None  # of the first batch
        # torch compares the processes of a loader with the cores of this one, in each that reads: those of one part.
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        with source.blamed(
            "data", "the data cannot be read", "data(path) returns a pair of tensors, a Dataset or a DataLoader"
        ):
            made = self.read()
        # How many processes may read without anybody having asked for them.
        self.unasked = 1 if open_files() - source.files else MANY
        self.reader = self.reading(made, batch)
        if batch is not None and 0 < self.samples < batch:
            raise Refusal(
                "data",
                f"the data has {self.samples} samples, fewer than one batch of {batch}",
                self.at(),
                "use smaller batches or more data",
            )

    @property
    def samples(self) -> int:
        """How many there are; 0 where the data does not say."""
        return self.reader.samples

    @property
    def steps_per_epoch(self) -> int:
        """How many batches a pass over the data has; 0 where the data does not say and none has ended yet."""
        return self.reader.steps_per_epoch

    def start(self, workers: int, cpus: list[int] | None = None, pinned: bool = False) -> None:
        """Has so many processes fetch batches from now on, on those cores, into memory that is page-locked or not.

        They share what this process holds now, so it is called before the model is there and anything is read. Data
        that can only be iterated have one process, and a DataLoader that has processes keeps those.
        """
        workers = min(workers, self.reader.workers)
        if workers:
            self.ahead = Ahead(self.fetch, workers, cpus or [], pinned, self.patience)

    def batch(self, step: int, begin: int = 0, end: int | None = None) -> tuple[Any, Any]:
        """(inputs, target) of the samples from begin to end of a step, from 0, or of all. Inputs are a list of tensors
        in the order of the model's arguments or a dict of them by name; target may be None. What it returned before may
        be overwritten. It seeds the generators of this process, so nothing else may draw meanwhile.

        Of samples that have numbers, no others are read, unless a DataLoader puts them together in its own way; of what
        is iterated, all are.
        """
        last = (self.size or 1) if end is None else end
        if self.ahead is not None:
            found = self.ahead.take(step, begin, last)
        else:
            with bounded(self.patience):
                found = self.fetch(step, begin, last)
        seed_all(self.seed, "batch", step)  # whatever samples have drawn, here or elsewhere
        self.check_form(found, step)
        inputs, target = found
        return inputs, target

    def fetch(self, step: int, begin: int, end: int) -> tuple[Any, Any]:
        """A batch, in this process."""
        with self.source.blamed(
            "data", f"the batch of step {step} cannot be fetched", "iterate over what data() returns"
        ):
            return self.parted(self.reader.batch(step, begin, end))

    def check_form(self, batch: tuple[Any, Any], step: int) -> None:
        """Refuses a batch whose parts are others than those of the first one. Sizes may differ."""
        form = form_of(batch)
        if self.form is None:
            self.form = form
        if form != self.form:
            raise Refusal(
                "data",
                f"the batch of step {step} is (inputs, target) {formed(form)}, and the first was {formed(self.form)}",
                self.at(),
                "return the same kind of tensors for every sample",
            )

    def beside(self) -> int:
        """The most bytes that the processes that fetch had to themselves, together."""
        return sum(self.ahead.owned) if self.ahead is not None else 0

    def close(self) -> None:
        """Ends the processes that fetch."""
        self.reader.close()
        if self.ahead is not None:
            self.ahead.close()
            self.ahead = None

    def example(self, samples: int) -> Any:
        """The inputs of the first samples, for a probe; they start again where there are too few."""
        return self.example_batch(samples)[0]

    def example_batch(self, samples: int) -> tuple[Any, Any]:
        """The inputs and the target of the first samples."""
        with bounded(self.patience):
            return self.parted(self.reader.example(samples))

    def cost(self, samples: int) -> dict[str, Any]:
        """What it takes to fetch so many samples other than the first ones: seconds of one thread and bytes, and how
        many processes can do that at once, and can without anybody having asked for them."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        before, resets = resident(), reset_highest()
        began = time.perf_counter()
        try:
            with bounded(self.patience):
                batch = self.parted(self.reader.following(samples))
        finally:
            torch.set_num_threads(threads)
        return {
            "fetch_seconds": time.perf_counter() - began,
            "batch_bytes": size(list(batch)),
            "fetch_bytes": max(highest() - before, 0) if resets else 0,
            "fetchers": self.reader.workers,
            "unasked": min(self.unasked, self.reader.workers),
        }

    def at(self) -> str:
        return self.source.path if self.source.optional("data") else self.path

    # Where it comes from.

    def read(self) -> Any:
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
                    "data", f"data() takes no path, and {self.path} was given", self.source.path, "define data(path)"
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
                f"there is no file {self.path}",
                self.path,
                "give the path of an .npz, .pt or .csv file, or define data(path)",
            )
        ending = os.path.splitext(self.path)[1].lower()
        if ending not in FORMATS:
            raise Refusal(
                "data",
                f"files *{ending} are read by data(path), which is not there",
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
                f"{self.path} cannot be read: {described(error)}",
                self.path,
                "define data(path) in the file to read it another way",
            ) from error

    def reading(self, made: Any, batch: int | None) -> Rows | Samples | Stream:
        if isinstance(made, torch_data.DataLoader):
            size = made.batch_size
            if batch is not None and size is not None and size != batch:
                raise Refusal(
                    "data",
                    f"the DataLoader of data() makes batches of {size} samples, and a batch has {batch} here",
                    self.source.path,
                    "make them equal, or return the Dataset",
                )
            samples = counted(made.sampler) if size else counted(made.dataset)
            return (Listed if Listed.reads(made) else Stream)(
                self, made, batch, samples, samples // size if size else 0
            )
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
            f"data() returns a {type(made).__name__}",
            self.source.path,
            "return a pair of tensors, a Dataset or a DataLoader",
        )

    def parted(self, batch: Any) -> tuple[Any, Any]:
        """(inputs, target) of a batch, or a Refusal."""
        batch = self.converted(batch)
        inputs, target = batch, None
        if isinstance(batch, dict) and set(batch) == {"inputs", "targets"}:
            inputs, target = batch["inputs"], batch["targets"]
        elif isinstance(batch, (tuple, list)):
            if len(batch) not in (1, 2):
                raise Refusal(
                    "data",
                    f"a sample has {len(batch)} parts",
                    self.at(),
                    "return (inputs, target), where inputs may be a tuple or a dict",
                )
            inputs, target = batch if len(batch) == 2 else (batch[0], None)
        inputs = inputs if isinstance(inputs, dict) else list(inputs) if isinstance(inputs, (tuple, list)) else [inputs]
        if not any(True for _ in tensors(inputs)):
            raise Refusal(
                "data",
                f"the inputs of a batch are {shapes(inputs)}, without a tensor",
                self.at(),
                "return tensors, arrays or numbers",
            )
        if len(set(map(rows, tensors([inputs, target])))) != 1:
            raise Refusal(
                "data",
                f"a batch has inputs {shapes(inputs)} and a target {shapes(target)}",
                self.at(),
                "all of its tensors have one row for each sample",
            )
        return inputs, target

    def converted(self, value: Any) -> Any:
        """value with tensors in the place of arrays, and plain dicts and lists."""
        if isinstance(value, torch.Tensor):
            return value.detach()
        if is_array(value):
            with self.source.blamed(
                "data", f"torch has no tensors like an array of {value.dtype}", "convert it with astype"
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

    workers = MANY  # that can read at once

    def close(self) -> None:
        pass

    def __init__(self, data: Data, made: Any, batch: int | None) -> None:
        self.whole = data.converted(made)
        sizes = [rows(t) for t in tensors(self.whole)]
        if not sizes or min(sizes) < 1 or min(sizes) != max(sizes):
            raise Refusal(
                "data",
                f"the data is {shapes(self.whole)}",
                data.at(),
                "all of its tensors have one row for each sample, and there is one at least",
            )
        self.samples, self.order = sizes[0], Order(data.seed, sizes[0], batch)
        self.steps_per_epoch = self.order.steps_per_epoch

    def batch(self, step: int, begin: int, end: int) -> Any:
        numbers = self.order.numbers(step)[begin:end]
        return each(self.whole, lambda t: t.index_select(0, numbers))

    def example(self, samples: int, first: int = 0) -> Any:
        numbers = torch.arange(first, first + samples) % self.samples
        return each(self.whole, lambda t: t.index_select(0, numbers))

    def following(self, samples: int) -> Any:
        return self.example(samples, samples)


class Numbered:
    """Samples that have numbers."""

    def __init__(self, data: Data, dataset: Any, collate: Callable[[list[Any]], Any] = default_collate) -> None:
        self.data, self.dataset, self.collate = data, dataset, collate

    def collated(self, numbers: list[int], step: int | None = None, begin: int = 0) -> Any:
        """The samples of these numbers, which begin at a place in a step; without one, they draw from the generators as
        these are."""
        samples = []
        for place, number in enumerate(numbers, begin):
            if step is not None:
                seed_all(self.data.seed, "sample", step, place)
            samples.append(self.sample(number))
        if self.collate is not default_collate:
            with self.data.source.blamed(
                "data", f"samples {numbers[0]} to {numbers[-1]} cannot be put together", "look at the collate_fn"
            ):
                return self.collate(samples)
        try:
            return default_collate(samples)
        except Exception as error:
            first = shapes(samples[0])
            other = next(((n, shapes(s)) for n, s in zip(numbers, samples) if shapes(s) != first), None)
            message = (
                f"sample {numbers[0]} is {first} and sample {other[0]} is {other[1]}" if other else described(error)
            )
            raise Refusal(
                "data",
                f"the samples of a batch do not fit together: {message}",
                self.data.at(),
                "return samples of equal shapes, or a DataLoader with a collate_fn",
            ) from error

    def sample(self, number: int) -> Any:
        with self.data.source.blamed(
            "data", f"sample {number} cannot be read", f"find out what dataset[{number}] does"
        ):
            return self.dataset[number]


class Samples(Numbered):
    """A Dataset whose samples have numbers."""

    workers = MANY

    def __init__(self, data: Data, made: Any, batch: int | None) -> None:
        super().__init__(data, made)
        self.samples = len(made)
        if self.samples < 1:
            raise Refusal(
                "data", f"the {type(made).__name__} of data() is empty", data.at(), "look whether its path is right"
            )
        self.order = Order(data.seed, self.samples, batch)
        self.steps_per_epoch = self.order.steps_per_epoch

    def close(self) -> None:
        pass

    def batch(self, step: int, begin: int, end: int) -> Any:
        return self.collated(self.order.numbers(step)[begin:end].tolist(), step, begin)

    def example(self, samples: int, first: int = 0) -> Any:
        return self.collated([i % self.samples for i in range(first, first + samples)], -1, first)

    def following(self, samples: int) -> Any:
        return self.example(samples, samples)


class Order:
    """The order of numbered samples: another permutation in each epoch."""

    def __init__(self, seed: int, samples: int, batch: int | None) -> None:
        self.seed, self.samples, self.size = seed, samples, batch or 1
        self.steps_per_epoch = samples // self.size
        self.epoch, self.permutation = -1, torch.empty(0)  # before the first epoch

    def numbers(self, step: int) -> torch.Tensor:
        """Those of the samples of a step."""
        epoch, position = divmod(step, self.steps_per_epoch)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(derived(self.seed, "order", epoch)[0] >> 65)
            self.epoch, self.permutation = epoch, torch.randperm(self.samples, generator=generator)
        return self.permutation[position * self.size : (position + 1) * self.size]


class Stream:
    """Batches that are made elsewhere and come in their order. A generator is made again for each epoch, by data()."""

    def __init__(self, data: Data, made: Any, batch: int | None, samples: int = 0, steps_per_epoch: int = 0) -> None:
        self.data, self.made, self.size, self.samples = data, made, batch, samples
        self.said, self.steps_per_epoch = steps_per_epoch, steps_per_epoch
        self.starts = [0]  # the first step of each epoch that was begun
        self.iterator: Iterator[Any] | None = None  # what batches come from
        self.epoch, self.next = 0, 0  # that is iterated over, and the step of the next batch

    @property
    def workers(self) -> int:
        """How many processes can read at once: one after another, none beside those of a DataLoader."""
        return 0 if getattr(self.made, "num_workers", 0) else 1

    def close(self) -> None:
        self.iterator = None

    def batch(self, step: int, begin: int, end: int) -> Any:
        return self.cut(self.whole(step), begin, end)

    def cut(self, batch: Any, begin: int, end: int) -> Any:
        if (begin, end) == (0, self.size):
            return batch
        return each(self.data.converted(batch), lambda t: t[begin:end] if rows(t) == self.size else t)

    def whole(self, step: int) -> Any:
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

    def located(self, step: int) -> tuple[int, int]:
        """The last epoch known to begin at or before a step, and its first step."""
        if self.said:
            epoch = step // self.said
            return epoch, epoch * self.said
        epoch = bisect.bisect_right(self.starts, step) - 1
        return epoch, self.starts[epoch]

    def start(self, epoch: int, first: int) -> None:
        if self.iterator is not None and self.iterator is self.made:  # a generator, and used up
            self.made = self.again()
        self.iterator, self.epoch, self.next = None, epoch, first
        seed_all(self.data.seed, "order", epoch)
        batch_sampler = getattr(self.made, "batch_sampler", None)
        samplers = (batch_sampler, getattr(self.made, "sampler", None), getattr(batch_sampler, "sampler", None))
        holder: Any
        for holder in (self.made, *samplers):
            if isinstance(getattr(holder, "generator", None), torch.Generator):
                holder.generator.manual_seed(derived(self.data.seed, "order", epoch)[0] >> 65)
            if callable(getattr(holder, "set_epoch", None)):
                holder.set_epoch(epoch)
        if getattr(self.made, "num_workers", 0):
            nameless()
        before = signal.getsignal(signal.SIGCHLD)
        with self.blamed():
            self.iterator = iter(self.made)
        # A DataLoader has the end of a process raised wherever this one is then; it is looked for when a batch is
        # waited for, too.
        if signal.getsignal(signal.SIGCHLD) is not before:
            signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)

    def end(self) -> None:
        """Goes on to the next epoch."""
        first = self.said * self.epoch if self.said else self.starts[self.epoch]
        if self.next == first or self.said:
            raise Refusal(
                "data",
                f"the data ends after {self.next - first} batches" + (f" of {self.said}" if self.said else ""),
                self.data.at(),
                "make sure that it can be iterated again and that there is one whole batch at least",
            )
        if self.epoch + 1 == len(self.starts):
            self.starts.append(self.next)
        self.steps_per_epoch = self.steps_per_epoch or self.next
        self.start(self.epoch + 1, self.next)

    def take(self) -> Any:
        """The next batch, or None at the end of the epoch."""
        found = self.drawn()
        if found is None or self.size is None:
            return found
        count = self.count(found)
        if count == self.size:
            return found
        if count < self.size and self.drawn() is None:  # the last one
            return None
        raise Refusal(
            "data",
            f"batch {self.next} of the data has {count} samples, and a batch has {self.size} here",
            self.data.at(),
            "make them equal, or return a Dataset",
        )

    def again(self) -> Any:
        """What can be iterated once more, where what there was is used up."""
        return self.data.read()

    def drawn(self) -> Any:
        """What stands for the next batch, or None at the end."""
        return self.draw()

    def count(self, found: Any) -> int:
        """How many samples something drawn has."""
        return max(map(rows, tensors(found)), default=0)

    def draw(self) -> Any:
        """The next batch, or None at the end."""
        assert self.iterator is not None, "start comes before"
        seed_all(self.data.seed, "batch", self.next)
        with self.blamed():
            return self.data.converted(next(self.iterator, None))

    def blamed(self) -> Blamed:
        return self.data.source.blamed(
            "data", f"batch {self.next} of the data cannot be read", "iterate over what data() returns"
        )

    def example(self, samples: int) -> Any:
        self.start(0, 0)
        found: list[tuple[int, Any]] = []  # batches, with how many samples each has
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

    def following(self, samples: int) -> Any:
        return self.example(samples)  # they come in their order


class Listed(Stream):
    """A DataLoader without processes over samples that have numbers: its sampler says which samples a batch has, and
    these are read by themselves."""

    workers = MANY  # each goes through the lists, and reads the samples of its batches

    @staticmethod
    def reads(loader: torch_data.DataLoader) -> bool:
        """Whether nothing is lost: what iterates, or fetches, is torch's."""
        return (
            type(loader).__iter__ is torch_data.DataLoader.__iter__
            and loader.num_workers == 0
            and loader.batch_sampler is not None
            and not isinstance(loader.dataset, torch_data.IterableDataset)
        )

    def __init__(
        self, data: Data, loader: torch_data.DataLoader, batch: int | None, samples: int, steps_per_epoch: int
    ) -> None:
        super().__init__(data, loader.batch_sampler, batch, samples, steps_per_epoch)
        self.numbered = Numbered(data, loader.dataset, loader.collate_fn)

    def batch(self, step: int, begin: int, end: int) -> Any:
        numbers = listed(self.whole(step))
        if self.numbered.collate is default_collate:
            return self.numbered.collated(numbers[begin:end], step, begin)
        # One of the user's may pad samples to the longest of the batch.
        return self.cut(self.numbered.collated(numbers, step), begin, end)

    def again(self) -> Any:
        return self.data.read().batch_sampler

    def drawn(self) -> Any:
        return super().draw()

    def count(self, found: Any) -> int:
        return len(found)

    def draw(self) -> Any:
        found = self.drawn()
        return None if found is None else self.data.converted(self.numbered.collated(listed(found), -1 - self.next))


def listed(numbers: Any) -> list[Any]:
    return numbers.tolist() if isinstance(numbers, torch.Tensor) else list(numbers)


def form_of(value: Any) -> Any:
    """What does not depend on how many samples a batch has, and how long they are."""
    if isinstance(value, torch.Tensor):
        return f"of {value.dim()} dimensions in {str(value.dtype)[6:]}"
    if isinstance(value, dict):
        return {name: form_of(part) for name, part in value.items()}
    if isinstance(value, (tuple, list)) and any(True for _ in tensors(value)):
        return [form_of(part) for part in value]
    return type(value).__name__


def formed(form: Any) -> str:
    """A form for people."""
    if isinstance(form, dict):
        return "{" + ", ".join(f"{name}: {formed(part)}" for name, part in form.items()) + "}"
    return "(" + ", ".join(map(formed, form)) + ")" if isinstance(form, list) else str(form)


def rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.dim() else 0


def counted(value: Any) -> int:
    """How many items are in value; 0 where it does not say."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):
        return 0
