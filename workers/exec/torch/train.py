"""Trains a part of a model.

This file is run after all others, in their namespace.
"""

PAGE = os.sysconf("SC_PAGE_SIZE")
FORMAT = "spillway-part-1"
TYPES = {
    "F32": torch.float32,
    "F64": torch.float64,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
TYPE_CODES = {t: code for code, t in TYPES.items()}


def resident():
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return 0


def highest():
    """The most bytes that were resident since reset_highest; 0 where the system does not tell."""
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM:")), 0)
    except OSError:
        return 0


def reset_highest():
    """Whether highest counts from now on."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return True
    except OSError:
        return False


def trim():
    """Gives memory that nobody uses back to the system."""
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):
        pass  # another C library


def warm_up():
    """Trains a small model of the usual layers for a step, on the CPU, and lets it go.

    The first passes of a process load the code of operations and allocate what libraries keep from then on: threads,
    the buffers of matrix products, tables of kernels. All that belongs to the process, whatever part it holds, and is
    to be there before it is asked what it holds. Random numbers are left as they were.
    """
    state = torch.get_rng_state()
    images, words = torch.rand(2, 3, 16, 16), torch.zeros(2, 8, dtype=torch.int64)
    sight = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 512)
    )
    speech = nn.Sequential(nn.Embedding(4, 64), nn.TransformerEncoderLayer(64, 2, 64), nn.Flatten())
    parameters = list(sight.parameters()) + list(speech.parameters())
    optimizer = torch.optim.Adam(parameters)
    products = nn.functional.linear(
        torch.rand(512, 512), sight[-1].weight
    )  # as large as those whose blocks fill the buffers
    losses = [nn.functional.cross_entropy(t, words[:, 0]) for t in (sight(images), speech(words))] + [
        nn.functional.gelu(products).square().mean()
    ]
    sum(losses).backward()
    optimizer.step()
    torch.set_rng_state(state)


class Flight:
    """A micro-batch between its forward and its backward pass."""

    def __init__(self, step, batch, arguments, leaves, origins):
        self.step, self.batch = step, batch
        self.arguments = arguments  # of the module
        self.leaves = leaves  # (part, number of the tensor in its message, tensor) of what gets a gradient
        self.origins = origins  # by part, the number of the slot in which its message lies
        self.slot = None  # of what was passed on
        self.outputs = []  # tensors that were passed on, or the loss


class Part:
    """A part of the model on its device, with its optimizer; the first part has the data."""

    def __init__(self, request):
        self.index, self.count = request["index"], len(request["parts"])
        self.last = self.index == self.count - 1
        self.batch_samples, self.micro_batches = request["batch"], request["micro_batches"]
        self.recompute = request["recompute"]
        self.set_device(request)
        if self.device.type == "cpu":
            warm_up()
        self.source = Source(request["file"])
        trim()
        self.base = resident()
        self.data = self.example = None
        if self.index == 0:
            self.data = Data(self.source, request["data"], self.batch_samples, request["seed"])
            inputs = each(
                self.data.batch(0)[0], lambda t: t[:1].clone() if t.dim() else t
            )  # the trace asks for what they are, not for numbers
            self.example = base64.b64encode(pickle.dumps(inputs)).decode()
        else:
            inputs = pickle.loads(base64.b64decode(request["example"]))
        self.build(request, inputs)
        self.arena = Arena(self.index, self.device.type == "cuda")
        self.slots = [Slot(self.arena, i) for i in range(request["in_flight"])]
        # slots of cotangents by the part that they go to, and the number of the slot whose tensors they belong to
        self.replies = {}
        self.batch_slot = Slot(self.arena, 0)
        self.micro = {}  # inputs and target of each micro-batch, of the first part
        self.flights, self.losses = {}, []
        self.written = None  # arguments that the module writes to; not known before the first run
        self.gradients = None  # which tensors that are passed on have a gradient; not known before the first run
        trim()
        self.resets = reset_highest()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def set_device(self, request):
        self.device = torch.device(request["device"])
        self.precision = torch.bfloat16 if request["precision"] == "bfloat16" else None
        if request["threads"]:
            torch.set_num_threads(request["threads"])
        if self.device.type != "cuda":
            return
        if not torch.cuda.is_available() or (self.device.index or 0) >= torch.cuda.device_count():
            raise Refusal(
                "device",
                "torch %s finds no device %s" % (torch.__version__, self.device),
                hint="train on the cpu, or install the driver and a torch with CUDA",
            )
        torch.cuda.set_device(self.device)
        if request["memory"]:
            total = torch.cuda.get_device_properties(self.device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(request["memory"] / total, 1.0), self.device)

    def build(self, request, inputs):
        """Builds the whole model, takes this part out of it and lets the rest go."""
        model = Model(self.source, {**request, "device": "cpu"}, inputs)
        self.binder = model.binder
        graph, _ = trace(model)
        add_loss(graph, self.loss)
        self.digest, names, held = model.digest(), model.names(), model.held()
        self.keys = [(key, names[id(t)]) for key, t in model.whole.state_dict(keep_vars=True).items() if id(t) in names]
        self.places = {n.name: n.meta.get("at", "") for n in graph.nodes}
        split = Split(graph, model.module, request["parts"], names)
        self.shared_inputs = {n.target for part in range(1, self.count) for n in split.placeholders(part)}
        self.reads_batch = self.index > 0 and (self.last or bool(split.placeholders(self.index)))
        self.keyed = KeyedDropout(request["seed"], self.index)
        self.module, self.sources = split.module(self.index, self.keyed.operation)
        self.reads = sorted({where for where, _ in self.sources if where != "batch"})
        # What no operation reads is kept by the first part, so that checkpoints and the trained model are whole.
        used = {id(t) for node in split.owner for t in Operation(node, model.module).all_held()}
        spare = {n: t for n, t in held.items() if id(t) not in used} if self.index == 0 else {}
        earlier = {
            id(t)
            for node, part in split.owner.items()
            if part < self.index
            for t in Operation(node, model.module).all_held()
        }
        self.copies = {
            names[id(t)] for t in self.module.buffers() if id(t) in earlier
        }  # buffers that are only read; the first part that has one exports it
        self.statistics = {
            names[id(t)]
            for node, part in split.owner.items()
            if part == self.index
            for t in Operation(node, model.module).own_buffers
        }
        self.parameters = {names[id(t)]: t for t in self.module.parameters()}
        paths = {names[id(t)]: path for path, t in self.module.named_buffers()}
        self.module.to(self.device).train()  # parameters stay the same objects, buffers need not
        self.trained = [(n, p) for n, p in self.parameters.items() if p.requires_grad]
        self.buffers = {name: attribute(self.module, path) for name, path in paths.items()}
        self.parameters.update((n, t) for n, t in spare.items() if isinstance(t, nn.Parameter))
        self.buffers.update((n, t) for n, t in spare.items() if not isinstance(t, nn.Parameter))
        self.recipe = Recipe(self.source, request["optimizer"])
        self.optimizer = self.recipe.optimizer(self.trained)
        self.scheduler = self.recipe.scheduler(self.optimizer)
        self.target, self.share = None, 1.0

    # A micro-batch.

    def span(self, micro_batch):
        """The first sample of a micro-batch and that of the next."""
        return micro_batch * self.batch_samples // self.micro_batches, (
            micro_batch + 1
        ) * self.batch_samples // self.micro_batches

    def loss(self, output):
        """The operation that ends the graph: the micro-batch's share of the batch's mean loss."""
        return self.recipe.loss(output, self.target) * self.share

    def run(self, flight, micro_batch):
        begin, end = self.span(micro_batch)
        self.target, self.share = flight.batch.get("target"), (end - begin) / self.batch_samples
        cast = torch.autocast(self.device.type, dtype=self.precision) if self.precision else contextlib.nullcontext()
        arguments = flight.arguments
        first = self.written is None
        if first or self.written:
            arguments = [each(a, torch.clone) if first or i in self.written else a for i, a in enumerate(arguments)]
        try:
            with self.keyed.micro_batch(flight.step, begin, end - begin), cast:
                value = self.module(*arguments)
        except Refusal:
            raise
        except Exception as error:
            raise self.failed(error) from error
        if first:
            self.written = {i for i, a in enumerate(arguments) if any(t._version > 0 for t in tensors(a))}
        return value

    def failed(self, error):
        fields = fields_of(error)
        if fields["kind"] == "memory":
            held = " (%d bytes of parameters)" % sum(map(size, self.parameters.values()))
            return Refusal(
                "memory",
                "part %d%s on %s: %s" % (self.index, held, self.device, fields["message"]),
                hint=fields["hint"],
            )
        name = self.keyed.layer
        inside = traceback.extract_tb(error.__traceback__)
        at = self.source.place(error) if any(users(f.filename) for f in inside) else self.places.get(name, "")
        return Refusal(
            "run",
            "operation %s fails: %s" % (name, described(error)),
            at or self.source.path,
            "make the model run on a batch of the data first",
            traced(error),
        )

    def receive(self, batch, messages):
        """The arguments of the module, and those tensors of them that get a gradient."""
        arguments, leaves, made = [], [], {}
        for where, what in self.sources:
            if where == "batch":
                arguments.append(batch["inputs"][what])
                continue
            message = messages[str(where)]

            def tensor(number, where=where, message=message):
                if (where, number) not in made:
                    offset, kind, shape, gradient = message["tensors"][number]
                    t = self.arena.tensor(message["at"], message["bytes"], offset, TYPE_NAMES[kind], shape).to(
                        self.device, non_blocking=True
                    )
                    if gradient:
                        leaves.append((where, number, t.requires_grad_()))
                    made[where, number] = t
                return made[where, number]

            arguments.append(restore(message["values"][what], tensor))
        return arguments, leaves

    def batch_of(self, request):
        """Inputs and target of a micro-batch."""
        if self.index == 0:
            return self.micro[request["micro_batch"]]
        message = request.get("batch")
        if not message:
            return {"inputs": {}}
        take = lambda i: self.arena.tensor(message["at"], message["bytes"], *self.typed(message["tensors"][i])).to(
            self.device, non_blocking=True
        )
        inputs = {name: restore(form, take) for name, form in message["inputs"].items()}
        return {"inputs": inputs, "target": restore(message["target"], take)}

    @staticmethod
    def typed(place):
        offset, kind, shape = place
        return offset, TYPE_NAMES[kind], shape

    def forward(self, request):
        micro_batch = request["micro_batch"]
        if micro_batch in self.flights:
            raise Refusal(
                "order",
                "part %d: the forward pass of micro-batch %d comes before the backward pass of the last one"
                % (self.index, micro_batch),
            )
        if not self.slots:
            raise Refusal("order", "part %d: more micro-batches are in flight than it was loaded for" % self.index)
        batch, messages = self.batch_of(request), request.get("from") or {}
        arguments, leaves = self.receive(batch, messages)
        flight = Flight(
            request["step"], batch, arguments, leaves, {int(part): m["slot"] for part, m in messages.items()}
        )
        learn = self.written is None
        with torch.set_grad_enabled(learn or not self.recompute):
            value = self.run(flight, micro_batch)
        if self.last:
            self.losses.append(value.detach())
            flight.outputs = [value]
            message = None
        else:
            flight.slot = self.slots.pop()
            message = self.send(flight, value)
        if self.recompute:
            flight.outputs = []
        self.flights[micro_batch] = flight
        return message

    def send(self, flight, value):
        found = []
        forms = [flatten(v, found) for v in value]
        if self.gradients is None:
            self.gradients = [t.requires_grad for t in found]
        copies, places = flight.slot.write(found)
        flight.outputs = found
        if self.device.type == "cpu":
            for t, copy in zip(found, copies):
                if not t.is_leaf:
                    t.data = copy  # the backward pass needs its history, and its numbers are in the slot until then
        return {
            "slot": flight.slot.number,
            "at": flight.slot.at,
            "bytes": flight.slot.count,
            "values": forms,
            "tensors": [p + [g] for p, g in zip(places, self.gradients)],
        }

    def again(self, request):
        """Repeats the forward pass of a micro-batch from its inputs. What the first one did to the buffers is not done
        again."""
        micro_batch = request["micro_batch"]
        flight = self.flights.get(micro_batch)
        if flight is None:
            raise Refusal(
                "order", "part %d: there is no forward pass of micro-batch %d to repeat" % (self.index, micro_batch)
            )
        before = [(self.buffers[n], self.buffers[n].detach().clone()) for n in self.statistics]
        value = self.run(flight, micro_batch)
        for buffer, values in before:
            buffer.data.copy_(values)  # .data: autograd need not know
        found = []
        flatten(value, found)
        flight.outputs = found

    def backward(self, request):
        micro_batch = request["micro_batch"]
        flight = self.flights.pop(micro_batch, None)
        if flight is None:
            raise Refusal("order", "part %d: there is no forward pass of micro-batch %d" % (self.index, micro_batch))
        roots, cotangents = [], None
        try:
            if self.last:
                roots = flight.outputs if flight.outputs[0].requires_grad else []
            else:
                roots, cotangents = self.gather(flight, request.get("cotangents") or {})
            if roots:
                torch.autograd.backward(roots, cotangents)
        except Refusal:
            raise
        except Exception as error:
            raise self.failed(error) from error
        if flight.slot is not None:
            self.slots.append(flight.slot)
        messages = self.reply(flight)
        if not messages:
            self.finish()  # what was received may be overwritten now
        return messages

    def gather(self, flight, messages):
        """The outputs that have cotangents, and their sums, from the last part that read them to the first."""
        sums = {}
        for part in sorted(messages, key=int, reverse=True):
            message = messages[part]
            for number, *place in message["tensors"]:
                t = self.arena.tensor(message["at"], message["bytes"], *self.typed(place)).to(
                    self.device, non_blocking=True
                )
                sums[number] = t if number not in sums else sums[number] + t
        numbers = [n for n in sorted(sums) if flight.outputs[n].requires_grad]
        return [flight.outputs[n] for n in numbers], [sums[n] for n in numbers]

    def reply(self, flight):
        """The cotangents of what was received, by the part that it came from."""
        gradients = {}
        for part, number, leaf in flight.leaves:
            if leaf.grad is not None:
                gradients.setdefault(part, []).append((number, leaf.grad))
        messages = {}
        for part, found in gradients.items():
            key = part, flight.origins[part]
            if key not in self.replies:
                self.replies[key] = Slot(self.arena, key[1])
            slot = self.replies[key]
            _, places = slot.write([t for _, t in found])
            messages[part] = {
                "at": slot.at,
                "bytes": slot.count,
                "tensors": [[n] + place for (n, _), place in zip(found, places)],
            }
        return messages

    # A step.

    def batch(self, request):
        """Fetches a batch and returns what other parts read of each micro-batch."""
        inputs, target = self.data.batch(request["step"])
        inputs = self.binder.placeholders(self.binder.bind(inputs, "cpu"))
        spans = [self.span(m) for m in range(self.micro_batches)]
        rows = lambda begin, end: lambda t: t[begin:end] if t.dim() and t.shape[0] == self.batch_samples else t
        self.micro = {}
        for m, span in enumerate(spans):
            own = each({"inputs": inputs, "target": target if self.last else None}, rows(*span))
            self.micro[m] = each(own, lambda t: t.to(self.device, non_blocking=True))
        samples = [end - begin for begin, end in spans]
        if self.last:
            return {"micro_batches": [None] * len(spans), "samples": samples}
        found = []
        forms = {name: flatten(inputs[name], found) for name in sorted(self.shared_inputs)}
        target = flatten(target, found)
        _, places = self.batch_slot.write(found)
        messages = []
        for begin, end in spans:
            cut = [self.rows_of(place, begin, end) for place in places]
            messages.append(
                {
                    "at": self.batch_slot.at,
                    "bytes": self.batch_slot.count,
                    "inputs": forms,
                    "target": target,
                    "tensors": cut,
                }
            )
        return {"micro_batches": messages, "samples": samples}

    def rows_of(self, place, begin, end):
        """Where the rows of a micro-batch are in a tensor that was written."""
        offset, kind, shape = place
        if not shape or shape[0] != self.batch_samples:
            return place
        row = math.prod(shape[1:]) * torch.empty(0, dtype=TYPE_NAMES[kind]).element_size()
        return [offset + begin * row, kind, [end - begin] + shape[1:]]

    def finish(self):
        """Waits until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def gradient_squares(self):
        """The sum of the squares of the gradients, in double precision and in the order of the parameters."""
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float64) for _, p in self.trained if p.grad is not None]
        return math.fsum(n * n for n in torch.stack(norms).tolist()) if norms else 0.0

    def step(self, scale):
        if self.flights:
            raise Refusal(
                "order", "part %d: a step with %d micro-batches between their passes" % (self.index, len(self.flights))
            )
        if scale != 1:
            for _, p in self.trained:
                if p.grad is not None:
                    p.grad.mul_(scale)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.finish()
        loss = sum(torch.stack(self.losses).double().tolist()) if self.losses else 0.0
        self.losses = []
        return loss

    # What outlives the process.

    def snapshot(self):
        """A copy of what was learnt, and what describes it."""
        found = {"parameter/" + n: t for n, t in self.parameters.items()}
        found.update(("buffer/" + n, t) for n, t in self.buffers.items() if n not in self.copies)
        found.update(self.recipe.optimizer_state(self.optimizer, self.trained))
        metadata = {
            "format": FORMAT,
            "model": self.digest,
            "groups": json.dumps(self.recipe.optimizer_groups(self.optimizer, self.trained)),
            "scheduler": json.dumps(self.recipe.scheduler_state(self.scheduler)),
        }
        return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in found.items()}, metadata

    def load(self, paths):
        """Replaces parameters, buffers and the optimizer's state by those in files of any split."""
        found = Files(paths, self.digest)
        mine = {name for name, _ in self.trained}
        state = {
            key: found.read(key) for key in found.where if key.startswith("optimizer/") and key.split("/", 2)[2] in mine
        }
        pairs = []  # all is read before anything is replaced
        for prefix, own in (("parameter/", self.parameters), ("buffer/", self.buffers)):
            for name, tensor in own.items():
                loaded = found.read(prefix + name)
                if loaded.shape != tensor.shape or loaded.dtype != tensor.dtype:
                    raise Refusal(
                        "state",
                        "%s is %s of %s in the file, and %s of %s in the model"
                        % (name, shape(loaded), loaded.dtype, shape(tensor), tensor.dtype),
                        found.where[prefix + name][0],
                        "use the files of this model",
                    )
                pairs.append((tensor, loaded))
        for tensor, loaded in pairs:
            tensor.data.copy_(loaded)
        self.recipe.load_optimizer_state(self.optimizer, self.trained, state)
        self.recipe.load_optimizer_groups(
            self.optimizer, self.trained, [g for m in found.metadata for g in json.loads(m.get("groups", "[]"))]
        )
        schedulers = [json.loads(m["scheduler"]) for m in found.metadata if "scheduler" in m]
        if schedulers:
            self.recipe.load_scheduler_state(self.scheduler, schedulers[0])
        self.slots += [f.slot for f in self.flights.values() if f.slot is not None]
        self.flights, self.losses = {}, []
        self.optimizer.zero_grad(set_to_none=True)

    def write(self, paths, path):
        """Makes the state_dict of the unsplit model, as torch.load reads it."""
        found = Files(paths, self.digest)
        made, whole = {}, {}
        for key, name in self.keys:
            if name not in made:
                made[name] = found.read("parameter/" + name if "parameter/" + name in found.where else "buffer/" + name)
            whole[key] = made[name]
        replace(path, lambda file: torch.save(whole, file))

    def usage(self):
        peak = 0
        if self.device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self.device)
        elif self.resets:
            peak = max(highest() - self.base, 0)
        state = self.recipe.optimizer_state(self.optimizer, self.trained)
        return {
            "parameters": sum(map(size, self.parameters.values())),
            "gradients": sum(size(p) for _, p in self.trained),
            "optimizer": sum(map(size, state.values())),
            "buffers": sum(map(size, self.buffers.values())),
            "peak": peak,
        }


