"""Verbs at work: requests in, answers out, a group at a time. No torch: what asks the model is the verb's own.

requests ─read─► what the model needs of each ─answer, a group at once─► JSON objects ─► the process that asked
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from model.use import requests
from model.use.requests import Request
from model.use.verb_config import VerbConfig
from pipeline.core.errors import ClozeError
from pipeline.core.stage import Build, Outcome

GROUP = 256  # requests that a verb gets at once: enough to put those of one length together

T = TypeVar("T")


class Verb(abc.ABC, Generic[T]):
    """A checkpoint in memory that answers requests."""

    @abc.abstractmethod
    def read(self, request: Request) -> T:
        """What `answer` needs of one request: its fields, tokenized or not.

        Raises:
            UsageError, DataError: the request lacks a field (`Request.text` raises that), or cannot be answered (`Request.fault`).
        """

    @abc.abstractmethod
    def answer(self, group: Sequence[T]) -> Sequence[dict[str, Any]]:
        """One JSON object a request, in their order. Args: group: at most `GROUP`; how many the model reads at once is the verb's choice."""

    def finish(self) -> dict[str, Any]:
        """Called after the last request; what the verb's summary says beside `answered`."""
        return {}


def serve(verb: Verb[Any], config: VerbConfig, first: str, build: Build) -> Outcome:
    """Answer all requests of the config. What was asked before a bad request is answered before that is told.

    Args:
        first: the field that a line of a plain file is.

    Returns:
        summary: `answered`, how many requests; and what the verb adds.

    Raises:
        UsageError, DataError: as `Verb.read` and `model.use.requests.read` raise them.
    """
    source: Iterator[Request | None] = requests.typed(config.requests, config.common, first)
    if config.file is not None:
        read = requests.read(config.file, config.called or config.file, jsonl=config.jsonl, common=config.common, first=first)
        source = itertools.chain(source, read)
    answered = 0
    for group, fault in _groups(verb, source):
        if group:
            answers = verb.answer([item for _, item in group])
            build.report.records([_framed(request, found) for (request, _), found in zip(group, answers, strict=True)])
            answered += len(group)
        if fault is not None:
            raise fault
    return Outcome(rows=answered, summary={"answered": answered, **verb.finish()})


def _groups(verb: Verb[Any], source: Iterator[Request | None]) -> Iterator[tuple[list[tuple[Request, Any]], ClozeError | None]]:
    """Requests that were read, in groups, the last one with what is wrong with the request after it."""
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
