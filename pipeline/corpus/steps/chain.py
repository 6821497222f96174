"""Table of the cleaning steps, in order, and functions to run them.

A step is a pure function on a document. It returns the document and what it removed, or a reason to
drop the document. All reasons are counted. To add a step, write a module with its options and a
`CleaningStep` (`base.py`), and add a line to _STEPS before `sentences`, which splits what the
others leave. Each option also has a heading in the help: `flows/commands/base/headings.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from cloze.core.options import merge_option_classes
from cloze.core.plugins import Table
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.base import CleaningResult, CleaningStep, StepFunction

_STEPS = {
    "licences": "cloze.pipeline.corpus.steps.filters.documents:LICENCES",
    "repair": "cloze.pipeline.corpus.steps.clean:REPAIR",
    "clean": "cloze.pipeline.corpus.steps.clean:CLEAN",
    "too_long": "cloze.pipeline.corpus.steps.filters.documents:MAXIMUM",
    "boilerplate": "cloze.pipeline.corpus.steps.filters.lines:BOILERPLATE",
    "c4": "cloze.pipeline.corpus.steps.filters.c4:STEP",
    "repeated": "cloze.pipeline.corpus.steps.filters.lines:REPEATED",
    "too_short": "cloze.pipeline.corpus.steps.filters.documents:MINIMUM",
    "letters": "cloze.pipeline.corpus.steps.filters.documents:LETTERS",
    "language": "cloze.pipeline.corpus.steps.filters.language:STEP",
    "gopher_quality": "cloze.pipeline.corpus.steps.filters.gopher:QUALITY",
    "gopher_repetition": "cloze.pipeline.corpus.steps.filters.gopher:REPETITION",
    "blocked_words": "cloze.pipeline.corpus.steps.filters.blocked_words:STEP",
    "personal_data": "cloze.pipeline.corpus.steps.personal_data:STEP",
    "decontaminate": "cloze.pipeline.corpus.steps.decontaminate:STEP",
    # stays last
    "sentences": "cloze.pipeline.corpus.steps.sentences:STEP",
}
STEPS: Table[CleaningStep] = Table("steps", "cleaning step", _STEPS, last="sentences")

Step = tuple[str, StepFunction]  # name and function
Observer = Callable[[str, Document, CleaningResult], None]


def _kinds() -> dict[str, CleaningStep]:
    kinds = STEPS.loaded()
    assert next(reversed(kinds)) == "sentences", "a step behind it would lose the sentences"
    return kinds


if TYPE_CHECKING:
    from cloze.pipeline.corpus.steps.decontaminate import DecontaminateOptions
    from cloze.pipeline.corpus.steps.filters.language import LanguageOptions
    from cloze.pipeline.corpus.steps.personal_data import PersonalDataOptions

    class TextConfig(DecontaminateOptions, LanguageOptions, PersonalDataOptions): ...
else:
    TextConfig = merge_option_classes(
        "TextConfig", (kind.options for kind in _kinds().values()), __name__
    )
    TextConfig.__doc__ = (
        "How text is cleaned, filtered and split into sentences: the options of all steps."
    )


def settings() -> dict[str, str]:
    """Return the option behind each reason to drop a document, by the reason or its beginning."""
    found: dict[str, str] = {}
    for kind in _kinds().values():
        found |= dict.fromkeys(kind.reasons, " and corpus.".join(kind.own_options))
        found |= kind.settings
    return found


def prepare_steps(config: TextConfig, directory: str) -> dict[str, Any]:
    """Prepare the steps that need more than the config, perhaps files; return plain JSON."""
    return {
        name: kind.prepare(config, directory)
        for name, kind in _kinds().items()
        if kind.prepare is not None
    }


def build_steps(config: TextConfig, prepared: Mapping[str, Any] | None = None) -> tuple[Step, ...]:
    """Return the enabled steps in order; those that need preparation are off without it."""
    results = prepared or {}
    steps = []
    for name, kind in _kinds().items():
        function = (
            kind.build(config) if kind.prepare is None else kind.build(config, results.get(name))
        )
        if function is not None:
            steps.append((name, function))
    return tuple(steps)


def run_steps(
    document: Document, steps: Iterable[Step], observe: Observer | None = None
) -> CleaningResult:
    """Run the steps on a document until one drops it.

    Args:
        document: as its reader returned it.
        steps: result of `build_steps`.
        observe: called after each step with its name, its input document and its result.

    Returns:
        The cleaned document and its sentences, or the reason of the drop; and all removed texts.
    """
    removed: tuple[Any, ...] = ()
    result = CleaningResult(document)
    for name, step in steps:
        result = step(document)
        if observe is not None:
            observe(name, document, result)
        removed += result.removed
        if result.document is None:
            return CleaningResult(None, result.reason, removed)
        document = result.document
    return CleaningResult(document, None, removed, sentences=result.sentences)


def plugin_steps() -> dict[str, CleaningStep]:
    """Return the steps of plug-ins that can be imported."""
    kinds = STEPS.loaded()
    return {name: kinds[name] for name in STEPS.owners if name in kinds}
