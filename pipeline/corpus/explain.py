"""`cloze corpus --explain`: what the corpus stage does to one document, step by step.

It runs the stage's own chain of steps in this process, watches it, and writes nothing that stays. Where the document comes through
to the search for duplicates, all sources are read, since a duplicate may be anywhere.
"""

from __future__ import annotations

import difflib
import heapq
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.core import random_keys, storage
from pipeline.core.errors import UsageError
from pipeline.core.reporting import SILENT, Reporter
from pipeline.core.shards import HELDOUT, TRAIN
from pipeline.corpus.bundles import bundled
from pipeline.corpus.config import CorpusConfig
from pipeline.corpus.dedup import signatures
from pipeline.corpus.dedup.columns import Columns
from pipeline.corpus.dedup.plan import REASONS, find_duplicates
from pipeline.corpus.document import Document, Field, joined
from pipeline.corpus.extract import ReadBundle, is_heldout, read_documents
from pipeline.corpus.parts import taken
from pipeline.corpus.readers.base import Tally
from pipeline.corpus.schema import PART
from pipeline.corpus.sources import PlannedSlice, plan_reading
from pipeline.corpus.steps.base import StepResult
from pipeline.corpus.steps.chain import build_steps, prepare_steps, run_steps
from pipeline.corpus.text_changes import Change, changes

NEAREST = 5  # titles, where none is the one
DUPLICATES = 5  # dropped in favour of the document, that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What a step did.

    Attributes:
        name: of the step.
        paragraphs, characters: before and after it; after a drop, zero.
        removed: (reason, text) of each line taken out.
        changes: of the paragraphs.
        reason: why it dropped the document; None if it did not.
        detail: more about the reason.
    """

    name: str
    paragraphs: tuple[int, int]
    characters: tuple[int, int]
    removed: list[tuple[str, str]]
    changes: list[Change]
    reason: str | None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicate:
    """Another document with the same words, or nearly."""

    id: str
    title: str
    reason: str
    similarity: float  # Jaccard, of the texts' n-grams
    characters: int


@dataclass(slots=True, kw_only=True)
class Explanation:
    """What became of one document, and how.

    Attributes:
        id, title, source: its names.
        file: where it was read from.
        url, origin, licence: where its source says it is from.
        infobox: (box, name, value) of each of its fields, as they are kept.
        raw_bytes: of the document in the source.
        reader: what the reader dropped inside it, by reason.
        paragraphs: as its reader gave it.
        steps: in their order, up to the one that dropped it.
        sentences: of what came through; empty if it was dropped before.
        dropped_sentences: (reason, text) of those with a hole in them.
        outcome: `kept`, or the reason of its drop.
        split: train or heldout, if it is kept.
        duplicate_of: the document that stays in its stead.
        duplicates: of it that are dropped, the first of them.
        duplicates_in_all: how many there are.
    """

    id: str
    title: str
    source: str
    file: str
    raw_bytes: int
    reader: dict[str, int]
    paragraphs: list[str]
    steps: list[StepView] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    dropped_sentences: list[tuple[str, str]] = field(default_factory=list)
    outcome: str = "kept"
    split: str = ""
    duplicate_of: Duplicate | None = None
    duplicates: list[Duplicate] = field(default_factory=list)
    duplicates_in_all: int = 0
    url: str = ""
    origin: str = ""
    licence: str = ""
    infobox: list[Field] = field(default_factory=list)


class _Watching(Tally):
    """A tally that also counts for the document being read alone."""

    def __init__(self, one: PlannedSlice, stop: bool) -> None:
        super().__init__(slice=one.slice, stop=stop)
        self.before: Counter[str] = Counter()
        self.size = 0

    def read(self, size: int) -> None:
        Tally.read(self, size)
        self.before, self.size = Counter(self.counters), size

    def inside(self) -> dict[str, int]:
        """What was dropped inside the document read last."""
        new = self.counters - self.before
        return {name.removeprefix("dropped_lines/"): n for name, n in sorted(new.items()) if name.startswith("dropped_lines/")}


def explain(config: CorpusConfig, title: str, report: Reporter = SILENT) -> Explanation:
    """What becomes of the first document of this title, or of this id.

    Args:
        config: of the corpus stage.
        title: in any case; or an id such as `wikipedia/dump.xml.bz2/12`.
        report: of progress, in bytes read.

    Raises:
        UsageError: there is no such document.
        DataError: a source cannot be read.
    """
    slices, _ = plan_reading(config.listed())
    found, raw = _find(config, slices, title, report)
    with tempfile.TemporaryDirectory(prefix="cloze-explain-") as directory:
        prepared = prepare_steps(config, directory)
        if _run_steps(config, prepared, raw, found):
            key = random_keys.document_key(raw.id)
            found.split = HELDOUT if is_heldout(key, config.heldout_fraction) else TRAIN
            if config.dedup != "none":
                _look_for_duplicates(config, slices, prepared, directory, found, report)
    return found


def _find(config: CorpusConfig, slices: Sequence[PlannedSlice], wanted: str, report: Reporter) -> tuple[Explanation, Document]:
    """The document, and what is known of it before the first step."""
    total = float(sum(one.slice.size for one in slices))
    done, read = 0.0, 0
    dropped: Counter[str] = Counter()
    nearest: list[tuple[float, str]] = []
    lowered = wanted.strip().casefold()
    for one in sorted(slices, key=lambda one: not wanted.startswith(f"{one.slice.kind}/{one.slice.name}/")):
        tally = _Watching(one, config.on_error == "stop")
        for document in read_documents(config, tally):
            if document.title.strip().casefold() == lowered or document.id == wanted:
                found = Explanation(
                    id=document.id,
                    title=document.title,
                    source=document.source,
                    file=one.slice.path,
                    raw_bytes=tally.size,
                    reader=tally.inside(),
                    paragraphs=list(document.paragraphs),
                    url=document.url,
                    origin=document.origin,
                    licence=document.licence,
                    infobox=list(document.infobox),
                )
                return found, document
            matcher = difflib.SequenceMatcher(None, lowered, document.title.casefold())
            if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6:
                heapq.heappush(nearest, (matcher.ratio(), document.title))
                if len(nearest) > NEAREST:
                    heapq.heappop(nearest)
        done += one.slice.size
        read += tally.counters["read/documents"]
        dropped.update({name.removeprefix("dropped/"): n for name, n in tally.counters.items() if name.startswith("dropped/")})
        report.progress(done, total, "bytes", {"step": "looking for it"})
    names = ", ".join(repr(name) for _, name in sorted(nearest, reverse=True))
    unread = ", ".join(f"{reason} {count:,}" for reason, count in dropped.most_common())
    raise UsageError(
        f"no document of the title or id {wanted!r} among the {read:,} that were read"
        + (f" ({unread} have no text to look at)" if unread else "")
        + (f"; the nearest titles: {names}" if names else "; check the title and the sources")
    )


def _run_steps(config: CorpusConfig, prepared: Mapping[str, Any], raw: Document, found: Explanation) -> bool:
    """Take the document through the stage's steps, and note each. Returns whether it came through."""

    def observe(name: str, before: Document, result: StepResult) -> None:
        if name == "sentences":
            found.sentences = result.sentences.texts if result.sentences is not None else []
            found.dropped_sentences = [(removed.reason, removed.text) for removed in result.removed]
            return
        after = result.document.paragraphs if result.document is not None else ()
        found.steps.append(
            StepView(
                name=name,
                paragraphs=(len(before.paragraphs), len(after)),
                characters=(sum(map(len, before.paragraphs)), sum(map(len, after))),
                removed=[(removed.reason, removed.text) for removed in result.removed],
                changes=changes(before.paragraphs, after) if result.document is not None else [],
                reason=result.reason,
                detail="; ".join(f"{match.task}: “{match.words}”" for match in result.matches),
            )
        )

    result = run_steps(raw, build_steps(config, prepared), observe)
    if result.document is None:
        found.outcome = str(result.reason)
    else:
        found.infobox = list(result.document.infobox)
    return result.document is not None


