"""The verb fill-mask: texts in; for each [MASK] the likeliest pieces out.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from pydantic import Field

from model.use.verb import verb_stage
from model.use.verb_config import VerbConfig


class FillMaskConfig(VerbConfig):
    """What is asked of the model. A request has `text`: with at least one mask, written [MASK] or as the tokenizer calls it."""

    top_k: int = Field(default=5, ge=1)
    """How many answers to give for each mask."""


STAGE = verb_stage("fill-mask", FillMaskConfig, "model.use.masks:FillMask")
