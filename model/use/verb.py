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
import contextlib
import itertools
import json
import select
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import IO, Any, Generic, TypeVar

from cloze.core import storage
from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult
from cloze.model.tasks.formats.lines import load_json
from cloze.model.use import configs
from cloze.model.use.configs import VerbConfig

# Requests, from the command line, a file or a pipe. A line of a plain file is one field of a
# request. A line of a JSONL file is an object with the command's fields; `id` is returned with the
# answer, other keys are ignored. Blank lines are skipped. The `index` of an answer is its line
# number, from 0.

LONGEST = 1 << 24  # maximum bytes of a line
_CHUNK = 1 << 16
_SHOWN = 60  # maximum characters of a text in a message


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Request to an inference command.

    Attributes:
        index: number, from 0, of the text on the command line or of the line in the file.
        fields: fields of the command by name.
        where: name in messages: `reviews.txt, line 7`, or the text itself.
        typed: given on the command line, not in a file.
    """

    index: int
    fields: Mapping[str, Any]
    where: str
    typed: bool = False

    def text(self, name: str) -> str:
        """Return a text field.

        Raises:
            UsageError, DataError: the field is missing or no text.
        """
        value = self.fields.get(name)
        if value is None:
            raise self.error(
                f"has no {name!r} (it has {', '.join(sorted(self.fields)) or 'nothing'}); add it"
            )
        if not isinstance(value, str):
            raise self.error(
                f"has a {name!r} that is no text ({shortened(json.dumps(value))}); write it as a "
                f"string"
            )
        if "\0" in value:
            raise self.error(f"has a NUL character in {name!r}; remove it")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise self.error(f"has half a character in {name!r} (it is no UTF-8); remove it")
        return value

    def optional(self, name: str) -> str | None:
        """Return a text field, or None if it is missing. Raises as `text`."""
        return None if self.fields.get(name) is None else self.text(name)

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """Add the file's line to errors, as DataError; errors of typed requests are unchanged."""
        try:
            yield
        except ClozeError as error:
            if self.typed or str(error).startswith(self.where):
                raise
            raise DataError(f"{self.where}: {error}") from None

    def error(self, what: str) -> ClozeError:
        """Return the error for this request; `what` is a verb phrase and, after `;`, the remedy."""
        return (UsageError if self.typed else DataError)(f"{self.where} {what}")


def typed_requests(config: VerbConfig, first: str) -> Iterator[Request]:
    """Iterate over requests of the command line; `first` as for `read_requests`."""
    for number, arguments in enumerate(config.requests):
        where = f"the {first} {shortened(str(arguments.get(first)))!r}"
        yield Request(index=number, fields={**config.common, **arguments}, where=where, typed=True)


