"""The masking rule salient: one named entity or date of a row, whole (REALM, section 3.4).

The stage `entities` writes a file per corpus shard, and the dataset stage marks the tokens of the
spans, of which the rule draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core import random_keys, storage
from cloze.core.arrow import read_arrow
from cloze.core.ragged import I64, offsets_of, ranges
from cloze.core.random_keys import U64
from cloze.pipeline.dataset.masking.candidates import (
    EncodedText,
    Marker,
    MaskCandidates,
    MaskSelection,
)
from cloze.pipeline.dataset.masking.rules import choose_none

Span = tuple[int, int]
FIRST, OTHER = 1, 2  # marks of a span's tokens
SPANS = pa.schema(
    [
        pa.field("document", pa.uint64(), nullable=False),  # key of the document in the corpus
        pa.field("sentence", pa.int32(), nullable=False),  # its number in the document
        pa.field("start", pa.int32(), nullable=False),  # characters, end exclusive
        pa.field("end", pa.int32(), nullable=False),
        pa.field("type", pa.string(), nullable=False),
    ]
)


def spans_file_name(corpus_shard: str) -> str:
    """Return the name of the file with the spans of a corpus shard, a name or path."""
    return "entities-" + corpus_shard.rpartition("/")[2].removeprefix("corpus-")


def marker(entities: str, corpus_shard: str) -> Marker:
    """Return the function that marks the tokens of a corpus shard's spans."""
    spans = read_arrow(storage.join(entities, spans_file_name(corpus_shard)))
    return lambda text: mark_tokens(text, spans_by_sentence(spans, text.keys, text.counts))


def mark_tokens(text: EncodedText, spans: Mapping[int, Sequence[Span]]) -> npt.NDArray[np.uint8]:
    """Return `FIRST` or `OTHER` for the tokens of spans, else 0, uint8 [T].

    Args:
        spans: those of a sentence by its number, characters, end exclusive.
    """
    marks = np.zeros(int(text.offsets[-1]), np.uint8)
    numbers = list(spans)
    before = text.follows_space.astype(int)  # characters in front of the sentence
    texts = [" " * before[number] + text.sentences[number] for number in numbers]
    encoded = text.tokenizer.encode_with_offsets(texts)
    for number, (_, places) in zip(numbers, encoded, strict=True):
        own = marks[text.offsets[number] : text.offsets[number + 1]]
        begins, ends = (places - before[number]).T
        for start, end in spans[number]:
            inside = np.flatnonzero((begins < end) & (ends > start))
            own[inside], own[inside[:1]] = OTHER, FIRST
    return marks


def spans_by_sentence(
    spans: pa.Table, keys: U64, counts: npt.NDArray[Any]
) -> dict[int, list[Span]]:
    """Return the spans of some of a shard's documents by sentence, numbered over all of them.

    Args:
        spans: as in `SPANS`; those of other documents are left out.
        keys: uint64 [D], the documents.
        counts: int64 [D], sentences of each document.
    """
    order = np.argsort(keys, kind="stable")
    found = spans["document"].to_numpy()
    places = np.searchsorted(keys, found, sorter=order).clip(max=max(0, len(keys) - 1))
    own = np.flatnonzero(keys[order][places] == found) if len(keys) else np.zeros(0, np.int64)
    numbers: I64 = offsets_of(counts)[order[places[own]]] + spans["sentence"].to_numpy()[own]
    starts, ends = (spans[name].to_numpy()[own].tolist() for name in ("start", "end"))
    grouped: dict[int, list[Span]] = {}
    for number, start, end in zip(numbers.tolist(), starts, ends, strict=True):
        grouped.setdefault(number, []).append((start, end))
    return grouped


def choose_salient(candidates: MaskCandidates, budget: I64, keys: U64) -> MaskSelection:
    """Choose one salient span of each row, for each (row, copy), if the row has one.

    All spans of at most `max_predictions` tokens are equally likely; the mask rate does not matter.
    A span is replaced as one. A span that its row cuts is masked as far as the row has it.
    """
    if candidates.rows.marks is None:
        return choose_none(candidates, budget, keys)
    marks = candidates.rows.marks[candidates.index]
    opens = (marks == FIRST) | (
        (marks > 0) & (candidates.opens_run() | (np.append(0, marks[:-1]) == 0))
    )
    starts = np.flatnonzero(opens)
    lengths = np.bincount(np.cumsum(opens)[marks > 0] - 1, minlength=len(starts)).astype(np.int64)
    allowed = lengths <= candidates.config.max_predictions
    starts, lengths = starts[allowed], lengths[allowed]
    first = np.searchsorted(starts, candidates.offsets)  # spans before each row
    spans = np.diff(first)[:, None]
    drawn = random_keys.randint_below(
        random_keys.splitmix64(keys ^ random_keys.splitmix64(0)), np.maximum(spans, 1)
    ).astype(np.int64)
    chosen = (first[:-1, None] + drawn)[np.broadcast_to(spans > 0, keys.shape)]
    counts = np.zeros(keys.shape, np.int64)
    counts[np.broadcast_to(spans > 0, keys.shape)] = lengths[chosen]
    row = np.repeat(np.arange(len(keys)), counts.sum(axis=1))
    begins = np.repeat(candidates.index[starts[chosen]], lengths[chosen])
    return MaskSelection(
        index=ranges(starts[chosen], lengths[chosen]),
        counts=counts.reshape(-1),
        unit=begins - candidates.rows.offsets[row],
    )
