"""Filter of documents by licence."""

from __future__ import annotations

from pydantic import field_validator

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.provenance import licence_name, license_matches
from cloze.pipeline.corpus.steps.base import CleaningStep, StepFunction, drop_if

REASON = "other_licence"


class LicenceOptions(CorpusOptions):
    """Options of the licence filter."""

    licences: tuple[str, ...] = ()
    """Keep only documents under this licence (SPDX name; `unknown`: none stated). Repeatable.
    Default: all."""

    @field_validator("licences")
    @classmethod
    def _named(cls, licences: tuple[str, ...]) -> tuple[str, ...]:
        names = tuple(map(licence_name, licences))
        if not all(names):
            raise ValueError("a licence name is empty; write it as CC-BY-SA-4.0, or `unknown`")
        return names


def _build(options: LicenceOptions) -> StepFunction | None:
    if not options.licences:
        return None
    accepted = frozenset(name.casefold() for name in options.licences)

    def reason_of(document: Document) -> str | None:
        return None if license_matches(document.licence, accepted) else REASON

    return drop_if(reason_of)


STEP = CleaningStep(options=LicenceOptions, build=_build)