def _look_for_duplicates(
    config: CorpusConfig,
    slices: Sequence[PlannedSlice],
    prepared: Mapping[str, Any],
    directory: str,
    found: Explanation,
    report: Reporter,
) -> None:
    """Read all sources and tell which documents are duplicates of this one, or this one of which."""
    read = ReadBundle(parts=directory, config=config.model_copy(update={"keep_rejected": False}), prepared=prepared)
    bundles = bundled(slices)
    total, done = float(sum(one.size for one in bundles)), 0.0
    for one in bundles:
        read(one.unit())
        done += one.size
        report.progress(done, total, "bytes", {"step": "looking for duplicates"})
    parts = tuple(storage.join(directory, one.part) for one in bundles)
    columns = Columns(directory)
    columns.gather([f"{part}.refs.arrow" for part in parts])
    duplicates = find_duplicates(columns, config.minhash(), True, config.dedup_similarity)
    text = " ".join(found.sentences)
    exact = int.from_bytes(signatures.signature(text, None).exact[:8], "little")
    own = columns.load("key") == np.uint64(random_keys.document_key(found.id))
    number = int(np.flatnonzero(own & (columns.load("exact_high") == np.uint64(exact)))[0])

    def told(numbers: list[int], reasons: list[str]) -> Iterator[Duplicate]:
        table = taken(parts, PART, *columns.where(np.array(numbers, dtype=np.int64)))
        for row, reason in zip(table.to_pylist(), reasons, strict=True):
            other = joined(row["sentences"], row["paragraphs"])
            similarity = round(signatures.jaccard(text, other, config.dedup_ngram), 3)
            yield Duplicate(id=row["id"], title=row["title"], reason=reason, similarity=similarity, characters=len(other))

    reason = REASONS[duplicates.reason[number]]
    if reason:
        found.outcome, found.split = reason, ""
        found.duplicate_of = next(told([int(duplicates.of[number])], [reason]))
    others = np.flatnonzero((duplicates.of == number) & (np.arange(duplicates.of.size) != number))
    found.duplicates_in_all = int(others.size)
    shown = others[:DUPLICATES].tolist()
    found.duplicates = list(told(shown, [REASONS[duplicates.reason[other]] for other in shown]))
