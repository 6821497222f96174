"""Corpus stage, first step: slices -> their documents, cleaned, filtered and cut into sentences, in a part.

What comes back is small: counters, what could not be read, and a few examples of what was dropped. The part's
references (pipeline/corpus/parts.py) are what the search for duplicates looks at.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from pipeline.core import random_keys, storage
from pipeline.core.shards import HELDOUT, TRAIN
from pipeline.corpus.config import CorpusConfig
from pipeline.corpus.dedup.options import MinHash
from pipeline.corpus.dedup.signatures import signature
from pipeline.corpus.document import Document, well_formed
from pipeline.corpus.mixing import language_code
from pipeline.corpus.part_writer import PartWriter
from pipeline.corpus.parts import references_schema
from pipeline.corpus.provenance import Origin, licence_name
from pipeline.corpus.readers import find_reader
from pipeline.corpus.readers.base import Slice, Tally
from pipeline.corpus.steps.base import Sentences, StepResult
from pipeline.corpus.steps.chain import build_steps, run_steps
from pipeline.corpus.steps.personal_data import telling
from pipeline.corpus.steps.word_count import count_words

EXAMPLES = 3  # of each reason
EXAMPLE_CHARACTERS = 300


def read_documents(config: CorpusConfig, tally: Tally) -> Iterator[Document]:
    """The documents of the tally's slice, as their reader gives them, with their licence and origin; they can be written."""
    for document in find_reader(tally.slice.kind).read(tally.slice, config, tally):
        origin = tally.origin
        licence = licence_name(document.licence) or origin.licence
        yield well_formed(replace(document, licence=licence, origin=origin.label) if licence or origin.label else document)


def is_heldout(key: int, fraction: float) -> bool:
    """Whether the document of this key is of the held-out split."""
    return float(random_keys.uniform(random_keys.mix(key))) < fraction


@dataclass(frozen=True, kw_only=True)
class ReadBundle:
    """Read, clean, filter and split into sentences the documents of a bundle of slices.

    Attributes:
        parts: the directory to write to.
        config: of the stage.
        prepared: what `prepare_steps` gave for it.
    """

    parts: str
    config: CorpusConfig
    prepared: Mapping[str, Any]

    def __call__(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Read the slices, each with a tally of its own.

        Args:
            unit: `name` of the part and the `slices`.

        Returns:
            counters, documents, bytes of text, what was unreadable, matches with tasks, examples of what was dropped, and where
            the documents are from.
        """
        config = self.config
        minhash = config.minhash()
        references = references_schema(minhash, config.dedup_similarity > 0, config.mixes)
        steps = build_steps(config, self.prepared)
        with PartWriter(storage.join(self.parts, unit["name"]), references, config.keep_rejected) as writer:
            dropped = _Dropped(writer if config.keep_rejected else None, telling(config))
            origins: set[Origin] = set()
            tallies = [Tally(slice=Slice.from_json(one), stop=config.on_error == "stop") for one in unit["slices"]]
            for tally in tallies:
                for raw in read_documents(config, tally):
                    dropped.begin(raw, tally)
                    origins.add(tally.origin)
                    result = run_steps(raw, steps, dropped.observe)
                    if result.document is not None and result.sentences is not None:
                        writer.add(_row(result.document, result.sentences, config, minhash))
            writer.finish()
        counters: Counter[str] = Counter()
        for tally in tallies:
            counters.update(tally.counters)
        return {
            "counters": dict(counters),
            "documents": writer.documents,
            "bytes": writer.bytes,
            "unreadable": [asdict(entry) for tally in tallies for entry in tally.unreadable],
            "tasks": dropped.tasks,
            "examples": dropped.examples.as_json(),
            "origins": sorted(map(asdict, origins), key=lambda one: tuple(one.values())),
        }


class _Dropped:
    """Counts and notes what the steps drop of documents.

    Args:
        writer: of the part; None: what is dropped is not written out.
        telling: what may be shown of a document's text.
    """

    def __init__(self, writer: PartWriter | None, telling: Callable[[Document, str], str]) -> None:
        self._writer, self._telling = writer, telling
        self.tasks: Counter[str] = Counter()
        self.examples = Examples()

    def begin(self, raw: Document, tally: Tally) -> None:
        """The document that is observed next, as its reader gave it, and the tally of its slice."""
        self._raw, self._tally = raw, tally

    def observe(self, step: str, before: Document, result: StepResult) -> None:
        """See `pipeline.corpus.steps.chain.run_steps`."""
        if not result.removed and result.document is not None:
            return
        document = before if step == "sentences" else self._raw
        detail = "; ".join(match.words for match in result.matches)
        self.tasks.update({match.task for match in result.matches})
        for removed in result.removed:
            self._tally.drop_lines(removed.reason)
            self._note(document, "line", step, removed.reason, detail, removed.text)
        if result.document is None:
            self._tally.drop(str(result.reason))
            self._note(document, "document", step, str(result.reason), detail, document.text)

    def _note(self, document: Document, scope: str, step: str, reason: str, detail: str, text: str) -> None:
        """Note an example, and write it out if that is wanted."""
        text = self._telling(document, text)
        document = replace(document, title=self._telling(document, document.title))
        self.examples.offer(scope, reason, document, text)
        if self._writer is not None:
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
            self._writer.reject(row)


def _row(document: Document, sentences: Sentences, config: CorpusConfig, minhash: MinHash | None) -> dict[str, Any]:
    """A row of CORPUS and its reference."""
    text = " ".join(sentences.texts)
    key = random_keys.document_key(document.id)
    found = signature(text, minhash)
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
        "exact_high": int.from_bytes(found.exact[:8], "little"),
        "exact_low": int.from_bytes(found.exact[8:], "little"),
    }
    if config.mixes:
        row |= {"words": sum(map(count_words, sentences.texts)), "language": language_code(document.language)}
    if found.bands is not None and found.sketch is not None:
        row |= {f"band_{band:02d}": value for band, value in enumerate(found.bands.tolist())}
        if config.dedup_similarity > 0:
            row["sketch"] = found.sketch.tobytes()
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