def read_requests(path: str, config: VerbConfig, first: str) -> Iterator[Request | None]:
    """Iterate over requests of a file; yields None while a pipe has no more lines.

    Args:
        config: says how the lines are read.
        first: field in a plain line.

    Raises:
        DataError: the file is missing or blank, or a line is no UTF-8, too long, or no JSON object.
    """
    any_request, number, called = False, 0, config.called or path
    for line in _lines(path, called):
        if line is None:
            yield None
            continue
        number += 1
        where = f"{called}, line {number}"
        try:
            text = line.removesuffix(b"\r").decode().removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where} is no UTF-8 (byte {error.object[error.start]:#04x}); convert the file"
            ) from None
        if text.strip():
            any_request = True
            fields = {**config.common, **(_object(text, where) if config.jsonl else {first: text})}
            yield Request(index=number - 1, fields=fields, where=where)
    if not any_request:
        raise DataError(
            f"{called} has no lines (only blank ones at most); give it one {first} a line"
        )


def _lines(path: str, called: str) -> Iterator[bytes | None]:
    """Iterate over lines without their ends; at most about `LONGEST` bytes are in memory."""
    with _opened(path, called) as handle:
        pieces: list[bytes] = []  # parts of a line without its end
        number = 1
        while chunk := handle.read(_CHUNK):
            for index, piece in enumerate(chunk.split(b"\n")):
                if index:
                    yield b"".join(pieces)
                    pieces, number = [], number + 1
                pieces.append(piece)
            if len(pieces) * _CHUNK > LONGEST and sum(map(len, pieces)) > LONGEST:
                raise DataError(
                    f"{called}, line {number} is longer than {LONGEST:,} bytes; name a file of "
                    f"lines"
                )
            if not _ready(handle):
                yield None
        if any(pieces):
            yield b"".join(pieces)


def _opened(path: str, called: str) -> IO[bytes]:
    if not storage.is_local(path):
        return storage.open_input(path)
    try:  # unbuffered: a pipe returns available bytes without waiting
        return open(storage.filesystem(path)[1], "rb", buffering=0)
    except (FileNotFoundError, IsADirectoryError) as error:
        problem = "does not exist" if isinstance(error, FileNotFoundError) else "is a directory"
        raise DataError(
            f"{called} {problem}; name a file of lines, or - for standard input"
        ) from None


def _ready(handle: IO[bytes]) -> bool:
    """Return True if reading does not block."""
    try:
        return bool(select.select([handle], [], [], 0)[0])
    except (OSError, ValueError):  # a file of an object store has no descriptor
        return True


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        content = load_json(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is no JSON ({error}); write one object a line") from None
    if not isinstance(content, dict):
        raise DataError(
            f"{where} contains no JSON object ({shortened(text)}); write one object a line"
        )
    return content


def shortened(text: str) -> str:
    """Shorten a text for messages."""
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "…"


# Commands.

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
        UsageError, DataError: as for `Verb.read` and `read_requests`.
    """
    requests: Iterator[Request | None] = typed_requests(config, first)
    if config.file is not None:
        requests = itertools.chain(requests, read_requests(config.file, config, first))
    answered = 0
    for group, fault in _groups(verb, requests):
        if group:
            answers = verb.answer([item for _, item in group])
            pairs = zip(group, answers, strict=True)
            build.report.predictions([_framed(request, answer) for (request, _), answer in pairs])
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
    identifier = {"id": request.fields["id"]} if "id" in request.fields else {}
    return {"index": request.index, **identifier, **answer}


def predictor_stage(name: str, config: type[VerbConfig], opens: str, first: str = "text") -> Stage:
    """Return the stage of an inference command.

    Args:
        config: config class.
        opens: `module:name` of a function of checkpoint path and config that returns a `Verb`.
        first: field in a line of a plain file.
    """

    def run(config: VerbConfig, build: BuildContext) -> StageResult:
        return serve(resolve_name(opens)(build.inputs["checkpoint"], config), config, first, build)

    return Stage(
        name=name,
        version=VERSION,
        config=config,
        run=run,
        inputs={"checkpoint": InputSpec(required=True)},
        worker="cloze.model",
    )


ANSWER = predictor_stage(
    "answer", configs.AnswerConfig, "cloze.model.use.finetuned:AnswerPredictor", first="question"
)
CLASSIFY = predictor_stage("classify", configs.ClassifyConfig, "cloze.model.use.classify:Classify")
TAG = predictor_stage("tag", configs.TagConfig, "cloze.model.use.finetuned:Tag")
FILL_MASK = predictor_stage(
    "fill-mask", configs.FillMaskConfig, "cloze.model.use.fill_mask:FillMask"
)
GENERATE = predictor_stage("generate", configs.GenerateConfig, "cloze.model.use.generate:Generate")
EMBED = predictor_stage("embed", configs.EmbedConfig, "cloze.model.use.embed:Embed")
SCORE_TEXTS = predictor_stage(
    "score-texts", configs.ScoreTextsConfig, "cloze.model.use.scoring:ScoreTexts"
)
