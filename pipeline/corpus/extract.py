"""Corpus stage, first step: a split -> its documents, cleaned, filtered and cut into sentences, in a part file.

What comes back is small: counters, what could not be read, and a few examples of what was dropped. The part's
references (pipeline/corpus/parts.py) are what the search for copies looks at.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import pyarrow as pa

from pipeline.core import random_keys, storage
from pipeline.core.shards import HELDOUT, TRAIN
from pipeline.corpus.dedup import decontaminate, signatures
from pipeline.corpus.document import HOLE, Document
from pipeline.corpus.parts import REJECTED, Runs, references_schema, well_formed
from pipeline.corpus.readers import find_reader
from pipeline.corpus.readers.base import Settings, Split, Tally
from pipeline.corpus.schema import CORPUS
from pipeline.corpus.steps import sentences
from pipeline.corpus.steps.chain import build_steps, run_steps
from pipeline.corpus.steps.result import Result
from pipeline.corpus.text_config import TextConfig

EXAMPLES = 3  # of each reason
EXAMPLE_CHARACTERS = 300


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """Decontamination: the saved `TaskIndex`, what it was made from, and what is dropped."""

    path: str
    fingerprint: str
    unit: Literal["document", "paragraph"]
    minimum_characters: int


@dataclass(frozen=True, kw_only=True)
class ReadSplit:
    """Read, clean, filter and split into sentences the documents of one split.

    Attributes:
        parts: the directory to write to.
        text: a `TextConfig` as a dict.
        settings: `Settings` as a dict, of plain values.
        heldout_fraction: as in `CorpusConfig`.
        minhash: parameters of the signatures for near copies; None: none are made.
        verified: whether sketches are kept, by which candidates are compared.
        tasks: what documents may not hold; None: all may be held.
        keep_rejected: whether what is dropped is written out.
    """

    parts: str
    text: Mapping[str, Any]
    settings: Mapping[str, Any]
    heldout_fraction: float
    minhash: signatures.MinHash | None
    verified: bool
    tasks: Tasks | None
    keep_rejected: bool

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Read one split.

        Args:
            unit: `name` of the part and the `split`.

        Returns:
            counters, documents, bytes of text, what was rejected, matches with tasks, and examples of what was dropped.
        """
        split = as_split(unit["split"])
        settings = as_settings(self.settings)
        tally = Tally(split=split, stop=settings.stop)
        path = storage.join(self.parts, unit["name"])
        with _PartWriter(path, references_schema(self.minhash, self.verified), self.keep_rejected) as writer:
            work = _Work(self, tally, writer)
            for raw in find_reader(split.kind).read(split, settings, tally):
                work.take(raw)
            writer.finish()
            documents, size = writer.documents, writer.bytes
        return {
            "counters": dict(tally.counters),
            "documents": documents,
            "bytes": size,
            "rejected": [asdict(rejected) for rejected in tally.rejected],
            "tasks": work.tasks,
            "examples": work.examples.as_json(),
        }


class _Work:
    """What is done with each document of one split."""

    def __init__(self, how: ReadSplit, tally: Tally, writer: _PartWriter) -> None:
        self.how, self.tally, self.writer = how, tally, writer
        self.config = TextConfig(**how.text)
        self.steps = build_steps(self.config)
        self.index = decontaminate.loaded(how.tasks.path, how.tasks.fingerprint) if how.tasks else None
        self.tasks: dict[str, int] = {}
        self.examples = Examples()
        self._seen: list[tuple[str, Result]] = []

    def take(self, raw: Document) -> None:
        """Take one document through the steps, and write it, or note why not."""
        raw = well_formed(raw)
        self._seen.clear()
        result = run_steps(raw, self.steps, self._observe)
        detail = ""
        if result.document is not None and self.index is not None:
            result, detail = self._decontaminated(result.document)
        for step, seen in self._seen:
            for removed in seen.removed:
                self.tally.drop_lines(removed.reason)
                self._reject(raw, "line", step, removed.reason, detail if step == decontaminate.NAME else "", removed.text)
        if result.document is None:
            self._drop(raw, self._seen[-1][0], str(result.reason), detail)
            return
        document = result.document
        found = sentences.split(document.paragraphs, document.language or self.config.fallback_language)
        self.tally.drop_lines("formula", found.holes)
        for sentence in found.dropped:
            self._reject(document, "line", "sentences", "formula", "", sentence.replace(HOLE, "[…]"))
        if not found.texts:
            self._drop(document, "sentences", "too_short", "")
            return
        self.writer.add(self._row(document, found))

    def _decontaminated(self, document: Document) -> tuple[Result, str]:
        """What is left of it, and the words that it shares with tasks."""
        if self.index is None or self.how.tasks is None:
            return Result(document), ""
        how = self.how.tasks
        result, matches = decontaminate.decontaminate(document, self.index, how.unit, how.minimum_characters)
        self._observe(decontaminate.NAME, document, result)
        for task in sorted({match.task for match in matches}):
            self.tasks[task] = self.tasks.get(task, 0) + 1
        return result, "; ".join(match.words for match in matches)

    def _observe(self, step: str, before: Document, result: Result) -> None:
        del before
        if result.removed or result.document is None:
            self._seen.append((step, result))

    def _drop(self, document: Document, step: str, reason: str, detail: str) -> None:
        self.tally.drop(reason)
        self._reject(document, "document", step, reason, detail, document.text)

    def _reject(self, document: Document, scope: str, step: str, reason: str, detail: str, text: str) -> None:
        """Note an example, and write it out if that is wanted."""
        self.examples.offer(scope, reason, document, text)
        if self.how.keep_rejected:
            row = {
                "key": random_keys.document_key(document.id),
                "id": document.id,
                "source": document.source,
                "title": document.title,
                "scope": scope,
                "step": step,
                "reason": reason,
                "detail": detail,
                "text": text,
            }
            self.writer.reject(row)

    def _row(self, document: Document, found: sentences.Sentences) -> dict[str, Any]:
        """A row of CORPUS and its reference."""
        text = " ".join(found.texts)
        key = random_keys.document_key(document.id)
        signature = signatures.signature(text, self.how.minhash)
        heldout = float(random_keys.uniform(random_keys.mix(key))) < self.how.heldout_fraction
        row: dict[str, Any] = {
            "key": key,
            "id": document.id,
            "source": document.source,
            "title": document.title,
            "split": HELDOUT if heldout else TRAIN,
            "sentences": found.texts,
            "paragraphs": found.paragraphs,
            "characters": len(text),
            "bytes": len(text) if text.isascii() else len(text.encode()),
            "heldout": heldout,
            "exact_high": int.from_bytes(signature.exact[:8], "little"),
            "exact_low": int.from_bytes(signature.exact[8:], "little"),
        }
        if signature.bands is not None and signature.sketch is not None:
            row |= {f"band_{band:02d}": value for band, value in enumerate(signature.bands.tolist())}
            if self.how.verified:
                row["sketch"] = signature.sketch.tobytes()
        return row


