"""Configs of the stages, and costs. Light: the command line imports it at every start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, model_validator

from cloze.core.config import InputPath, StageConfig
from cloze.core.options import compose_config_class, known
from cloze.core.stages.cost import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    MeasuredThroughput,
    Metadata,
    PlannedBuild,
    subtract_startup,
)
from cloze.pipeline.vocab.kinds import TRAINERS

if TYPE_CHECKING:
    _TrainerOptions = StageConfig
else:  # options that only one kind has
    _TrainerOptions = compose_config_class(
        "TrainerOptions", StageConfig, (trainer.options for trainer in TRAINERS.loaded().values())
    )


class VocabConfig(_TrainerOptions):
    """The tokenizer: trained, or imported from `import_path`."""

    kind: Annotated[str, known(TRAINERS, "unknown kind of tokenizer")] = "wordpiece"
    """Tokenizer to train: WordPiece as in BERT, byte-level BPE as in RoBERTa, Unigram as in ALBERT,
    or words (whole words, for static vectors and ELMo)."""
    size: int | None = Field(default=None, ge=6, le=1 << 24)
    """Vocabulary size, special tokens included; a small corpus may yield fewer. Default: 30,522
    (wordpiece), 50,265 (bpe), 30,000 (unigram) or 100,000 (words)."""
    lowercase: bool | None = None
    """Lowercase the text. Default: on for wordpiece and unigram, off for bpe and words; imported
    tokenizers keep theirs."""
    strip_accents: bool = False
    """Remove accents and the vowel signs of other scripts, as BERT uncased and ALBERT do. Not with
    bpe."""
    min_frequency: int = Field(default=2, ge=1)
    """Minimum frequency of a pair to be merged, or of a word. Not with unigram."""
    limit_alphabet: int | None = Field(default=None, ge=1)
    """Maximum number of characters kept, by frequency. Default: 1,000, or enough for 99.99 % of the
    text, at most a third of --size. Not with bpe or words."""
    sample_bytes: int = Field(default=100_000_000, ge=1)
    """Bytes of text to train on: whole documents, sampled by key."""
    import_path: InputPath | None = None
    """Tokenizer to import unchanged: a vocab artifact, a Hugging Face directory, or the tokenizer's
    files."""

    @model_validator(mode="after")
    def _check_exclusive(self) -> VocabConfig:
        if self.import_path is not None and (self.size or self.strip_accents):
            raise ValueError(
                "size and strip_accents are for training; an imported tokenizer has its own: "
                "remove them"
            )
        return self

    def external_fingerprints(self) -> dict[str, str]:
        """Return a fingerprint by the contents of the tokenizer's files; ignore other files."""
        from cloze.pipeline.tokenizer import loading

        return {"import_path": loading.fingerprint(self.import_path)} if self.import_path else {}


class CompareConfig(StageConfig):
    """The tokenizers to compare."""

    tokenizers: tuple[InputPath, ...] = Field(min_length=1)
    """Tokenizers: vocab artifacts, Hugging Face directories, vocab.txt, tokenizer.json or
    spiece.model files."""


# Costs: the stage trains on a sample of the corpus, and measures on held-out text.

STARTUP_SECONDS = 2.5
BYTES_PER_SECOND = 2.5e6  # of sampled text
DEFAULT_SIZE = 30_000  # tokens, if the config leaves it to the kind
MEMORY_FACTOR = 6  # bytes of memory per byte of the sample: words, counts, candidates


def estimate_cost(plan: PlannedBuild[VocabConfig]) -> CostEstimate:
    """Estimate the cost from the size of the sample."""
    return sampling_cost(plan.config.sample_bytes, plan.inputs, plan.config.size or DEFAULT_SIZE)


def sampling_cost(most: int, inputs: Mapping[str, Metadata], size: int) -> CostEstimate:
    """Return the cost of a vocabulary of `size` tokens from at most `most` bytes of the corpus."""
    sample = min(float(most), float(inputs["corpus"]["bytes"])) if "corpus" in inputs else 0.0
    return CostEstimate(
        work=sample,
        speed=BYTES_PER_SECOND,
        startup_seconds=STARTUP_SECONDS,
        disk_bytes=4 << 20,
        memory_bytes=int(PROCESS_BYTES + MEMORY_FACTOR * sample),
        expected_metadata={"size": size},
    )


def measure_throughput(metadata: Metadata) -> MeasuredThroughput | None:
    """Return the throughput in bytes of sampled text."""
    sample = float(metadata.get("sample_bytes") or 0)
    if not sample:
        return None
    seconds = subtract_startup(metadata["seconds"], STARTUP_SECONDS)
    return MeasuredThroughput(amount=sample, seconds=seconds)


COSTS = CostModel(estimate=estimate_cost, measure=measure_throughput)
