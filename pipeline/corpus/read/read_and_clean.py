"""First step of the corpus stage: read slices, clean their documents, write intermediate files."""

from __future__ import annotations

import contextlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.core.artifacts.artifact import HELDOUT, TRAIN
from cloze.core.words import count_words
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.document import Document, replace_surrogates, sanitize_document
from cloze.pipeline.corpus.files.intermediate import DROPPED_SCHEMA, PART, signatures_schema
from cloze.pipeline.corpus.mixing import language_code
from cloze.pipeline.corpus.options import MinHash
from cloze.pipeline.corpus.provenance import Origin, licence_name
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters, Slice, UnreadableItem
from cloze.pipeline.corpus.signatures import signature
from cloze.pipeline.corpus.steps.base import CleaningResult, Sentences
from cloze.pipeline.corpus.steps.chain import build_steps, run_steps
from cloze.pipeline.corpus.steps.personal_data import make_redactor

BATCH_BYTES, BATCH_DOCUMENTS = 256 << 10, 1 << 10  # limits of a record batch


class BatchWriter:
    """Writer of rows to files that have some of the columns each, in the same record batches."""

    def __init__(self, files: Sequence[tuple[pa.RecordBatchFileWriter, pa.Schema]]) -> None:
        self._files = files
        fields = {field.name: field for _, arrow_schema in files for field in arrow_schema}
        self._schema = pa.schema(fields.values())
        self._pending: list[dict[str, Any]] = []
        # rows and bytes: number of rows, and bytes of their text
        self._size = self.rows = self.bytes = 0

    def add(self, row: dict[str, Any], size: int) -> None:
        """Add a row with so many bytes of text."""
        self._pending.append(row)
        self._size += size
        self.rows, self.bytes = self.rows + 1, self.bytes + size
        if self._size >= BATCH_BYTES or len(self._pending) >= BATCH_DOCUMENTS:
            self.flush()

    def flush(self) -> None:
        """Write the rows that are no full batch."""
        if self._pending:
            batch = pa.RecordBatch.from_pylist(self._pending, schema=self._schema)
            for file, arrow_schema in self._files:
                file.write_batch(batch.select(arrow_schema.names).cast(arrow_schema))
        self._pending, self._size = [], 0


@contextlib.contextmanager
def writing_batches(files: Mapping[str, pa.Schema]) -> Iterator[BatchWriter]:
    """Give a writer of files with these schemas, which exist when the block has ended."""
    with contextlib.ExitStack() as stack:
        outputs = []
        for path, arrow_schema in files.items():
            handle = stack.enter_context(storage.atomic_output(path))
            file = stack.enter_context(pa.ipc.new_file(handle, arrow_schema))
            outputs.append((file, arrow_schema))
        writer = BatchWriter(outputs)
        yield writer
        writer.flush()


EXAMPLES = 3  # per reason
EXAMPLE_CHARACTERS = 300


def read_documents(config: CorpusConfig, counters: ReadCounters) -> Iterator[Document]:
    """Yield the documents of a slice with licence, origin and language, free of lone surrogates."""
    reader = READERS.find(counters.slice.kind)
    if not reader.takes_names and not storage.is_file(counters.slice.path):
        counters.quarantine("no_file", "it is a link that leads to no file, or a pipe")
        return
    for document in reader.read(counters.slice, config, counters):
        origin = counters.origin
        licence = licence_name(document.licence) or origin.licence
        if licence or origin.label:
            document = replace(document, licence=licence, origin=origin.label)
        document = sanitize_document(document, keep_internal=reader.places_internal)
        if config.identify is not None and not document.language:
            language = config.identify(document.text)
            counters.counters[f"language/{language or 'unknown'}"] += 1
            if language not in ("", config.fallback_language):
                document = replace(document, language=language)
        yield document
    if counters.slice.span is None and not counters.counters:
        counters.quarantine("empty_file", "the file holds no document")


def is_heldout(key: int, fraction: float) -> bool:
    """Return True if the document with this key is held out."""
    return float(random_keys.uniform(random_keys.splitmix64(key))) < fraction


