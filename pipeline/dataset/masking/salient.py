"""Salient spans of a corpus, for the masking rule salient: named entities and dates.

The stage `entities` (`cloze.model.use.entities`) writes a file per corpus shard, and the dataset
stage marks the tokens of the spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.core.artifacts import artifact, fingerprints
from cloze.core.errors import UsageError
from cloze.core.ragged import I64, offsets_of
from cloze.core.random_keys import U64

SALIENT_RULE = "salient"
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


def check_entities(rule: str, inputs: Mapping[str, Any]) -> None:
    """Check that the rule salient has the spans of this corpus, and no other rule has any.

    Raises:
        UsageError: `entities` is missing, of another corpus, or not read.
    """
    path, needed = inputs.get("entities"), rule == SALIENT_RULE
    if needed != (path is not None):
        found = "found none; make them: cloze tag-corpus" if needed else f"found {path}"
        raise UsageError(f"masking ({rule}) and entities must come together ({found})")
    if path is not None:
        corpus = fingerprints.input_fingerprint(inputs["corpus"])
        if artifact.read_manifest(path).parents.get("corpus") != corpus:
            raise UsageError(f"entities ({path}) are of another corpus than {inputs['corpus']}")


def spans_by_sentence(
    spans: pa.Table, keys: U64, counts: npt.NDArray[Any]
) -> dict[int, list[tuple[int, int]]]:
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
    grouped: dict[int, list[tuple[int, int]]] = {}
    for number, start, end in zip(numbers.tolist(), starts, ends, strict=True):
        grouped.setdefault(number, []).append((start, end))
    return grouped
