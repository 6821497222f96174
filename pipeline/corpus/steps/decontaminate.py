"""Corpus stage: documents that hold text of the tasks that a model will be measured on.

Which text counts as a task's: pipeline/corpus/dedup/task_index.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from pipeline.core import fingerprints, storage
from pipeline.core.config import InputPath
from pipeline.core.errors import DataError
from pipeline.corpus.dedup.task_files import task_files, task_texts
from pipeline.corpus.document import Document
from pipeline.corpus.steps.base import Match, Removed, StepFunction, StepKind, StepResult
from pipeline.corpus.steps.length import MinimumOptions

if TYPE_CHECKING:
    from pipeline.corpus.dedup.task_index import TaskIndex

REASON = "contaminated"


class DecontaminateOptions(MinimumOptions):
    """Text of tasks, which documents may not hold."""

    decontaminate: tuple[InputPath, ...] = ()
    """Task files, or directories of them, whose text documents must not hold."""

    decontaminate_words: int = Field(default=13, ge=1, le=100)
    """Words in a row that a task and a document must share (GPT-3: 13)."""

    decontaminate_minimum_words: int = Field(default=8, ge=1, le=100)
    """From how many words on a task's text that is shorter than that many in a row counts as a whole (GPT-3: 8)."""

    decontaminate_unit: Literal["document", "paragraph"] = "document"
    """What is dropped: the document, or its paragraphs that hold such words."""

    @field_validator("decontaminate", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    def task_files(self) -> list[tuple[str, str, str]]:
        """(name, path, sha256) of the files whose text is looked for, by name, then by content; each content once a name."""
        named = {file for path in self.decontaminate for file in task_files(path)}
        hashes = fingerprints.file_fingerprints(path for _, path in named)
        return list({(name, hashes[path]): (name, path, hashes[path]) for name, path in sorted(named)}.values())


def decontaminate(
    document: Document, index: TaskIndex, unit: Literal["document", "paragraph"], minimum_characters: int = 0
) -> StepResult:
    """Drop a document that has text of a task, or take its paragraphs that have it out.

    Args:
        document: cleaned.
        index: of the tasks.
        unit: what is dropped.
        minimum_characters: a document with less text than that left is dropped, too.
    """
    if unit == "document":
        found = index.find(document.text)
        return StepResult(document) if found is None else StepResult(None, REASON, matches=(Match(*found),))
    kept: list[str] = []
    removed: list[Removed] = []
    matches: list[Match] = []
    for paragraph in document.paragraphs:
        found = index.find(paragraph)
        if found is None:
            kept.append(paragraph)
        else:
            removed.append(Removed(REASON, paragraph))
            matches.append(Match(*found))
    if not removed:
        return StepResult(document)
    if sum(map(len, kept)) < max(1, minimum_characters):
        return StepResult(None, REASON, matches=tuple(matches))
    return StepResult(replace(document, paragraphs=tuple(kept)), None, tuple(removed), tuple(matches))


def _prepare(options: DecontaminateOptions, directory: str) -> dict[str, str] | None:
    """The n-grams of the task files, written to the directory for the workers."""
    from pipeline.corpus.dedup.task_index import TaskIndex

    if not options.decontaminate:
        return None
    files = options.task_files()
    texts = ((name, text) for name, path, _ in files for text in task_texts(path))
    index = TaskIndex.build(texts, options.decontaminate_words, options.decontaminate_minimum_words)
    if not len(index):
        raise DataError(
            f"corpus.decontaminate ({', '.join(options.decontaminate)}) holds no text of {options.decontaminate_minimum_words} words or"
            " more; name other files, or lower corpus.decontaminate_minimum_words"
        )
    path = storage.join(directory, "tasks.arrow")
    index.save(path)
    return {"path": path, "sha256": fingerprints.combine((name, sha256) for name, _, sha256 in files)}


def _build(options: DecontaminateOptions, prepared: dict[str, str] | None) -> StepFunction | None:
    if prepared is None:
        return None
    from pipeline.corpus.dedup.task_index import loaded

    index = loaded(prepared["path"], prepared["sha256"])
    return partial(decontaminate, index=index, unit=options.decontaminate_unit, minimum_characters=options.minimum_characters)


STEP = StepKind(options=DecontaminateOptions, build=_build, prepare=_prepare)
