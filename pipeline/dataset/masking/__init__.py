"""Which tokens a model must guess, and what it sees instead: one pure function for stored and for fresh masks.

What readers of datasets need to draw masks again: `draw_masks`, what it takes and gives, and the counts of pieces that a dataset
keeps for it. The names are imported when they are first used, so that configs can read `table.py` without numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.dataset.masking.candidates import TokenTable, UnmaskedRows, row_keys
    from pipeline.dataset.masking.config import MaskConfig
    from pipeline.dataset.masking.draw import Masks, draw_masks
    from pipeline.dataset.masking.unigrams import UNIGRAMS, read_unigrams

__all__ = ["UNIGRAMS", "MaskConfig", "Masks", "TokenTable", "UnmaskedRows", "draw_masks", "read_unigrams", "row_keys"]

_MODULES = {
    "candidates": ("TokenTable", "UnmaskedRows", "row_keys"),
    "config": ("MaskConfig",),
    "draw": ("Masks", "draw_masks"),
    "unigrams": ("UNIGRAMS", "read_unigrams"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
