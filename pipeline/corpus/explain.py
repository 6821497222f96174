"""`cloze explain`: what the corpus stage does to one document, step by step."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

import numpy as np
import regex

from cloze.core import random_keys, storage
from cloze.core.artifacts.artifact import HELDOUT, TRAIN
from cloze.core.errors import UsageError
from cloze.core.stages.stage import NULL_REPORTER, Reporter
from cloze.pipeline.corpus import signatures
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.document import Document, InfoboxField, join_sentences
from cloze.pipeline.corpus.duplicates.repeated_ids import are_records
from cloze.pipeline.corpus.duplicates.rules import document_texts, find_duplicates
from cloze.pipeline.corpus.duplicates.search import SignatureColumns
from cloze.pipeline.corpus.duplicates.unit_plans import REASONS, read_signatures, write_units
from cloze.pipeline.corpus.files.intermediate import documents_at
from cloze.pipeline.corpus.read.detect_language import with_detected_language
from cloze.pipeline.corpus.read.read_and_clean import ReadSliceGroup, is_heldout, read_documents
from cloze.pipeline.corpus.readers.base import ReadCounters, counted
from cloze.pipeline.corpus.sources import PlannedSlice, group_slices, plan_reading
from cloze.pipeline.corpus.steps.base import CleaningResult
from cloze.pipeline.corpus.steps.chain import build_steps, prepare_steps, run_steps

CONTEXT = 30  # characters shown around a change
LONGEST = 5_000  # words and blanks; longer paragraphs are shown as one replacement

_PIECES = regex.compile(r"\s+|\w+|[^\w\s]")  # regex's \w includes combining marks, which re's lacks


@dataclass(frozen=True, slots=True)
class Change:
    """A paragraph that differs."""

    kind: str  # changed, removed or added
    paragraph: int  # number of the paragraph before the step (if added: after it), from 1
    # (sign, text) in order: `=` unchanged, `-` removed, `+` added, `…` omitted. A removed or added
    # paragraph is one piece.
    pieces: list[tuple[str, str]]


def diff_paragraphs(before: Sequence[str], after: Sequence[str]) -> list[Change]:
    """Return the paragraphs that differ.

    Equal numbers of removed and added paragraphs at the same position count as changed.
    """
    changes = []
    for tag, a, b, c, d in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        if b - a == d - c:
            changes += [
                Change("changed", a + n + 1, list(_pieces(before[a + n], after[c + n])))
                for n in range(b - a)
            ]
        else:
            changes += [Change("removed", n + 1, [("-", before[n])]) for n in range(a, b)]
            changes += [Change("added", n + 1, [("+", after[n])]) for n in range(c, d)]
    return changes


def _pieces(old: str, new: str) -> Iterator[tuple[str, str]]:
    """Compare two paragraphs word by word; shorten unchanged text at both ends."""
    before, after = _PIECES.findall(old), _PIECES.findall(new)
    opcodes = [("replace", 0, len(before), 0, len(after))]
    if max(len(before), len(after)) <= LONGEST:
        opcodes = list(SequenceMatcher(None, before, after).get_opcodes())
    for number, (tag, a, b, c, d) in enumerate(opcodes):
        removed, added = "".join(before[a:b]), "".join(after[c:d])
        if tag != "equal":
            yield from (
                (sign, _shortened(text))
                for sign, text in zip("-+", (removed, added), strict=True)
                if text
            )
        elif number == 0 and len(removed) > CONTEXT:
            yield from (("…", ""), ("=", removed[-CONTEXT:]))
        elif number == len(opcodes) - 1 and len(removed) > CONTEXT:
            yield from (("=", removed[:CONTEXT]), ("…", ""))
        else:
            yield "=", _shortened(removed)


def _shortened(text: str) -> str:
    return text if len(text) <= 3 * CONTEXT else f"{text[:CONTEXT]} … {text[-CONTEXT:]}"


NEAREST = 5  # titles suggested if none matches
DUPLICATES = 5  # examples of dropped duplicates in the report


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningStepReport:
    """Effect of one cleaning step."""

    name: str  # name of the step
    # paragraphs and characters: counts before and after the step; after a drop, zero
    paragraphs: tuple[int, int]
    characters: tuple[int, int]
    removed: list[tuple[str, str]]  # (reason, text) per removed line
    changes: list[Change]  # differences of the paragraphs
    reason: str | None  # why the step dropped the document; None if it was kept
    detail: str = ""  # matched task texts, if the reason is contamination


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another document with the same or nearly the same words."""

    id: str
    title: str
    reason: str
    similarity: float  # Jaccard similarity of the n-grams
    characters: int


