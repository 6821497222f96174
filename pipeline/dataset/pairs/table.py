"""The pairings by name. Light: configs read it.

A pairing is one file and one line here: a function `(TokenizedDocuments, PairConfig) -> Segments`, and what can be set of it as a
subclass of `pipeline.core.options.Options` in the same file. No two of its rows may have the same document and offset, because
a row's random numbers follow from (seed, document, offset).
"""

from __future__ import annotations

from typing import NamedTuple


class Pairing(NamedTuple):
    """A row of the table."""

    function: str  # `module:function`
    task: str | None = None  # what the pair labels mean to a model: nsp, sop, or None for rows without labels
    options: str | None = None  # `module:class`
    packed: bool = False  # whether rows hold several sequences, with boundaries
    labels: tuple[str, str] = ("next", "random")  # what the pair labels 0 and 1 say


_NSP = "pipeline.dataset.pairs.nsp:NspOptions"

PAIRINGS = {
    "nsp": Pairing("pipeline.dataset.pairs.nsp:next_sentence", task="nsp", options=_NSP),
    "segment-pair": Pairing("pipeline.dataset.pairs.nsp:segment_pairs", options=_NSP),
    "sop": Pairing(
        "pipeline.dataset.pairs.sop:sentence_order",
        task="sop",
        options="pipeline.dataset.pairs.sop:SopOptions",
        labels=("in_order", "swapped"),
    ),
    "full": Pairing("pipeline.dataset.pairs.runs:full"),
    "document": Pairing("pipeline.dataset.pairs.runs:document"),
    "packed": Pairing(
        "pipeline.dataset.pairs.packed:packed", options="pipeline.dataset.pairs.packed:PackedOptions", packed=True
    ),
    "electra": Pairing("pipeline.dataset.pairs.electra:electra", options="pipeline.dataset.pairs.electra:ElectraOptions"),
}


def label_names(task: str | None) -> tuple[str, str]:
    """What the pair labels 0 and 1 of rows of this task say."""
    return next((pairing.labels for pairing in PAIRINGS.values() if pairing.task == task), ("0", "1"))
