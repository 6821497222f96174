"""The pairings by name. Light, because configs import it.

A new pairing is one module and one row here. The module has a function `(TokenizedDocuments,
PairingConfig) -> Segments` and a subclass of `cloze.core.options.Options`. No two rows may share
document and offset, because a row's random numbers follow from (seed, document, offset).
"""

from __future__ import annotations

from typing import NamedTuple


class Pairing(NamedTuple):
    """A pairing, a row of `PAIRINGS`."""

    function: str  # `module:function`
    task: str | None = None  # the task of the pair labels: nsp, sop, or None without labels
    options: str | None = None  # `module:class`
    packed: bool = False  # rows have several sequences, with boundaries
    labels: tuple[str, str] = ("next", "random")  # names of the pair labels 0 and 1


_NSP = "cloze.pipeline.dataset.pairings.sentence_pairs:NspOptions"

PAIRINGS = {
    "nsp": Pairing(
        "cloze.pipeline.dataset.pairings.sentence_pairs:next_sentence", task="nsp", options=_NSP
    ),
    "segment-pair": Pairing(
        "cloze.pipeline.dataset.pairings.sentence_pairs:segment_pairs", options=_NSP
    ),
    "sop": Pairing(
        "cloze.pipeline.dataset.pairings.sentence_pairs:sentence_order",
        task="sop",
        options="cloze.pipeline.dataset.pairings.sentence_pairs:SopOptions",
        labels=("in_order", "swapped"),
    ),
    "full": Pairing("cloze.pipeline.dataset.pairings.segments:full"),
    "document": Pairing("cloze.pipeline.dataset.pairings.segments:document"),
    "packed": Pairing(
        "cloze.pipeline.dataset.pairings.packed:packed",
        options="cloze.pipeline.dataset.pairings.packed:PackedOptions",
        packed=True,
    ),
    "electra": Pairing(
        "cloze.pipeline.dataset.pairings.sentence_pairs:electra",
        options="cloze.pipeline.dataset.pairings.sentence_pairs:ElectraOptions",
    ),
}


def label_names(task: str | None) -> tuple[str, str]:
    """Return the names of the pair labels 0 and 1 of a task."""
    return next(
        (pairing.labels for pairing in PAIRINGS.values() if pairing.task == task), ("0", "1")
    )
