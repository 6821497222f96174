"""From documents to segments: how a recipe cuts text into rows, and what it asks of the two halves of one.

A pairing is one file here and one line in the table: a function `(Documents, PairConfig) -> Segments`. No two of its rows
may have the same document and offset, because a row's random numbers follow from (seed, document, offset).
"""

from __future__ import annotations

from typing import NamedTuple


class PairingEntry(NamedTuple):
    """A row of the table: named, not imported, so that configs can check a name without loading numpy."""

    function: str  # `module:function`
    task: str | None  # what the pair labels mean to a model: nsp, sop, or None for rows without labels
    packed: bool = False  # whether rows hold several sequences, with boundaries


PAIRINGS = {
    "nsp": PairingEntry("pipeline.dataset.pairs.nsp:next_sentence", "nsp"),
    "segment-pair": PairingEntry("pipeline.dataset.pairs.nsp:segment_pairs", None),
    "sop": PairingEntry("pipeline.dataset.pairs.sop:sentence_order", "sop"),
    "full": PairingEntry("pipeline.dataset.pairs.runs:full", None),
    "document": PairingEntry("pipeline.dataset.pairs.runs:document", None),
    "packed": PairingEntry("pipeline.dataset.pairs.runs:packed", None, packed=True),
    "electra": PairingEntry("pipeline.dataset.pairs.electra:electra", None),
}

PACKINGS = ("best-fit", "in-order")
