"""Stages and verbs of the lab. No torch: the command line imports it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.stages.execution import TrainingOptions
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.labs.serving.verbs import AnswerConfig
from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import Predictor, verb_stage


class EntitiesConfig(StageConfig):
    """Options of the stage entities."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matrix products, over fp32 weights. auto: bf16 if the hardware has it."""


# Finds the salient spans of a corpus, for `cloze dataset --recipe realm`: entities and dates.
ENTITIES = Stage(
    name="entities",
    version=1,
    config=EntitiesConfig,
    run=deferred("cloze.labs.retrieval.entities:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "checkpoint": InputSpec(kinds=("finetune",), required=True),
    },
    worker="cloze.model",
    on_gpu=True,
    parallel=True,
    unread=frozenset(TrainingOptions.model_fields),
    headline=lambda summary: f"{summary['spans']:,} spans in {summary['sentences']:,} sentences",
)


class SearchConfig(VerbConfig):
    """Options of search. A request has `query`."""

    by: Literal["bm25", "dense", "both"] | None = None
    """Words (bm25), vectors (dense), or both, by reciprocal rank fusion. Default: both if there are
    vectors."""

    top_k: int = Field(default=5, ge=1)
    """Number of passages, best first."""


PREDICTOR = Predictor(SearchConfig, "cloze.labs.retrieval.search:Search", "query")
SEARCH = verb_stage("search", PREDICTOR)


class AnswerCorpusConfig(AnswerConfig):
    """Options of answer-corpus. A request has `question`, and may have a `passage` of its own."""

    corpus: InputPath
    """Index, or vectors of its passages: find the passages of a question there (`cloze search`)."""

    passages: int = Field(default=10, ge=1)
    """Number of passages that are read."""


ANSWERS = Predictor(AnswerCorpusConfig, "cloze.labs.retrieval.answer:CorpusAnswers", "question")
ANSWER_CORPUS = verb_stage("answer-corpus", ANSWERS)
