"""Masking: one pure function draws stored masks and dynamic masks.

Readers of datasets need `sample_masks`, its arguments and result, and the token counts of a
dataset. Names are imported on first use, so that configs can import `registry.py` without numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cloze.pipeline.dataset.masking.candidates import (
        UNIGRAMS,
        MaskConfig,
        TokenProperties,
        UnmaskedRows,
        read_unigrams,
        row_keys,
    )
    from cloze.pipeline.dataset.masking.draw import Masks, sample_masks

__all__ = [
    "UNIGRAMS",
    "MaskConfig",
    "Masks",
    "TokenProperties",
    "UnmaskedRows",
    "read_unigrams",
    "row_keys",
    "sample_masks",
]

_MODULES = {
    "candidates": (
        "UNIGRAMS",
        "MaskConfig",
        "TokenProperties",
        "UnmaskedRows",
        "read_unigrams",
        "row_keys",
    ),
    "draw": ("Masks", "sample_masks"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
