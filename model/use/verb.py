"""Inference commands: `cloze COMMAND CHECKPOINT [TEXT]...` reads requests and answers.

An inference command is a stage without an artifact. The user's process (flows, no torch) parses
options, forwards standard input, and prints; a worker process (model) reads requests, runs the
model, and sends answers back. To add one:

1. `model/use/NAME.py`, with torch: a `Verb`.

    class Shouting(Verb[str]):
        def __init__(self, checkpoint: str, config: ShoutConfig) -> None: ...
        def read(self, request: Request) -> str:  # raises the errors of a request
            return request.text("text")
        def answer(self, encoded: Sequence[str]) -> Sequence[dict[str, Any]]:
            return [dict(text=text, loud=text.upper()) for text in encoded]

2. Its options in `model/use/configs.py`, its row and stage at the end of this module, no torch.

    class ShoutConfig(VerbConfig):
        times: int = Field(default=1, ge=1)
    PREDICTORS["shout"] = Predictor(ShoutConfig, "cloze.model.use.shout:Shouting")
    SHOUT = verb_stage("shout", PREDICTORS["shout"])

3. A command in `flows/commands/inference.py`, of class `InferenceCommand`, which adds CHECKPOINT,
input options, --out and --json; `show` formats an answer for people.

4. A line in `cloze.flows.graph.stages.TOOLS` and one in `cloze.flows.cli.COMMANDS`.
"""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pkgutil import resolve_name
from typing import Any, Generic, NamedTuple, TypeVar

from cloze.core import storage
from cloze.core.errors import ClozeError
from cloze.core.plugins import Table
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.use import configs
from cloze.model.use.configs import VerbConfig
from cloze.model.use.request import Request, read_requests, typed_requests

VERSION = 1
# Maximum requests and characters of a window: enough to sort by length, and bounded memory.
GROUP, CHARACTERS = 1024, 1 << 22
SENT = 64  # answers per event

T = TypeVar("T")


class Verb(abc.ABC, Generic[T]):
    """Predictor of an inference command: a checkpoint in memory that answers requests.

    Attributes:
        group_size: maximum number of requests whose answers are in memory together.
    """

    group_size: int = GROUP

    @abc.abstractmethod
    def read(self, request: Request) -> T:
        """Return the input of `answer` for a request: its fields, tokenized or not.

        Raises:
            UsageError, DataError: the request lacks a field (see `Request.text`) or cannot be
                answered (see `Request.error`).
        """

    def encode(self, group: Sequence[T]) -> Any:
        """Return the input of `answer` for at most `group_size` requests; a thread calls it ahead.

        Tokenize here: it takes place while the model computes. Default: the requests.
        """
        return group

    @abc.abstractmethod
    def answer(self, encoded: Any) -> Sequence[dict[str, Any]]:
        """Return one JSON object per request, in order, for the result of `encode`."""

    def finish(self) -> dict[str, Any]:
        """Return additional fields of the summary; called after the last request."""
        return {}


class EncodedGroup(NamedTuple):
    """Requests with what `Verb.encode` returned; `fault` is the error of the next request."""

    requests: Sequence[Request]
    encoded: Any
    fault: ClozeError | None


def serve(verb: Verb[Any], config: VerbConfig, first: str, build: BuildContext) -> StageResult:
    """Answer all requests of the config, those before a faulty request included.

    Reports progress in bytes of the file. A thread reads and tokenizes the next group of requests
    while the model computes.

    Args:
        first: field in a line of a plain file.

    Returns:
        summary: `answered`, the number of requests, and the fields of `Verb.finish`.

    Raises:
        UsageError, DataError: as for `Verb.read` and `read_requests`.
    """
    requests: Iterator[Request | None] = typed_requests(config, first)
    if config.file is not None:
        requests = itertools.chain(requests, read_requests(config.file, config, first))
    answered, size = 0, None if config.file is None else _size(config.file)
    for group, answers in answer_requests(verb, requests):
        pairs = zip(group, answers, strict=True)
        framed = [_framed(request, answer) for request, answer in pairs]
        for begin in range(0, len(framed), SENT):
            build.report.predictions(framed[begin : begin + SENT])
        answered += len(group)
        if config.file is not None:
            build.report.progress(group[-1].end, size, "bytes", {"answered": answered})
    return StageResult(rows=answered, summary={"answered": answered, **verb.finish()})