@dataclass(slots=True, kw_only=True)
class Explanation:
    """Report on one document."""

    id: str  # id, title and source: as in `Document`
    title: str
    source: str
    file: str  # path of the source file
    raw_bytes: int  # size of the document in the source
    reader: dict[str, int]  # counts of what the reader dropped inside the document, by reason
    paragraphs: list[str]  # text from the reader, before cleaning
    # cleaning steps in order, up to a drop
    steps: list[CleaningStepReport] = field(default_factory=list)
    # final sentences; empty if the document was dropped before splitting
    sentences: list[str] = field(default_factory=list)
    # (reason, text) per sentence with a placeholder
    dropped_sentences: list[tuple[str, str]] = field(default_factory=list)
    outcome: str = "kept"  # `kept`, or the reason of the drop
    split: str = ""  # train or heldout; empty if dropped
    duplicate_of: Duplicate | None = None  # the document that is kept instead of this one
    # the first dropped duplicates of this document
    duplicates: list[Duplicate] = field(default_factory=list)
    duplicates_in_all: int = 0  # number of dropped duplicates of this document
    url: str = ""  # url, origin and licence: provenance, as far as known
    origin: str = ""
    licence: str = ""
    # (box, name, value) per field, after cleaning
    infobox: list[InfoboxField] = field(default_factory=list)


class _Watching(ReadCounters):
    """Counters that also count for the current document alone."""

    def __init__(self, planned: PlannedSlice, stop: bool, allowed: float) -> None:
        super().__init__(slice=planned.slice, stop=stop, allowed=allowed)
        self.before: Counter[str] = Counter()
        self.size = 0

    def read(self, size: int) -> None:
        ReadCounters.read(self, size)
        self.before, self.size = Counter(self.counters), size

    def inside(self) -> dict[str, int]:
        """Return what was dropped inside the last document, by reason."""
        return counted(self.counters - self.before, "dropped_lines/")


def explain(config: CorpusConfig, title: str, report: Reporter = NULL_REPORTER) -> Explanation:
    """Explain what the corpus stage does to the first document with this title or id.

    Args:
        title: title in any case, or an id such as `wikipedia/dump.xml.bz2/12`.
        report: receives progress in bytes read.

    Raises:
        UsageError: there is no such document.
        DataError: a source cannot be read.
    """
    slices, _ = plan_reading(config.listed())
    config = with_detected_language(slices, config)
    explanation, raw = _find(config, slices, title, report)
    with tempfile.TemporaryDirectory(prefix="cloze-explain-") as directory:
        prepared = prepare_steps(config, directory)
        cleaned = _run_steps(config, prepared, raw, explanation)
        if cleaned is not None:
            key = random_keys.document_key(cleaned.id)  # masking may have changed the id
            explanation.split = HELDOUT if is_heldout(key, config.heldout_fraction) else TRAIN
            if config.dedup != "none":
                _find_duplicates(config, slices, prepared, directory, key, explanation, report)
    return explanation


def _find(
    config: CorpusConfig, slices: Sequence[PlannedSlice], name_or_id: str, report: Reporter
) -> tuple[Explanation, Document]:
    """Return a new explanation and the document as its reader gave it.

    Raises:
        UsageError: no document matches; the message suggests the nearest titles.
    """
    total = float(sum(planned.slice.size for planned in slices))
    done, read = 0.0, 0
    dropped: Counter[str] = Counter()
    unreadable: list[str] = []
    nearest: list[tuple[float, str]] = []
    lowered = name_or_id.strip().casefold()

    def is_other(planned: PlannedSlice) -> bool:
        return not name_or_id.startswith(f"{planned.slice.kind}/{planned.slice.name}/")

    for planned in sorted(slices, key=is_other):
        counters = _Watching(planned, config.on_error == "stop", config.unreadable_share)
        for document in read_documents(config, counters):
            if document.title.strip().casefold() == lowered or document.id == name_or_id:
                same = ("id", "title", "source", "url", "origin", "licence")
                explanation = Explanation(
                    **{name: getattr(document, name) for name in same},
                    file=planned.slice.path,
                    raw_bytes=counters.size,
                    reader=counters.inside(),
                    paragraphs=list(document.paragraphs),
                    infobox=list(document.infobox),
                )
                return explanation, document
            matcher = SequenceMatcher(None, lowered, document.title.casefold())
            if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6:
                heapq.heappush(nearest, (matcher.ratio(), document.title))
                if len(nearest) > NEAREST:
                    heapq.heappop(nearest)
        unreadable += (f"{entry.file}: {entry.sentence}" for entry in counters.unreadable[:1])
        done += planned.slice.size
        read += counters.counters["read/documents"]
        dropped.update(counted(counters.counters, "dropped/"))
        report.progress(done, total, "bytes", {"step": "looking for it"})
    names = ", ".join(repr(name) for _, name in sorted(nearest, reverse=True))
    unread = ", ".join(f"{reason} {count:,}" for reason, count in dropped.most_common())
    passed_over = "; ".join(config.listing().describe())
    raise UsageError(
        f"no document of the title or id {name_or_id!r} among the {read:,} that were read"
        + (f" ({unread} have no text to look at)" if unread else "")
        + (f"; {passed_over}" if passed_over else "")
        + (f"; not read: {unreadable[0]}" if unreadable else "")
        + (f"; the nearest titles: {names}" if names else "; check the title and the sources")
    )


