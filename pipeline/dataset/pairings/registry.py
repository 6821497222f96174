"""The pairings by name, with their options. Light, because configs import it.

A new pairing is one module and one row here. The module has a function `(TokenizedDocuments,
ExampleConfig) -> Segments`; `sentence_pairs.py` shows how a pairing of two segments calls
`Segments.of_pairs`. Options of its own are a subclass of `cloze.core.options.Options`: a class in
this file, or in the module if that imports numpy only inside of functions. No two rows of a drawing
may share document and offset, because a row's random numbers follow from them, seed and drawing.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from cloze.core.options import Options
from cloze.core.plugins import Table


class NspOptions(Options):
    """Options of the pairings `nsp`, `segment-pair` and `sentence-pair`."""

    random_next_prob: float = Field(default=0.5, ge=0, le=1)
    """With pairings nsp, segment-pair and sentence-pair: share of rows whose second segment is
    random text (BERT: 0.5)."""


class SopOptions(Options):
    """Options of the pairing `sop`."""

    swap_prob: float = Field(default=0.5, ge=0, le=1)
    """With pairing sop: share of rows whose segments are swapped (ALBERT: 0.5)."""


class ElectraOptions(Options):
    """Options of the pairing `electra`."""

    single_segment_prob: float = Field(default=0.1, ge=0, le=1)
    """With pairing electra: share of rows with one segment (ELECTRA: 0.1)."""


class Pairing(NamedTuple):
    """A pairing, a row of `PAIRINGS`."""

    function: str  # `module:function`
    task: str | None = None  # the task of the pair labels: nsp, sop, or None without labels
    options: type[Options] | str | None = None  # the class, or `module:class`
    packed: bool = False  # rows have several sequences, with boundaries
    labels: tuple[str, str] = ("next", "random")  # names of the pair labels 0 and 1
    sentences: int | None = None  # sentences of a row; None: as many as fit
    crosses_documents: bool = False  # rows do not end with their document


_PAIRS = "cloze.pipeline.dataset.pairings.sentence_pairs"
_CONTINUOUS = "cloze.pipeline.dataset.pairings.continuous"

_PAIRINGS = {
    "nsp": Pairing(f"{_PAIRS}:next_sentence", task="nsp", options=NspOptions),
    "segment-pair": Pairing(f"{_PAIRS}:segment_pairs", options=NspOptions),
    "sentence-pair": Pairing(
        f"{_PAIRS}:sentence_pairs", task="nsp", options=NspOptions, sentences=2
    ),
    "sop": Pairing(
        f"{_PAIRS}:sentence_order", task="sop", options=SopOptions, labels=("in_order", "swapped")
    ),
    "full": Pairing(f"{_CONTINUOUS}:full", crosses_documents=True),
    "document": Pairing(f"{_CONTINUOUS}:document"),
    "packed": Pairing(f"{_CONTINUOUS}:packed", packed=True, crosses_documents=True),
    "electra": Pairing(f"{_PAIRS}:electra", options=ElectraOptions),
}
PAIRINGS: Table[Pairing] = Table("pairings", "pairing", _PAIRINGS, ("pairing",))


def label_names(task: str | None) -> tuple[str, str]:
    """Return the names of the pair labels 0 and 1 of a task."""
    return next((one.labels for one in PAIRINGS.loaded().values() if one.task == task), ("0", "1"))