# Files of tensors, as package state of Spillway has them.


def replace(path, fill):
    """Writes a file that takes its name when it is whole and on the disk."""
    temporary = path + ".tmp"
    try:
        with open(temporary, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
    directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def save(path, found, metadata):
    header, end = {"__metadata__": metadata}, 0
    for name, t in found.items():
        if t.dtype not in TYPE_CODES:
            raise Refusal(
                "state",
                "%s is of %s, which a checkpoint cannot hold" % (name, t.dtype),
                hint="use one of %s" % ", ".join(str(k) for k in TYPE_CODES),
            )
        header[name] = {"dtype": TYPE_CODES[t.dtype], "shape": list(t.shape), "data_offsets": [end, end + size(t)]}
        end += size(t)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def fill(file):
        file.write(len(text).to_bytes(8, "little") + text)
        for t in found.values():
            if t.numel():
                file.write((ctypes.c_char * size(t)).from_address(t.data_ptr()))

    replace(path, fill)


class Files:
    """The tensors in files of one model's parts, by name. Where several files have one, it is the first one's."""

    def __init__(self, paths, digest):
        self.where, self.metadata = {}, []
        for path in paths:
            try:
                with open(path, "rb") as file:
                    length = int.from_bytes(file.read(8), "little")
                    if length > os.path.getsize(path):
                        raise ValueError("it is cut short")
                    header = json.loads(file.read(length))
                    metadata = header.pop("__metadata__", {})
                    if max([e["data_offsets"][1] for e in header.values()], default=0) + 8 + length != os.path.getsize(
                        path
                    ):
                        raise ValueError("it has %d bytes" % os.path.getsize(path))
            except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                raise Refusal(
                    "state",
                    "cannot read what was exported: %s" % described(error),
                    path,
                    "use a file that an export wrote",
                )
            if metadata.get("format") != FORMAT:
                raise Refusal(
                    "state",
                    "the format is %s, not %s" % (metadata.get("format"), FORMAT),
                    path,
                    "use a file that an export of this version wrote",
                )
            if metadata.get("model") != digest:
                raise Refusal(
                    "state",
                    "it belongs to another model",
                    path,
                    "use the files of this model: its parameters' names, shapes and types must be the same",
                )
            self.metadata.append(metadata)
            for name, entry in header.items():
                self.where.setdefault(name, (path, 8 + length, entry))

    def read(self, name):
        if name not in self.where:
            raise Refusal("state", "no file has %s" % name, hint="give the files of all parts")
        path, start, entry = self.where[name]
        (begin, end), kind = entry["data_offsets"], TYPES.get(entry["dtype"])
        tensor = torch.empty(entry["shape"], dtype=kind or torch.uint8)
        if kind is None or size(tensor) != end - begin:
            raise Refusal(
                "state",
                "%s has %d bytes for %s of %s" % (name, end - begin, entry["shape"], entry["dtype"]),
                path,
                "use a file that an export wrote",
            )
        if tensor.numel():
            with open(path, "rb", buffering=0) as file:
                file.seek(start + begin)
                memory = memoryview((ctypes.c_char * size(tensor)).from_address(tensor.data_ptr())).cast("B")
                while len(memory):
                    count = file.readinto(memory)
                    if not count:
                        raise Refusal("state", "it is cut short", path, "use a file that an export wrote")
                    memory = memory[count:]
        return tensor


# The commands.

LOADED = []  # the part of this process


def load_part(request, _):
    LOADED[:] = [Part(request)]
    part = LOADED[0]
    answer = {"model": part.digest, "reads": part.reads, "reads_batch": part.reads_batch, "example": part.example}
    if part.data is not None:
        answer.update(samples=part.data.samples or 0, steps_per_epoch=part.data.steps_per_epoch or 0)
    return answer


def export_part(request, answers):
    found, metadata = LOADED[0].snapshot()
    answers.later(request["written"], lambda: save(request["path"], found, metadata))


def of_part(call):
    """A command of the loaded part."""
    return lambda request, _: call(LOADED[0], request)


COMMANDS.update(
    load=load_part,
    batch=of_part(Part.batch),
    forward=of_part(Part.forward),
    recompute=of_part(Part.again),
    backward=of_part(Part.backward),
    gradient_squares=of_part(lambda part, _: repr(part.gradient_squares())),  # as text: JSON has no NaN
    step=of_part(lambda part, request: repr(part.step(request["scale"]))),
    export=export_part,
    usage=of_part(lambda part, _: part.usage()),
)
COMMANDS["import"] = of_part(lambda part, request: part.load(request["paths"]))
COMMANDS["write"] = of_part(lambda part, request: part.write(request["paths"], request["path"]))
