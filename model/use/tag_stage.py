"""The verb tag: texts in; their named entities, with their places and probabilities, out.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from model.use.verb import verb_stage
from model.use.verb_config import VerbConfig


class TagConfig(VerbConfig):
    """What is asked of the model. A request has `text`."""

    words: bool = False
    """The texts' words are set off by spaces already, punctuation included."""


STAGE = verb_stage("tag", TagConfig, "model.use.tag:Tag")
