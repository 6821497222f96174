"""Config of the inference command attention."""

from __future__ import annotations

from cloze.model.use.configs import VerbConfig


class AttentionConfig(VerbConfig):
    """Options of attention. A request has `text`, and `pair` for a second text."""
