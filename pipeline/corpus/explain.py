"""`cloze corpus --explain`: what the corpus stage does to one document, step by step.

It runs the stage's own functions in this process and writes nothing that stays. Where the document comes through to the
search for copies, all sources are read, since a copy may be anywhere.
"""

from __future__ import annotations

import difflib
import heapq
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from pipeline.core import random_keys, storage
from pipeline.core.errors import UsageError
from pipeline.core.reporting import SILENT, Reporter
from pipeline.core.shards import HELDOUT, TRAIN
from pipeline.corpus.dedup import decontaminate, signatures
from pipeline.corpus.dedup.plan import REASONS, Columns, find_copies
from pipeline.corpus.document import Document
from pipeline.corpus.extract import Tasks, as_settings
from pipeline.corpus.parts import joined, well_formed
from pipeline.corpus.readers import find_reader
from pipeline.corpus.readers.base import Tally
from pipeline.corpus.schema import CORPUS
from pipeline.corpus.sources import Part, expand
from pipeline.corpus.stage import CorpusConfig, reading, task_index
from pipeline.corpus.steps import sentences
from pipeline.corpus.steps.chain import build_steps, run_steps
from pipeline.corpus.steps.result import Result
from pipeline.corpus.text_changes import Change, changes
from pipeline.corpus.text_config import TextConfig
from pipeline.corpus.write import taken

NEAREST = 5  # titles, where none is the one
COPIES = 5  # dropped in favour of the document, that are named


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
class Copy:
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
        raw_bytes: of the document in the source.
        reader: what the reader dropped inside it, by reason.
        paragraphs: as its reader gave it.
        steps: in their order, up to the one that dropped it.
        sentences: of what came through; empty if it was dropped before.
        dropped_sentences: those with a hole in them.
        outcome: `kept`, or the reason of its drop.
        split: train or heldout, if it is kept.
        copy_of: the document that stays in its stead.
        copies: of it that are dropped: how many, and the first of them.
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
    dropped_sentences: list[str] = field(default_factory=list)
    outcome: str = "kept"
    split: str = ""
    copy_of: Copy | None = None
    copies: list[Copy] = field(default_factory=list)
    copies_in_all: int = 0


class _Watching(Tally):
    """A tally that also counts for the document being read alone."""

    def __init__(self, part: Part, stop: bool) -> None:
        super().__init__(split=part.split, stop=stop)
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
    parts, _ = expand(config.sources)
    found, raw = _find(config, parts, title, report)
    with tempfile.TemporaryDirectory(prefix="cloze-explain-") as directory:
        tasks = task_index(config, storage.join(directory, "tasks.arrow"))
        document = _steps(config, raw, tasks, found)
        if document is None:
            return found
        text_config = TextConfig(**config.text())
        split = sentences.split(document.paragraphs, document.language or text_config.fallback_language)
        found.sentences, found.dropped_sentences = split.texts, list(split.dropped)
        if not split.texts:
            found.outcome = "too_short"
            return found
        key = random_keys.document_key(raw.id)
        heldout = float(random_keys.uniform(random_keys.mix(key))) < config.heldout_fraction
        found.split = HELDOUT if heldout else TRAIN
        if config.dedup != "none":
            _look_for_copies(config, parts, tasks, directory, found, report)
    return found


