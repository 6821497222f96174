"""From documents to segments: how a recipe cuts text into rows, and what it asks of the two halves of one.

A pairing is one file here and one line in the table: a function `(Documents, PairConfig) -> Segments`. Its rows must
have offsets that rise within a document, because a row's random numbers follow from (seed, document, offset).
"""

from __future__ import annotations

from typing import NamedTuple


class PairingEntry(NamedTuple):
    """A row of the table: named, not imported, so that configs can check a name without loading numpy."""

    function: str  # `module:function`
    task: str | None  # what the pair labels mean to a model: nsp, sop, or None for rows without labels


PAIRINGS = {
    "nsp": PairingEntry("pipeline.examples.pairs.nsp:next_sentence", "nsp"),
}
