"""Corpus stage: the steps that a document takes from its reader to its sentences, in their order.

A step is a pure function on a document. It returns the document, changed or not, with what it took out of it; or a
reason to drop the document. Reasons become counters, so nothing disappears uncounted.

To add a step: a file with its options and the function that builds it (`StepKind`), and a line in STEPS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pipeline.core.options import joined
from pipeline.core.registry import load
from pipeline.corpus.document import Document
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult

STEPS = {
    "licences": "pipeline.corpus.steps.licences:STEP",
    "repair": "pipeline.corpus.steps.repair:STEP",
    "clean": "pipeline.corpus.steps.clean:STEP",
    "too_long": "pipeline.corpus.steps.length:MAXIMUM",
    "boilerplate": "pipeline.corpus.steps.boilerplate:STEP",
    "c4": "pipeline.corpus.steps.c4:STEP",
    "repeated": "pipeline.corpus.steps.repeated_lines:STEP",
    "too_short": "pipeline.corpus.steps.length:MINIMUM",
    "letters": "pipeline.corpus.steps.letters:STEP",
    "language": "pipeline.corpus.steps.language:STEP",
    "gopher_quality": "pipeline.corpus.steps.gopher_quality:STEP",
    "gopher_repetition": "pipeline.corpus.steps.gopher_repetition:STEP",
    "learned": "pipeline.corpus.steps.learned:STEP",
    "blocked_words": "pipeline.corpus.steps.blocked_words:STEP",
    "personal_data": "pipeline.corpus.steps.personal_data:STEP",
    "decontaminate": "pipeline.corpus.steps.decontaminate:STEP",
    "sentences": "pipeline.corpus.steps.sentences:STEP",
}

Step = tuple[str, StepFunction]  # its name and what it does
Observer = Callable[[str, Document, StepResult], None]


def _kinds() -> dict[str, StepKind]:
    return {name: load(reference) for name, reference in STEPS.items()}


if TYPE_CHECKING:
    from pipeline.corpus.steps.decontaminate import DecontaminateOptions
    from pipeline.corpus.steps.learned import LearnedOptions
    from pipeline.corpus.steps.personal_data import PersonalDataOptions

    class TextConfig(DecontaminateOptions, LearnedOptions, PersonalDataOptions): ...
else:
    TextConfig = joined("TextConfig", (kind.options for kind in _kinds().values()), __name__)
    TextConfig.__doc__ = "How text is cleaned, filtered and split into sentences: the options of all steps."


def prepare_steps(config: TextConfig, directory: str) -> dict[str, Any]:
    """What steps need beside the config, made once before anything is read; plain JSON, for `build_steps`.

    Args:
        directory: for files; all workers see it.
    """
    return {name: kind.prepare(config, directory) for name, kind in _kinds().items() if kind.prepare is not None}


def build_steps(config: TextConfig, prepared: Mapping[str, Any] | None = None) -> tuple[Step, ...]:
    """The steps that are on, in the order in which they run.

    Args:
        prepared: what `prepare_steps` gave; without it, steps that need it are off.
    """
    given = prepared or {}
    steps = []
    for name, kind in _kinds().items():
        function = kind.build(config) if kind.prepare is None else kind.build(config, given.get(name))
        if function is not None:
            steps.append((name, function))
    return tuple(steps)


def run_steps(document: Document, steps: Iterable[Step], observe: Observer | None = None) -> StepResult:
    """Take the document through the steps, until one drops it: the one way from a reader's document to its sentences.

    Args:
        document: as its reader gave it.
        steps: of `build_steps`.
        observe: called after each step with its name, the document before it, and its result.

    Returns:
        The last document and its sentences, or the reason why there is none; and all that was removed on the way.
    """
    removed: tuple[Any, ...] = ()
    result = StepResult(document)
    for name, step in steps:
        result = step(document)
        if observe is not None:
            observe(name, document, result)
        removed += result.removed
        if result.document is None:
            return StepResult(None, result.reason, removed)
        document = result.document
    return StepResult(document, None, removed, sentences=result.sentences)