def _find(config: CorpusConfig, parts: list[Part], wanted: str, report: Reporter) -> tuple[Explanation, Document]:
    settings = as_settings(config.settings())
    total = float(sum(part.split.size for part in parts))
    done, read = 0.0, 0
    dropped: Counter[str] = Counter()
    nearest: list[tuple[float, str]] = []
    lowered = wanted.strip().casefold()
    for part in sorted(parts, key=lambda part: not wanted.startswith(f"{part.split.kind}/{part.split.name}/")):
        tally = _Watching(part, settings.stop)
        for document in map(well_formed, find_reader(part.split.kind).read(part.split, settings, tally)):
            if document.title.strip().casefold() == lowered or document.id == wanted:
                return (
                    Explanation(
                        id=document.id,
                        title=document.title,
                        source=document.source,
                        file=part.split.path,
                        raw_bytes=tally.size,
                        reader=tally.inside(),
                        paragraphs=list(document.paragraphs),
                    ),
                    document,
                )
            matcher = difflib.SequenceMatcher(None, lowered, document.title.casefold())
            if matcher.real_quick_ratio() > 0.6 and matcher.quick_ratio() > 0.6:
                heapq.heappush(nearest, (matcher.ratio(), document.title))
                if len(nearest) > NEAREST:
                    heapq.heappop(nearest)
        done += part.split.size
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


def _steps(config: CorpusConfig, raw: Document, tasks: Tasks | None, found: Explanation) -> Document | None:
    """Take the document through the steps, and note each; None if one dropped it."""

    def observe(name: str, before: Document, result: Result, detail: str = "") -> None:
        after = result.document.paragraphs if result.document is not None else ()
        changed = changes(before.paragraphs, after) if result.document is not None else []
        found.steps.append(
            StepView(
                name=name,
                paragraphs=(len(before.paragraphs), len(after)),
                characters=(sum(map(len, before.paragraphs)), sum(map(len, after))),
                removed=[(removed.reason, removed.text) for removed in result.removed],
                changes=changed,
                reason=result.reason,
                detail=detail,
            )
        )

    result = run_steps(raw, build_steps(TextConfig(**config.text())), observe)
    if result.document is not None and tasks is not None:
        before = result.document
        index = decontaminate.loaded(tasks.path, tasks.fingerprint)
        result, matches = decontaminate.decontaminate(before, index, config.decontaminate_unit, config.minimum_characters)
        observe(decontaminate.NAME, before, result, "; ".join(f"{match.task}: “{match.words}”" for match in matches))
    if result.document is None:
        found.outcome = str(result.reason)
    return result.document


def _look_for_copies(
    config: CorpusConfig, parts: list[Part], tasks: Tasks | None, directory: str, found: Explanation, report: Reporter
) -> None:
    read = replace(reading(config, directory, tasks), keep_rejected=False)
    total, done = float(sum(part.split.size for part in parts)), 0.0
    for part in parts:
        read({"name": part.name, "split": asdict(part.split)})
        done += part.split.size
        report.progress(done, total, "bytes", {"step": "looking for copies"})
    columns = Columns(directory)
    columns.gather([storage.join(directory, f"{part.name}.refs.arrow") for part in parts])
    copies = find_copies(columns, config.minhash(), True, config.dedup_similarity)
    text = " ".join(found.sentences)
    exact = int.from_bytes(signatures.signature(text, None).exact[:8], "little")
    own = columns.load("key") == np.uint64(random_keys.document_key(found.id))
    number = int(np.flatnonzero(own & (columns.load("exact_high") == np.uint64(exact)))[0])
    paths = tuple(storage.join(directory, part.name) for part in parts)

    def copies_of(numbers: list[int], reasons: list[str]) -> Iterator[Copy]:
        table = taken(paths, CORPUS, *columns.where(np.array(numbers, dtype=np.int64)))
        for row, reason in zip(table.to_pylist(), reasons, strict=True):
            other = joined(row["sentences"], row["paragraphs"])
            similarity = round(signatures.jaccard(text, other, config.dedup_ngram), 3)
            yield Copy(id=row["id"], title=row["title"], reason=reason, similarity=similarity, characters=len(other))

    reason = REASONS[copies.reason[number]]
    if reason:
        found.outcome, found.split = reason, ""
        found.copy_of = next(copies_of([int(copies.of[number])], [reason]))
    others = np.flatnonzero((copies.of == number) & (np.arange(copies.of.size) != number))
    found.copies_in_all = int(others.size)
    shown = others[:COPIES].tolist()
    found.copies = list(copies_of(shown, [REASONS[copies.reason[other]] for other in shown]))
