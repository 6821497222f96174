"""Corpus stage: documents under licences that are not wanted."""

from __future__ import annotations

from pydantic import field_validator

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.provenance import allows, licence_name
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult

REASON = "other_licence"


class LicenceOptions(CorpusOptions):
    """Under which licences text is kept."""

    licences: tuple[str, ...] = ()
    """Keep only what is under these (SPDX names, in any case; `unknown`: what names none); the rest is dropped as `other_licence`. Of
    `A OR B` one suffices. Empty: all."""

    @field_validator("licences")
    @classmethod
    def _named(cls, licences: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(map(licence_name, licences))
        if not all(names):
            raise ValueError("a licence has no name; write it like CC-BY-SA-4.0, or `unknown`")
        return names


def _build(options: LicenceOptions) -> StepFunction | None:
    if not options.licences:
        return None
    wanted = frozenset(name.casefold() for name in options.licences)

    def licences(document: Document) -> StepResult:
        return StepResult(document) if allows(document.licence, wanted) else StepResult(None, REASON)

    return licences


STEP = StepKind(options=LicenceOptions, build=_build)
