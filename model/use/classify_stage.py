"""The verb classify: texts in; their labels with probabilities, their scores, or the endings that follow them, out.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from pydantic import Field

from model.use.verb import verb_stage
from model.use.verb_config import VerbConfig


class ClassifyConfig(VerbConfig):
    """What is asked of the model. A request has `text`; `pair` for tasks on pairs, `choices` for those that choose among endings."""

    top_k: int | None = Field(default=None, ge=1)
    """How many labels to give, best first; all by default."""


STAGE = verb_stage("classify", ClassifyConfig, "model.use.classify:Classify")