def answer_requests(
    verb: Verb[Any], requests: Iterable[Request | None]
) -> Iterator[tuple[Sequence[Request], Sequence[dict[str, Any]]]]:
    """Iterate over groups of requests with their answers, in order.

    Args:
        requests: requests; None closes a group.

    Raises:
        UsageError, DataError: as for `Verb.read`; requests before the faulty one are answered.
    """
    from cloze.model.data.batch import Prefetch  # torch

    groups = Prefetch(_encoded_groups(verb, requests), depth=1)
    try:
        for group in groups:
            if group.requests:
                yield group.requests, verb.answer(group.encoded)
            if group.fault is not None:
                raise group.fault
    finally:
        groups.close()  # the thread may wait for a line, so nobody waits for it


def _encoded_groups(verb: Verb[Any], source: Iterable[Request | None]) -> Iterator[EncodedGroup]:
    """Iterate over groups of requests, the last with the error of the request after it."""
    group: list[tuple[Request, Any]] = []
    fault: ClozeError | None = None
    characters = 0

    def close() -> EncodedGroup:
        encoded = verb.encode([item for _, item in group]) if group else None
        return EncodedGroup([request for request, _ in group], encoded, fault)

    try:
        for request in source:
            if request is not None:
                group.append((request, verb.read(request)))
                characters += sum(
                    len(text) for text in request.fields.values() if isinstance(text, str)
                )
            if group and (
                request is None or len(group) == verb.group_size or characters > CHARACTERS
            ):
                yield close()
                group, characters = [], 0
    except ClozeError as error:
        fault = error
    yield close()


def _size(path: str) -> int | None:
    """Return the bytes of a regular local file; None: unknown, as for a pipe."""
    if not storage.is_local(path):
        return None
    local = storage.filesystem(path)[1]
    return os.path.getsize(local) if os.path.isfile(local) else None


def _framed(request: Request, answer: dict[str, Any]) -> dict[str, Any]:
    identifier = {"id": request.fields["id"]} if "id" in request.fields else {}
    return {"index": request.index, **identifier, **answer}


class Predictor(NamedTuple):
    """Entry of a verb; its functions are named as `module:name`.

    Attributes:
        opens: function of checkpoint and config that returns a `Verb`.
        first: field of a plain line.
        pipeline: function of a checkpoint that returns what `served` asks; empty: MLflow has no
            model of this verb.
        served: function of pipeline, input and parameters that answers MLflow with a table, see
            `cloze.model.pyfunc`.
    """

    config: type[VerbConfig]
    opens: str
    first: str = "text"
    pipeline: str = ""
    served: str = ""


def _of(
    config: type[VerbConfig], module: str, names: str, served: str, first: str = "text"
) -> Predictor:
    """Return the entry of a verb of this package; `names`: its `Verb`, and its pipeline."""
    opens, pipeline = (f"cloze.model.use.{module}:{name}" for name in names.split())
    return Predictor(config, opens, first, pipeline, f"cloze.model.pyfunc:{served}")


# By the name of the command.
_PREDICTORS = {
    "answer": _of(
        configs.AnswerConfig,
        "answer",
        "AnswerPredictor QuestionAnsweringPipeline",
        "answer_questions",
        "question",
    ),
    "classify": _of(
        configs.ClassifyConfig, "classify", "open_classifier TextClassificationPipeline", "classify"
    ),
    "tag": _of(configs.TagConfig, "tag", "Tag TokenClassificationPipeline", "tag"),
    "fill-mask": _of(
        configs.FillMaskConfig, "fill_mask", "FillMask FillMaskPipeline", "fill_masks"
    ),
    "embed": _of(configs.EmbedConfig, "embed", "Embed EmbeddingPipeline", "embed"),
    "score": Predictor(configs.ScoreTextsConfig, "cloze.model.use.scoring:ScoreTexts"),
}
PREDICTORS: Table[Predictor] = Table("verbs", "verb", _PREDICTORS)


def open_verb(name: str, checkpoint: str, config: VerbConfig) -> Verb[Any]:
    """Load a checkpoint for a verb; raises what its class raises."""
    verb: Verb[Any] = resolve_name(PREDICTORS[name].opens)(checkpoint, config)
    return verb


def verb_stage(name: str, verb: Predictor) -> Stage:
    """Return the stage of an inference command."""

    def run(config: VerbConfig, build: BuildContext) -> StageResult:
        opened = resolve_name(verb.opens)(build.inputs["checkpoint"], config)
        return serve(opened, config, verb.first, build)

    return Stage(
        name=name,
        version=VERSION,
        config=verb.config,
        run=run,
        inputs={"checkpoint": InputSpec(required=True)},
        worker="cloze.model",
    )


ANSWER, CLASSIFY, TAG, FILL_MASK, EMBED = (
    verb_stage(name, verb) for name, verb in _PREDICTORS.items() if name != "score"
)
SCORE_TEXTS = verb_stage("score-texts", _PREDICTORS["score"])
