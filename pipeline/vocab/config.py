"""Config and costs of stage vocab. Light, because the command line imports it at every start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field, field_validator, model_validator

from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import did_you_mean
from cloze.core.options import compose_config_class
from cloze.core.stages.execution import (
    PROCESS_BYTES,
    CostEstimate,
    CostModel,
    Execution,
    MachineSpec,
    MeasuredThroughput,
    Metadata,
    subtract_startup,
)
from cloze.pipeline.vocab.trainers import TRAINERS

if TYPE_CHECKING:
    from cloze.pipeline.vocab.trainers import MergeOptions

    class _OfTrainers(MergeOptions, StageConfig): ...

else:
    _OfTrainers = compose_config_class(
        "OptionsOfTrainers", StageConfig, (trainer.options for trainer in TRAINERS.values())
    )


class VocabConfig(_OfTrainers):
    """The tokenizer: trained, imported from `import_path`, or extended from `extend_path`."""

    kind: str = "wordpiece"
    """Tokenizer to train: WordPiece as in BERT, byte-level BPE as in RoBERTa, or Unigram as in
    ALBERT.
    """
    size: int | None = Field(default=None, ge=6, le=1 << 24)
    """Vocabulary size, special tokens included; a small corpus may yield fewer. Default: 30,522
    (wordpiece), 50,265 (bpe) or 30,000 (unigram)."""
    lowercase: bool | None = None
    """Lowercase the text. Default: on for wordpiece and unigram, off for bpe; imported tokenizers
    keep theirs."""
    strip_accents: bool = False
    """Remove accents and the vowel signs of other scripts, as BERT uncased and ALBERT do. Not with
    bpe."""
    sample_bytes: int = Field(default=100_000_000, ge=1)
    """Bytes of text to train on or to choose words from: whole documents, sampled by key."""
    import_path: InputPath | None = None
    """Tokenizer to import unchanged: a vocab artifact, a Hugging Face directory, or the tokenizer's
    files."""
    extend_path: InputPath | None = None
    """Tokenizer to extend by whole words; existing ids are kept."""
    add: int = Field(default=0, ge=0)
    """With --extend: number of words to add, those that shorten the corpus most."""
    words_file: InputPath | None = None
    """With --extend: file of words to add first, one per line."""

    @field_validator("kind")
    @classmethod
    def _known(cls, kind: str) -> str:
        if kind not in TRAINERS:
            raise ValueError(f"unknown kind of tokenizer; {did_you_mean(kind, TRAINERS)}")
        return kind

    @model_validator(mode="after")
    def _one_way(self) -> VocabConfig:
        if self.import_path and self.extend_path:
            raise ValueError(
                "import_path and extend_path exclude each other; extend_path alone takes over and "
                "adds"
            )
        if self.extend_path and not (self.add or self.words_file):
            raise ValueError("extend_path needs words: give add (a number) or words_file (a file)")
        if (self.add or self.words_file) and not self.extend_path:
            raise ValueError("add and words_file need extend_path, the tokenizer that they extend")
        if self.base is not None and (self.size or self.strip_accents):
            raise ValueError(
                "size and strip_accents are for training; a tokenizer taken over has its own: "
                "leave them out"
            )
        return self

    @property
    def base(self) -> str | None:
        """The tokenizer that is imported or extended."""
        return self.import_path or self.extend_path

    def external_fingerprints(self) -> dict[str, str]:
        """Return fingerprints by the contents of the tokenizers' files; ignore other files."""
        from cloze.core.artifacts import fingerprints
        from cloze.pipeline.tokenizer import loading

        found = {
            name: loading.fingerprint(path)
            for name, path in (("import_path", self.import_path), ("extend_path", self.extend_path))
            if path is not None
        }
        return found | (
            {"words_file": fingerprints.input_fingerprint(self.words_file)}
            if self.words_file
            else {}
        )


# Costs: the stage trains on a sample of the corpus, and measures on held-out text.

START = 2.5
SPEED = 2.5e6  # bytes of sampled text per second
USUAL_SIZE = 30_000  # tokens, if the config leaves it to the kind
MEMORY = 6  # bytes of memory per byte of the sample: words, counts, candidates


def ahead(
    config: VocabConfig,
    inputs: Mapping[str, Metadata],
    execution: Execution,
    computer: MachineSpec,
    before: Metadata | None,
) -> CostEstimate:
    """Estimate the cost from the size of the sample."""
    del execution, computer, before
    sample = (
        min(float(config.sample_bytes), float(inputs["corpus"]["bytes"]))
        if "corpus" in inputs
        else 0.0
    )
    return CostEstimate(
        work=sample,
        speed=SPEED,
        startup_seconds=START,
        disk_bytes=4 << 20,
        memory_bytes=int(PROCESS_BYTES + MEMORY * sample),
        expected_metadata={"size": config.size or USUAL_SIZE},
    )


def afterwards(facts: Metadata) -> MeasuredThroughput | None:
    """Return the throughput in bytes of sampled text."""
    sample = float(facts.get("sample_bytes") or 0)
    return (
        MeasuredThroughput(amount=sample, seconds=subtract_startup(facts["seconds"], START))
        if sample
        else None
    )


COSTS = CostModel(estimate=ahead, measure=afterwards)
