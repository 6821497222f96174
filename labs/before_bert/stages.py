"""The stage static-vectors, and the vocabulary of words. No torch: configs import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import DataError
from cloze.core.stages.cost import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
)
from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.tasks.cost import previous_tokens
from cloze.pipeline.vocab.kinds import TokenizerTrainer

if TYPE_CHECKING:
    import tokenizers

    from cloze.pipeline.vocab.config import VocabConfig
    from cloze.pipeline.vocab.trainers import Texts


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


WORD_BYTES, WORDS_A_SECOND = 6.0, 2e5  # of a corpus; of one thread, for 100 numbers


def _estimate(plan: PlannedBuild[StaticVectorsConfig]) -> CostEstimate:
    """Estimate the passes over the words of the corpus."""
    config, words = plan.config, float(plan.inputs["corpus"].get("bytes") or 0) / WORD_BYTES
    parameters = int(plan.inputs["vocab"].get("size") or 0) * config.size
    return CostEstimate(
        work=(previous_tokens(plan.before) or words) * config.epochs * config.size / 100,
        speed=WORDS_A_SECOND,
        startup_seconds=10.0,
        parallelism=config.hogwild_threads,
        disk_bytes=8 * parameters,
        memory_bytes=2 * PROCESS_BYTES + 12 * parameters,
        expected_metadata={"parameters": parameters},
    )


def _measure(facts: Metadata) -> MeasuredThroughput:
    config = facts["config"]
    work = facts["tokens"] * config["epochs"] * config["size"] / 100
    return MeasuredThroughput(
        amount=work, seconds=facts["seconds"], width=config["hogwild_threads"]
    )


def _headline(summary: Mapping[str, Any]) -> str:
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
    headline=_headline,
    cost_model=CostModel(estimate=_estimate, measure=_measure),
    comparison_metrics=("metrics",),
)


WORDS = TokenizerTrainer("cloze.labs.before_bert.stages:count_vocabulary", 100_000, False)


def count_vocabulary(
    texts: Texts, options: VocabConfig, *, size: int, lowercase: bool, strip_accents: bool
) -> tokenizers.Tokenizer:
    """Take the most frequent words as tokens; every other word is [UNK].

    Ids: BERT's special tokens 0 to 4, then words by frequency, ties by code point. BERT's
    pre-tokenizer splits the words, so punctuation marks are words.

    Args:
        texts: the documents.
        options: `min_frequency`, of words.
        size: maximum vocabulary size.
        lowercase: lowercase the text.
        strip_accents: remove accents, and the vowel signs of other scripts.

    Raises:
        DataError: no word is frequent enough.
    """
    from cloze.pipeline.tokenizer.backends import word_backend
    from cloze.pipeline.tokenizer.special import BERT
    from cloze.pipeline.vocab.trainers import word_frequencies

    counts = word_frequencies(word_backend(BERT, lowercase, strip_accents), texts())
    frequent = [word for word, count in counts.items() if count >= options.min_frequency]
    if not frequent:
        raise DataError(
            f"no word of the sample occurs min_frequency ({options.min_frequency}) times; lower "
            f"it, or give `cloze corpus` more text"
        )
    ordered = sorted(set(frequent) - set(BERT), key=lambda word: (-counts[word], word))
    return word_backend([*BERT, *ordered[: size - len(BERT)]], lowercase, strip_accents)
