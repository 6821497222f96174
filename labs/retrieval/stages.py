"""Stages and verbs of the lab. No torch: the command line imports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.humanize import format_count
from cloze.core.stages.execution import TrainingOptions
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.labs.serving.verbs import BestAnswersConfig
from cloze.model.use.configs import VerbConfig
from cloze.model.use.verb import Predictor, verb_stage

INDEX_NAME = "index"
INDEX_VERSION = 2  # 2: pairs of letters in scripts without spaces


class IndexConfig(StageConfig):
    """Options of the stage index."""

    passage_words: int = Field(default=100, ge=1)
    """Approximate words per passage; passages are whole sentences of one document."""


def _headline(summary: Mapping[str, Any]) -> str:
    reused = f", {summary['reused']} of {summary['shards']} shards reused"
    return (
        f"{format_count(summary['passages'])} passages of {format_count(summary['documents'])} "
        f"documents{reused if summary['reused'] else ''}"
    )


# Files: see `passages.py`.
INDEX = Stage(
    name=INDEX_NAME,
    version=INDEX_VERSION,
    config=IndexConfig,
    run=deferred("cloze.labs.retrieval.index_build:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "append": InputSpec(kinds=("index",), explicit_only=True),
    },
    worker="cloze.pipeline",
    headline=_headline,
    comparison_metrics=("passages",),
)


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


class AnswerCorpusConfig(BestAnswersConfig):
    """Options of answer-corpus. A request has `question`, and may have a `passage` of its own."""

    corpus: InputPath
    """Index, or vectors of its passages: find the passages of a question there (`cloze search`)."""

    passages: int = Field(default=10, ge=1)
    """Number of passages that are read."""


ANSWERS = Predictor(AnswerCorpusConfig, "cloze.labs.retrieval.search:CorpusAnswers", "question")
ANSWER_CORPUS = verb_stage("answer-corpus", ANSWERS)
