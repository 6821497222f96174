"""The verb embed: texts in; a vector each out. A pretrained checkpoint will do, one that was tuned for retrieval does better.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from model.use.verb import verb_stage
from model.use.verb_config import VerbConfig


class EmbedConfig(VerbConfig):
    """What a text's vector is. A request has `text`."""

    pooling: Literal["mean", "first", "pooler"] | None = None
    """Mean of the last states, the first one, or the pooler's output; by default the checkpoint's own, else mean."""

    normalize: bool | None = None
    """Give vectors length 1; by default as the checkpoint was tuned, else no."""

    max_length: int | None = Field(default=None, ge=3)
    """The most pieces of a text, special tokens included; by default as it was tuned, else what the model reads."""

    npy: str | None = None
    """A file for all vectors, float32 [n, D] in numpy's format; then answers are empty."""


STAGE = verb_stage("embed", EmbedConfig, "model.use.embed:Embed")
