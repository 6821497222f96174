"""Statistics of the kept documents, computed by shard and added up.

Statistics are sums, or samples by a hash of the document's key: they do not depend on shards or
workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloze.core import random_keys
from cloze.core.humanize import most_first
from cloze.core.ragged import I64
from cloze.core.words import count_words
from cloze.pipeline.corpus.steps.filters.language import identify

SAMPLES = 8
SAMPLE_CHARACTERS = 700
LANGUAGE_DOCUMENTS = 2000  # approximate number of documents identified
LANGUAGE_CHARACTERS = 2000
_SAMPLE, _LANGUAGE = 0x53414D50, 0x4C414E47
ORIGIN = ["kind", "origin", "licence"]
FIGURES = ("documents", "sentences", "words", "characters", "bytes")
_FIGURES = pa.schema(
    [*((name, pa.string()) for name in ORIGIN), *((name, pa.int64()) for name in FIGURES)]
)

# Upper limits of the bins in words; the last bin is open.
DOCUMENT_BINS = (25, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200)
SENTENCE_BINS = (2, 4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 70, 100)


def measure(batch: pa.RecordBatch, total: int) -> dict[str, Any]:
    """Return the statistics of one shard.

    Args:
        batch: schema CORPUS.
        total: documents in the whole corpus; sets the sampling rate.

    Returns:
        `origins` (documents, sentences, words, characters and bytes by kind, origin and licence),
        `documents` and `sentences` (counts per bin), `samples`, `languages` (sampled documents by
        language), and `infoboxes` (documents with one, and their fields).
    """
    sentences = batch["sentences"]
    offsets = sentences.offsets.to_numpy().astype(np.int64)
    flat = sentences.flatten()
    sentence_bytes = pc.binary_length(flat).to_numpy(zero_copy_only=False).astype(np.int64)
    sentence_characters = pc.utf8_length(flat).to_numpy(zero_copy_only=False).astype(np.int64)
    sentence_words = _words(flat, sentence_bytes)
    counts = np.diff(offsets)
    words = _sums(sentence_words, offsets)
    figures = {
        "documents": np.ones(len(batch), dtype=np.int64),
        "sentences": counts,
        "words": words,
        "characters": _sums(sentence_characters, offsets)
        + np.maximum(counts - 1, 0),  # including the blanks between sentences
        "bytes": _sums(sentence_bytes, offsets) + np.maximum(counts - 1, 0),
    }
    names = {"kind": batch["source"], "origin": batch["origin"], "licence": batch["licence"]}
    groups = pa.table(names | figures).cast(_FIGURES).group_by(ORIGIN)
    fields = np.diff(batch["infobox"].offsets.to_numpy())
    sums = groups.aggregate([(name, "sum") for name in figures]).rename_columns(_FIGURES.names)
    return {
        "origins": sums.sort_by([(name, "ascending") for name in ORIGIN]).to_pylist(),
        "documents": _histogram(words, DOCUMENT_BINS),
        "sentences": _histogram(sentence_words, SENTENCE_BINS),
        "samples": _samples(batch, total),
        "languages": _languages(batch, total),
        "infoboxes": {"documents": int((fields > 0).sum()), "fields": int(fields.sum())},
    }


def _words(flat: pa.Array, sizes: I64) -> I64:
    """Return the number of words of each sentence; unspaced scripts as in `count_words`."""
    if not len(flat):
        return np.zeros(0, dtype=np.int64)
    ends = np.frombuffer(
        flat.buffers()[1], dtype=np.int32, count=len(flat) + 1, offset=4 * flat.offset
    ).astype(np.int64)
    data = np.frombuffer(flat.buffers()[2], dtype=np.uint8)[ends[0] : ends[-1]]
    ends -= ends[0]
    inked = data > 0x20
    begins = inked.copy()  # first letter of a word: after a blank, or at the start of a sentence
    begins[1:] &= ~inked[:-1]
    opening = ends[:-1][sizes > 0]
    begins[opening] = inked[opening]
    words: I64 = np.diff(np.searchsorted(np.flatnonzero(begins), ends)).astype(np.int64, copy=False)
    # first bytes of letters of unspaced scripts, and of no other punctuation
    asian = (data >= 0xE0) & (data != 0xE2) & (data != 0xEF)
    for row in np.flatnonzero(np.diff(np.searchsorted(np.flatnonzero(asian), ends))).tolist():
        words[row] = count_words(flat[row].as_py())
    return words


def _sums(values: I64, offsets: I64) -> I64:
    running = np.concatenate(([0], np.cumsum(values)))
    sums: I64 = np.diff(running[offsets - offsets[0]])
    return sums


def added(rows: Iterable[Mapping[str, Any]], *names: str) -> dict[tuple[str, ...], dict[str, int]]:
    """Sum the integer columns of rows that agree in `names`."""
    sums: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        figures = {name: value for name, value in row.items() if isinstance(value, int)}
        known = sums.setdefault(tuple(row[name] for name in names), dict.fromkeys(figures, 0))
        for name, value in figures.items():
            known[name] += value
    return dict(sorted(sums.items()))


def _histogram(values: I64, bins: tuple[int, ...]) -> list[int]:
    """Return the number of values per bin; the last count is of values above all limits."""
    counts: list[int] = np.bincount(np.searchsorted(bins, values), minlength=len(bins) + 1).tolist()
    return counts


def _lowest(
    batch: pa.RecordBatch, salt: int, count: int, total: int
) -> tuple[I64, random_keys.U64]:
    """Return the documents whose hash is below `count` of `total`, and the hashes."""
    ranks = random_keys.fold_in(salt, batch["key"].to_numpy())
    rows = np.flatnonzero(random_keys.uniform(ranks) * max(total, 1) < count)
    return rows, ranks[rows]


def _samples(batch: pa.RecordBatch, total: int) -> list[dict[str, Any]]:
    rows, ranks = _lowest(batch, _SAMPLE, 8 * SAMPLES, total)
    best = np.argsort(ranks, kind="stable")[:SAMPLES]
    samples = []
    for row, rank in zip(rows[best].tolist(), ranks[best].tolist(), strict=True):
        document = batch.slice(row, 1).to_pylist()[0]
        text = ""
        for number, sentence in enumerate(document["sentences"]):
            text += ("\n" if number in document["paragraphs"] else " ") * bool(number) + sentence
            if len(text) > SAMPLE_CHARACTERS:
                break
        samples.append(
            {
                "rank": rank,
                **{name: document[name] for name in ("id", "title", "source", "split")},
                "sentences": len(document["sentences"]),
                "text": text[:SAMPLE_CHARACTERS] + ("…" if len(text) > SAMPLE_CHARACTERS else ""),
            }
        )
    return samples


def _languages(batch: pa.RecordBatch, total: int) -> dict[str, int]:
    rows = _lowest(batch, _LANGUAGE, LANGUAGE_DOCUMENTS, total)[0].tolist()
    texts = (" ".join(batch["sentences"][row].as_py())[:LANGUAGE_CHARACTERS] for row in rows)
    return dict(Counter(identify(text)[0] for text in texts))


def add_up(shards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Combine the statistics of all shards; adds `sources`, the sums by kind."""
    origins: list[Mapping[str, Any]] = []
    documents = np.zeros(len(DOCUMENT_BINS) + 1, dtype=np.int64)
    sentences = np.zeros(len(SENTENCE_BINS) + 1, dtype=np.int64)
    samples: list[dict[str, Any]] = []
    languages = Counter[str]()
    infoboxes = {"documents": 0, "fields": 0}
    for shard in shards:
        origins += shard["origins"]
        documents += np.array(shard["documents"])
        sentences += np.array(shard["sentences"])
        samples = sorted(
            [*samples, *shard["samples"]], key=lambda sample: (sample["rank"], sample["id"])
        )[:SAMPLES]
        languages.update(shard["languages"])
        infoboxes = {name: count + shard["infoboxes"][name] for name, count in infoboxes.items()}
    return {
        "sources": {kind: figures for (kind,), figures in added(origins, "kind").items()},
        "origins": [
            dict(zip(ORIGIN, names, strict=True)) | figures
            for names, figures in added(origins, *ORIGIN).items()
        ],
        "documents": documents.tolist(),
        "sentences": sentences.tolist(),
        "samples": [
            {name: value for name, value in sample.items() if name != "rank"} for sample in samples
        ],
        "languages": most_first(languages),
        "infoboxes": infoboxes,
    }