@dataclass(frozen=True, kw_only=True)
class ReadSliceGroup:
    """Read, clean, filter and split the documents of a group of slices."""

    parts: str  # directory of the intermediate files
    config: CorpusConfig  # config of the stage
    prepared: Mapping[str, Any]  # result of `prepare_steps`

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Read the slices, with separate counters per slice.

        Args:
            unit: `name` of the intermediate file and the `slices`.

        Returns:
            counters, documents, bytes of text, unreadable places, matches by task, examples of
            dropped text, and origins.
        """
        config = self.config
        minhash = config.minhash()
        references = signatures_schema(minhash, config.dedup_similarity > 0, config.mixes)
        steps = build_steps(config, self.prepared)
        path = storage.join(self.parts, unit["name"])
        rejects = {f"{path}.dropped.arrow": DROPPED_SCHEMA} if config.keep_dropped else {}
        with (
            writing_batches({f"{path}.arrow": PART, f"{path}.refs.arrow": references}) as writer,
            writing_batches(rejects) as rejected,
        ):
            dropped = _Dropped(rejected if rejects else None, make_redactor(config))
            origins: set[Origin] = set()
            slice_counters = [
                ReadCounters(
                    slice=Slice.from_json(planned),
                    stop=config.on_error == "stop",
                    allowed=config.unreadable_share,
                )
                for planned in unit["slices"]
            ]
            for each in slice_counters:
                for raw in read_documents(config, each):
                    dropped.begin(raw, each)
                    origins.add(each.origin)
                    result = run_steps(raw, steps, dropped.observe)
                    if result.document is not None and result.sentences is not None:
                        row = _row(result.document, result.sentences, config, minhash)
                        writer.add(row, row["bytes"])
        counters: Counter[str] = Counter()
        for each in slice_counters:
            counters.update(each.counters)
            if each.slice.span is None or not each.slice.span[0]:
                refused = each.slice.span is None and not each.counters["read/documents"]
                counters[f"files/{'refused' if refused else 'read'}"] += 1
        return {
            "counters": dict(counters),
            "documents": writer.rows,
            "bytes": writer.bytes,
            "unreadable": [
                _masked(entry, dropped.redact) for each in slice_counters for entry in each.report()
            ],
            "tasks": dropped.tasks,
            "examples": dropped.examples.as_json(),
            "origins": sorted(map(asdict, origins), key=lambda origin: tuple(origin.values())),
        }


_Redactor = Callable[[Document, str], tuple[Document, str]]


def _masked(entry: UnreadableItem, redact: _Redactor) -> dict[str, Any]:
    """Return an entry without personal data: it may name a file in an archive, or a field."""
    place = Document(id=entry.file, source="", title="", paragraphs=())
    place, sentence = redact(place, entry.sentence)
    return {**asdict(entry), "file": place.id, "sentence": sentence}


class _Dropped:
    """Counter and recorder of what the cleaning steps drop.

    Args:
        writer: receives the dropped texts; None: they are not written.
        redact: redacts a document and its text for output.
    """

    def __init__(self, writer: BatchWriter | None, redact: _Redactor) -> None:
        self._writer, self.redact = writer, redact
        self.tasks: Counter[str] = Counter()
        self.examples = DroppedExamples()

    def begin(self, raw: Document, counters: ReadCounters) -> None:
        """Set the raw document that is observed next, and the counters of its slice.

        What the reader left out is noted; the reader has counted it.
        """
        self._raw, self._counters = raw, counters
        for reason, text in raw.left_out:
            self._note(raw, "line", "read", reason, "", replace_surrogates(text))

    def observe(self, step: str, before: Document, result: CleaningResult) -> None:
        """Count and record what a step dropped; the `observe` argument of `run_steps`."""
        if not result.removed and result.document is not None:
            return
        document = before if step == "sentences" else self._raw
        detail = "; ".join(match.words for match in result.matches)
        self.tasks.update({match.task for match in result.matches})
        for removed in result.removed:
            self._counters.drop_lines(removed.reason)
            self._note(document, "line", step, removed.reason, detail, removed.text)
        if result.document is None:
            self._counters.drop(str(result.reason))
            self._note(document, "document", step, str(result.reason), detail, document.text)

    def _note(
        self, document: Document, scope: str, step: str, reason: str, detail: str, text: str
    ) -> None:
        """Offer the text as an example and write it if there is a writer."""
        document, text = self.redact(document, text)
        self.examples.offer(scope, reason, document, text)
        if self._writer is not None:
            key, about = random_keys.document_key(document.id), (document.source, document.title)
            values = (key, document.id, *about, scope, step, reason, detail, text)
            self._writer.add(dict(zip(DROPPED_SCHEMA.names, values, strict=True)), len(text))


def _row(
    document: Document, sentences: Sentences, config: CorpusConfig, minhash: MinHash | None
) -> dict[str, Any]:
    """Return a row with the columns of CORPUS and of the signatures."""
    text = " ".join(sentences.texts)
    key = random_keys.document_key(document.id)
    hashes = signature(text, minhash)
    heldout = is_heldout(key, config.heldout_fraction)
    row: dict[str, Any] = {
        "key": key,
        "id": document.id,
        "source": document.source,
        "title": document.title,
        "url": document.url,
        "licence": document.licence,
        "origin": document.origin,
        "infobox": [field._asdict() for field in document.infobox],
        "split": HELDOUT if heldout else TRAIN,
        "sentences": sentences.texts,
        "paragraphs": sentences.paragraphs,
        "characters": len(text),
        "bytes": len(text) if text.isascii() else len(text.encode()),
        "heldout": heldout,
        "exact_high": int.from_bytes(hashes.exact[:8], "little"),
        "exact_low": int.from_bytes(hashes.exact[8:], "little"),
    }
    if config.mixes:
        row["words"] = sum(map(count_words, sentences.texts))
        row["language"] = language_code(document.language)
    if hashes.bands is not None and hashes.sketch is not None:
        row |= {f"band_{band:02d}": value for band, value in enumerate(hashes.bands.tolist())}
        if config.dedup_similarity > 0:
            row["sketch"] = hashes.sketch.tobytes()
    return row


class DroppedExamples:
    """Up to three dropped documents and lines per reason, chosen by hash, independent of order."""

    def __init__(self) -> None:
        self._examples: dict[tuple[str, str], list[tuple[int, str, str]]] = {}

    def offer(self, scope: str, reason: str, document: Document, text: str) -> None:
        """Keep the text if its hash is among the smallest."""
        text = text[:EXAMPLE_CHARACTERS]
        rank = -random_keys.document_key(f"{document.id}\0{text}")
        examples = self._examples.setdefault((scope, reason), [])
        if len(examples) < EXAMPLES:
            heapq.heappush(examples, (rank, document.title or document.id, text))
        elif rank > examples[0][0]:
            heapq.heapreplace(examples, (rank, document.title or document.id, text))

    def as_json(self) -> list[list[Any]]:
        """Return [scope, reason, hash, title, text] per example."""
        return [
            [*name, -rank, title, text]
            for name, examples in sorted(self._examples.items())
            for rank, title, text in sorted(examples)
        ]