def _run_steps(
    config: CorpusConfig, prepared: Mapping[str, Any], raw: Document, explanation: Explanation
) -> Document | None:
    """Run the cleaning steps and record each in `explanation`.

    Returns:
        The cleaned document; None if it is dropped.
    """

    def observe(name: str, before: Document, result: CleaningResult) -> None:
        removed = [(each.reason, each.text) for each in result.removed]
        if name == "sentences":
            explanation.sentences = result.sentences.texts if result.sentences is not None else []
            explanation.dropped_sentences = removed
            return
        after = result.document.paragraphs if result.document is not None else ()
        explanation.steps.append(
            CleaningStepReport(
                name=name,
                paragraphs=(len(before.paragraphs), len(after)),
                characters=(sum(map(len, before.paragraphs)), sum(map(len, after))),
                removed=removed,
                changes=diff_paragraphs(before.paragraphs, after)
                if result.document is not None
                else [],
                reason=result.reason,
                detail="; ".join(f"{match.task}: “{match.words}”" for match in result.matches),
            )
        )

    result = run_steps(raw, build_steps(config, prepared), observe)
    if result.document is None:
        explanation.outcome = str(result.reason)
    else:
        explanation.infobox = list(result.document.infobox)
    return result.document


def _find_duplicates(
    config: CorpusConfig,
    slices: Sequence[PlannedSlice],
    prepared: Mapping[str, Any],
    directory: str,
    key: int,
    explanation: Explanation,
    report: Reporter,
) -> None:
    """Read all sources and record in `explanation` the duplicates of the document with `key`."""
    read = ReadSliceGroup(
        parts=directory, config=config.model_copy(update={"keep_dropped": False}), prepared=prepared
    )
    groups = group_slices(slices)
    total, done = float(sum(group.size for group in groups)), 0.0
    for group in groups:
        read(group.unit())
        done += group.size
        report.progress(done, total, "bytes", {"step": "looking for duplicates"})
    part_paths = tuple(storage.join(directory, group.part) for group in groups)
    columns = SignatureColumns(directory)
    units = range(write_units(directory, part_paths, [group.size for group in groups]))
    columns.gather(batch for unit in units for batch in read_signatures(directory, unit))
    kinds = [group.kind for group in groups]
    duplicates = find_duplicates(
        columns,
        document_texts(columns, part_paths),
        config.minhash(),
        True,
        config.dedup_similarity,
        are_records(kinds, columns.load("part")),
    )
    text = " ".join(explanation.sentences)
    exact = int.from_bytes(signatures.signature(text, None).exact[:8], "little")
    same_key = columns.load("key") == np.uint64(key)
    number = int(np.flatnonzero(same_key & (columns.load("exact_high") == np.uint64(exact)))[0])

    def describe(numbers: list[int], reasons: list[str]) -> Iterator[Duplicate]:
        at = np.array(numbers, dtype=np.int64)
        positions = [columns.mapped(name)[at] for name in ("part", "batch", "row")]
        for row, reason in zip(documents_at(part_paths, *positions), reasons, strict=True):
            other = join_sentences(row["sentences"], row["paragraphs"])
            similarity = round(signatures.jaccard(text, other, config.dedup_ngram), 3)
            yield Duplicate(row["id"], row["title"], reason, similarity, len(other))

    for row in np.flatnonzero(duplicates.numbers == number).tolist():
        reason = REASONS[duplicates.reason[row]]
        explanation.outcome, explanation.split = reason, ""
        explanation.duplicate_of = next(describe([int(duplicates.of[row])], [reason]))
    copies = np.flatnonzero(duplicates.of == number)
    explanation.duplicates_in_all = int(copies.size)
    shown = copies[:DUPLICATES]
    reasons = [REASONS[reason] for reason in duplicates.reason[shown]]
    explanation.duplicates = list(describe(duplicates.numbers[shown].tolist(), reasons))
