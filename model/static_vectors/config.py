"""Config of the stage static-vectors."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cloze.core.config import InputPath, StageConfig


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