class Examples:
    """A few dropped documents and lines of each reason, chosen by a hash of their ids and text, never by their order."""

    def __init__(self) -> None:
        self._chosen: dict[tuple[str, str], list[tuple[int, str, str]]] = {}

    def offer(self, scope: str, reason: str, document: Document, text: str) -> None:
        """Take it if it is among the first by its hash."""
        rank = -random_keys.document_key(f"{document.id}\0{text[:EXAMPLE_CHARACTERS]}")
        chosen = self._chosen.setdefault((scope, reason), [])
        if len(chosen) < EXAMPLES:
            heapq.heappush(chosen, (rank, document.title or document.id, text[:EXAMPLE_CHARACTERS]))
        elif rank > chosen[0][0]:
            heapq.heapreplace(chosen, (rank, document.title or document.id, text[:EXAMPLE_CHARACTERS]))

    def as_json(self) -> list[list[Any]]:
        """[scope, reason, hash, title, text] of each."""
        return [
            [*name, -rank, title, text] for name, chosen in sorted(self._chosen.items()) for rank, title, text in sorted(chosen)
        ]


class _PartWriter:
    """The three files of a part, written together, and there only if all of it went well."""

    def __init__(self, path: str, references: pa.Schema, keep_rejected: bool) -> None:
        self._stack = contextlib.ExitStack()
        self._names = {f"{path}.arrow": CORPUS, f"{path}.refs.arrow": references}
        self._references = references
        self._rejects = f"{path}.rejected.arrow" if keep_rejected else None
        self._runs = Runs(pa.schema([*CORPUS, *(field for field in references if field.name != "key")]))
        self._rejected = Runs(REJECTED)
        self._files: list[Any] = []
        self.documents = self.bytes = 0

    def __enter__(self) -> _PartWriter:
        names = {**self._names, **({self._rejects: REJECTED} if self._rejects else {})}
        for name, arrow_schema in names.items():
            handle = self._stack.enter_context(storage.atomic_output(name))
            self._files.append(self._stack.enter_context(pa.ipc.new_file(handle, arrow_schema)))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def finish(self) -> None:
        """Write what is still held."""
        self._write(self._runs.close())
        self._write_rejected(self._rejected.close())

    def add(self, row: dict[str, Any]) -> None:
        self.documents += 1
        self.bytes += row["bytes"]
        self._write(self._runs.add(row, row["bytes"]))

    def reject(self, row: dict[str, Any]) -> None:
        self._write_rejected(self._rejected.add(row, len(row["text"])))

    def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            for file, arrow_schema in zip(self._files, (CORPUS, self._references), strict=False):
                columns = [batch[name] for name in arrow_schema.names]
                file.write_batch(pa.RecordBatch.from_arrays(columns, schema=arrow_schema))

    def _write_rejected(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            self._files[2].write_batch(batch)


def as_split(value: Mapping[str, Any]) -> Split:
    """A split from JSON, where tuples have become lists."""
    part, named = value.get("part"), value.get("fields") or ()
    return Split(**{**value, "part": tuple(part) if part else None, "fields": tuple((name, column) for name, column in named)})


def as_settings(values: Mapping[str, Any]) -> Settings:
    """Settings from plain values: headings and names are compared in lower case."""
    made: dict[str, Any] = {
        field.name: frozenset(name.strip().lower() for name in values[field.name])
        if isinstance(values[field.name], (list, tuple))
        else values[field.name]
        for field in fields(Settings)
        if field.name in values
    }
    return Settings(**made)
