"""Inference commands: `cloze COMMAND CHECKPOINT [TEXT]...` reads requests and answers.

An inference command is a stage without an artifact. The user's process (flows, no torch) parses
options, forwards standard input, and prints; a worker process (model) reads requests, runs the
model, and sends answers back. To add one:

1. `model/use/NAME.py`, with torch: a `Verb`.

    class Shouting(Verb[str]):
        def __init__(self, checkpoint: str, config: ShoutConfig) -> None: ...
        def read(self, request: Request) -> str:  # raises the errors of a request
            return request.text("text")
        def answer(self, group: Sequence[str]) -> Sequence[dict[str, Any]]:
            return [dict(text=text, loud=text.upper()) for text in group]

2. Its options in `model/use/configs.py`, its stage at the end of this module, without torch.

    class ShoutConfig(VerbConfig):
        times: int = Field(default=1, ge=1)
    SHOUT = predictor_stage("shout", ShoutConfig, "cloze.model.use.shout:Shouting")

3. A command in `flows/commands/inference.py`, of class `InferenceCommand`, which adds CHECKPOINT,
input options, --out and --json; `show` formats an answer for people.

4. A line in `cloze.flows.graph.stages.TOOLS` and one in `cloze.flows.cli.COMMANDS`.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from cloze.core.errors import ClozeError
from cloze.core.options import import_object
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.use import configs, requests
from cloze.model.use.configs import VerbConfig
from cloze.model.use.requests import Request

VERSION = 1
GROUP = 256  # maximum requests per call of `answer`, enough to batch by length

T = TypeVar("T")


class Verb(abc.ABC, Generic[T]):
    """Predictor of an inference command: a checkpoint in memory that answers requests."""

    @abc.abstractmethod
    def read(self, request: Request) -> T:
        """Return the input of `answer` for a request: its fields, tokenized or not.

        Raises:
            UsageError, DataError: the request lacks a field (see `Request.text`) or cannot be
                answered (see `Request.error`).
        """

    @abc.abstractmethod
    def answer(self, group: Sequence[T]) -> Sequence[dict[str, Any]]:
        """Return one JSON object per request, in order, for at most `GROUP` requests."""

    def finish(self) -> dict[str, Any]:
        """Return additional fields of the summary; called after the last request."""
        return {}


def serve(verb: Verb[Any], config: VerbConfig, first: str, build: BuildContext) -> StageResult:
    """Answer all requests of the config, those before a faulty request included.

    Args:
        first: field in a line of a plain file.

    Returns:
        summary: `answered`, the number of requests, and the fields of `Verb.finish`.

    Raises:
        UsageError, DataError: as for `Verb.read` and `cloze.model.use.requests.read`.
    """
    source: Iterator[Request | None] = requests.requests_from_args(
        config.requests, config.common, first
    )
    if config.file is not None:
        read = requests.read(
            config.file,
            config.called or config.file,
            jsonl=config.jsonl,
            common=config.common,
            first=first,
        )
        source = itertools.chain(source, read)
    answered = 0
    for group, fault in _groups(verb, source):
        if group:
            answers = verb.answer([item for _, item in group])
            build.report.predictions(
                [
                    _framed(request, found)
                    for (request, _), found in zip(group, answers, strict=True)
                ]
            )
            answered += len(group)
        if fault is not None:
            raise fault
    return StageResult(rows=answered, summary={"answered": answered, **verb.finish()})


def _groups(
    verb: Verb[Any], source: Iterator[Request | None]
) -> Iterator[tuple[list[tuple[Request, Any]], ClozeError | None]]:
    """Iterate over groups of requests, the last with the error of the request after it."""
    group: list[tuple[Request, Any]] = []
    fault: ClozeError | None = None
    try:
        for request in source:
            if request is not None:
                group.append((request, verb.read(request)))
            if group and (request is None or len(group) == GROUP):
                yield group, None
                group = []
    except ClozeError as error:
        fault = error
    yield group, fault


def _framed(request: Request, answer: dict[str, Any]) -> dict[str, Any]:
    own = {"id": request.fields["id"]} if "id" in request.fields else {}
    return {"index": request.index, **own, **answer}


def predictor_stage(name: str, config: type[VerbConfig], opens: str, first: str = "text") -> Stage:
    """Return the stage of an inference command.

    Args:
        config: config class.
        opens: `module:name` of a function of checkpoint path and config that returns a `Verb`.
        first: field in a line of a plain file.
    """

    def run(config: VerbConfig, build: BuildContext) -> StageResult:
        return serve(import_object(opens)(build.inputs["checkpoint"], config), config, first, build)

    return Stage(
        name=name,
        version=VERSION,
        config=config,
        run=run,
        inputs={"checkpoint": InputSpec(required=True)},
        worker="cloze.model",
    )


ANSWER = predictor_stage(
    "answer", configs.AnswerConfig, "cloze.model.use.answer:AnswerPredictor", first="question"
)
CLASSIFY = predictor_stage("classify", configs.ClassifyConfig, "cloze.model.use.classify:Classify")
TAG = predictor_stage("tag", configs.TagConfig, "cloze.model.use.tag:Tag")
FILL_MASK = predictor_stage(
    "fill-mask", configs.FillMaskConfig, "cloze.model.use.fill_mask:FillMask"
)
GENERATE = predictor_stage("generate", configs.GenerateConfig, "cloze.model.use.generate:Generate")
EMBED = predictor_stage("embed", configs.EmbedConfig, "cloze.model.use.embed:Embed")
SCORE_TEXTS = predictor_stage(
    "score-texts", configs.ScoreTextsConfig, "cloze.model.use.scoring:ScoreTexts"
)
