"""The commands that a process answers."""

from __future__ import annotations

from typing import Any, Callable, Dict

from spillway_runner.answers import Answers
from spillway_runner.devices import survey
from spillway_runner.evaluation import Evaluation
from spillway_runner.files import save
from spillway_runner.probe import probe
from spillway_runner.requirements import check_distributed
from spillway_runner.train import Part

Request = Dict[str, Any]
Command = Callable[[Request, Answers], Any]

LOADED: list[Part] = []  # the part of this process


def load_part(request: Request, _: Answers) -> dict[str, Any]:
    LOADED[:] = [Part(request)]
    return loaded(LOADED[0])


def loaded(part: Part) -> dict[str, Any]:
    """What the engine has to know of a part."""
    answer = {"model": part.digest, "reads": part.reads, "reads_batch": part.reads_batch, "example": part.example}
    if part.data is not None:
        answer.update(samples=part.data.samples or 0, steps_per_epoch=part.data.steps_per_epoch or 0)
    if part.evaluation is not None:
        answer["validation"] = part.evaluation.description(part)
    return answer


def load_rank(request: Request, _: Answers) -> dict[str, Any]:
    check_distributed()
    from spillway_runner.ranks import Rank  # an older torch has not all that it imports

    rank = Rank(request)
    LOADED[:] = [rank]
    return {**loaded(rank), **rank.code()}


STORES: list[Any] = []  # where ranks meet that exchange nothing but what is measured


def serve_exchange(request: Request, _: Answers) -> int:
    check_distributed()
    from spillway_runner.meeting import serve

    store, port = serve(request)
    STORES[:] = [store]
    return port


def measure_exchange(request: Request, _: Answers) -> dict[str, Any]:
    from spillway_runner.exchange import exchange

    return exchange(request, STORES[0] if STORES else None)


def export_part(request: Request, answers: Answers) -> None:
    found, metadata = LOADED[0].snapshot()
    answers.later(request["written"], lambda: save(request["path"], found, metadata))


def of_part(call: Callable[[Any, Request], Any]) -> Command:
    """A command of the loaded part."""
    return lambda request, _: call(LOADED[0], request)


def in_evaluation(call: Callable[[Evaluation, Part, Request], Any]) -> Command:
    """A command of the loaded part in evaluation mode."""

    def command(request: Request, _: Answers) -> Any:
        part = LOADED[0]
        assert part.evaluation is not None, "the engine asks where there are validation data"
        return call(part.evaluation, part, request)

    return command


COMMANDS: dict[str, Command] = {  # by name; what one returns is answered
    "survey": lambda request, _: survey(request),
    "probe": lambda request, _: probe(request),
    "load": load_part,
    "lend": of_part(lambda part, request: part.lend(request)),
    "batch": of_part(Part.batch),
    "forward": of_part(Part.forward),
    "recompute": of_part(Part.again),
    "backward": of_part(Part.backward),
    "examine": of_part(lambda part, _: part.examine()),
    "gradient_squares": of_part(lambda part, _: repr(part.gradient_squares())),  # as text: JSON has no NaN
    "step": of_part(lambda part, request: repr(part.step(request["scale"]))),
    "export": export_part,
    "import": of_part(lambda part, request: part.load(request["paths"])),
    "write": of_part(lambda part, request: part.write(request["paths"], request["path"])),
    "validation_piece": in_evaluation(Evaluation.fetch),
    "evaluate": in_evaluation(Evaluation.evaluate),
    "evaluated": in_evaluation(lambda evaluation, part, _: evaluation.means(part)),
    "judge": of_part(Part.judge),
    "end_evaluation": in_evaluation(Evaluation.end),
    "usage": of_part(lambda part, _: part.usage()),
    "distributed": lambda request, _: check_distributed(),
    "load_rank": load_rank,
    "serve_exchange": serve_exchange,
    "exchange": measure_exchange,
    "serve_store": of_part(lambda rank, request: rank.serve_store(request)),
    "join": of_part(lambda rank, request: rank.join(request)),
    "train_step": of_part(lambda rank, request: rank.train_step(request)),
    "capture": of_part(lambda rank, _: rank.capture()),
}
