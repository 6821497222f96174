"""The verb answer: questions and passages in; ranked answers, parts of the passage or "no answer", out.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from pydantic import Field

from model.use.verb import verb_stage
from model.use.verb_config import VerbConfig


class AnswerConfig(VerbConfig):
    """What is asked of the model. A request has `question` and `passage`, a text of any length."""

    top_k: int = Field(default=5, ge=1)
    """How many answers to give, best first."""


STAGE = verb_stage("answer", AnswerConfig, "model.use.answer:Answers", first="question")
