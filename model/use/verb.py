"""Inference commands: `cloze COMMAND CHECKPOINT [TEXT]...` reads requests and answers.

An inference command is a stage without an artifact. The user's process (flows, no torch) parses
options, forwards standard input, and prints; a worker process (model) reads requests, runs the
model, and sends answers back. To add one:

1. A module with torch: a `Verb`.

    class Shouting(Verb[str]):
        def __init__(self, checkpoint: str, config: ShoutConfig) -> None: ...
        def read(self, request: Request) -> str:  # raises the errors of a request
            return request.text("text")
        def answer(self, encoded: Sequence[str]) -> Sequence[dict[str, Any]]:
            return [dict(text=text, loud=text.upper()) for text in encoded]

2. A module without torch: its options, its row and its stage.

    class ShoutConfig(VerbConfig):
        times: int = Field(default=1, ge=1)
    SHOUT = Predictor(ShoutConfig, "package.shout:Shouting")
    SHOUT_STAGE = verb_stage("shout", SHOUT)

3. A command of class `InferenceCommand`, which adds CHECKPOINT, input options, --out and --json;
`show` formats an answer for people.

4. Rows of a plug-in in the tables `verbs`, `tools` and `commands`, as in `labs/serving/plugin.py`.
The core has `fill-mask` alone: the report of a run fills masks.
"""

from __future__ import annotations

import abc
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from cloze.core import storage
from cloze.core.errors import ClozeError, UsageError
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


class TableColumns(NamedTuple):
    """Columns and parameters of a checkpoint in MLflow.

    Attributes:
        outputs: `NAME:TYPE` of each column, with MLflow's types.
        inputs: names of text columns. A model of single texts has no input schema: MLflow's
            would refuse lists, or tables with further columns.
        params: integer parameters and their defaults.
    """

    outputs: str
    inputs: tuple[str, ...] = ("text",)
    params: Mapping[str, int] = MappingProxyType({})


class Predictor(NamedTuple):
    """Entry of a verb; its functions are named as `module:name`.

    Attributes:
        opens: function of checkpoint and config that returns a `Verb`.
        first: field of a plain line.
        heads: heads of a checkpoint that this verb answers with, where nobody names a verb.
        examples: requests, of which a checkpoint accepts one; empty: the verb is not served.
        columns: function of a checkpoint's config; None: MLflow has no model of this verb.
        pipeline: function of a checkpoint that returns what `served` asks.
        served: function of pipeline, input and parameters that answers MLflow with a table, see
            `cloze.model.pyfunc`.
    """

    config: type[VerbConfig]
    opens: str
    first: str = "text"
    heads: tuple[str, ...] = ()
    examples: tuple[dict[str, Any], ...] = ()
    columns: Callable[[Mapping[str, Any]], TableColumns] | None = None
    pipeline: str = ""
    served: str = ""


_FILL_MASK = Predictor(
    configs.FillMaskConfig,
    "cloze.model.use.fill_mask:FillMask",
    heads=("masked_lm",),
    examples=({"text": "The capital of France is [MASK]."},),
    columns=lambda config: TableColumns(
        "text:long mask:long token:string score:double sequence:string", params={"top_k": 5}
    ),
    pipeline="cloze.model.use.fill_mask:FillMaskPipeline",
    served="cloze.model.pyfunc:fill_masks",
)
# By the name of the command.
PREDICTORS: Table[Predictor] = Table("verbs", "verb", {"fill-mask": _FILL_MASK})


def verb_of_heads(heads: Mapping[str, Any]) -> str | None:
    """Return the first verb that answers with one of a checkpoint's heads; None: there is none."""
    from cloze.model.families.config import prediction_objectives

    # A masked_lm head that was trained left to right alone continues texts.
    own = {"lm"} if set(prediction_objectives(heads)) == {"clm"} else set(heads)
    rows = PREDICTORS.loaded().items()
    return next((name for name, verb in rows if own.intersection(verb.heads)), None)


def verb_of(path: str) -> str:
    """Return the verb of a checkpoint, see `verb_of_heads`.

    Raises:
        UsageError: no verb answers with its heads.
    """
    from cloze.model import checkpoint  # torch

    directory = checkpoint.resolve(path)
    heads = storage.read_json(storage.join(directory, checkpoint.CONFIG))["heads"]
    if (name := verb_of_heads(heads)) is None:
        raise UsageError(f"{path} has no head that a verb answers with ({', '.join(heads)})")
    return name


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


FILL_MASK = verb_stage("fill-mask", _FILL_MASK)
