"""The verb score of sentences alone: a pretrained checkpoint and sentences in; the log-probability of each and of its pieces out.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from typing import Literal

from model.use.verb import verb_stage
from model.use.verb_config import VerbConfig


class ScoreTextsConfig(VerbConfig):
    """What is asked of the model. A request has `text`."""

    mask: Literal["token", "whole-word", "word-l2r", "causal"] = "token"
    """As of the stage score."""

    normalize: Literal["none", "tokens", "penalty"] = "none"
    """As of the stage score."""


STAGE = verb_stage("score-texts", ScoreTextsConfig, "model.use.score_texts:ScoreTexts")
