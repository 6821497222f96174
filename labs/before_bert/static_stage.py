"""The stage static-vectors: corpus and vocabulary -> a vector per word. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.stages.stage import InputSpec, Stage, deferred


class StaticVectorsConfig(StageConfig):
    """Options of static-vectors; defaults are word2vec's (Mikolov et al., 2013)."""

    method: Literal["word2vec", "fasttext", "glove"] = "word2vec"
    """word2vec (skip-gram with negative samples), fasttext (also from character n-grams), or glove
    (from counts of co-occurrences)."""

    size: int = Field(default=300, ge=1)
    """Numbers per vector."""

    window: int = Field(default=5, ge=1)
    """Maximum distance of two words that are trained together; GloVe's paper has 10."""

    epochs: int = Field(default=5, ge=1)
    """Passes over the corpus; with glove, over the co-occurrences (the paper: 50 or more)."""

    learning_rate: float | None = Field(default=None, gt=0)
    """Initial learning rate. Default: 0.025, or 0.05 with glove."""

    negative: int = Field(default=5, ge=1)
    """Negative samples per pair of words. Not with glove."""

    subsample: float = Field(default=1e-3, ge=0)
    """Threshold of the share of a word above which some of its occurrences are left out; 0: none
    are. Not with glove."""

    hogwild_threads: int = Field(default=1, ge=1)
    """Threads that change the vectors without locks; two runs with more than one differ. Glove has
    one."""

    analogies: InputPath | None = None
    """File of analogies in the format of questions-words.txt, to score the vectors on."""

    seed: int = Field(default=1, ge=0, lt=1 << 32)
    """Seed of the initial vectors, of negative samples and of the order."""


def headline(summary: Mapping[str, Any]) -> str:
    """Return the number of vectors, and the share of right analogies."""
    text = f"{summary['method']}: {summary['words']:,} vectors of {summary['size']} numbers"
    analogies = summary.get("metrics", {}).get("analogies")
    return text if analogies is None else f"{text}, {100 * analogies:.1f} % of analogies right"


# Files: `checkpoint`, a checkpoint of the family static; `vectors.bin`, word2vec's binary format;
# `analogies.json`, right and wrong analogies by section.
STAGE = Stage(
    name="static-vectors",
    version=1,
    config=StaticVectorsConfig,
    run=deferred("cloze.labs.before_bert.static_training:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus",), required=True),
        "vocab": InputSpec(kinds=("vocab",), required=True),
    },
    worker="cloze.model",
    outputs=("checkpoint",),
    headline=headline,
    comparison_metrics=("metrics",),
)
