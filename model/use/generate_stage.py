"""The verb generate: beginnings of texts in; how a left-to-right model goes on with them out.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from pydantic import Field

from model.use.verb import verb_stage
from model.use.verb_config import VerbConfig


class GenerateConfig(VerbConfig):
    """How a text goes on. A request has `text`: its beginning."""

    tokens: int = Field(default=40, ge=1)
    """The most tokens to write; fewer where the text ends, or the model can read no more."""

    samples: int = Field(default=1, ge=1)
    """How many continuations of each text; more than one are drawn by chance."""

    temperature: float | None = Field(default=None, ge=0)
    """Logits are divided by it and drawn from; 0 takes the likeliest token. Without it 0, or 1 if chance is asked for otherwise."""

    top_k: int | None = Field(default=None, ge=1)
    """Draw from so many of the likeliest tokens alone."""

    top_p: float | None = Field(default=None, gt=0, le=1)
    """Draw from the fewest tokens that have this probability together."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of chance. A text's continuations depend on it, the text and these options, not on what else is asked."""


STAGE = verb_stage("generate", GenerateConfig, "model.use.generate:Generate")
