"""Configs of every inference command, of fill-mask, and of the stages merge, perplexity, score and
likelihood.

No torch: the command line imports this module at every start.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from cloze.core.config import InputPath, StageConfig


class VerbConfig(StageConfig):
    """Options of every inference command; subclasses add to them."""

    requests: tuple[dict[str, Any], ...] = ()
    """Requests from the command line: their fields by name."""

    file: str | None = None
    """File or pipe with one request per line."""

    called: str | None = None
    """Name of the file in messages, if its path means nothing to a user."""

    jsonl: bool = False
    """Read each line of the file as a JSON object with the request's fields."""

    common: dict[str, Any] = Field(default_factory=dict)
    """Fields of every request that does not set them itself."""

    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Device to compute on. auto: a GPU if there is one."""

    precision: Literal["auto", "fp32", "bf16", "int8"] = "fp32"
    """Precision of matrix products, over fp32 weights. auto: bf16 if native. int8: for CPUs."""

    @model_validator(mode="after")
    def _something(self) -> VerbConfig:
        if not self.requests and self.file is None:
            raise ValueError(
                "requests (found none) and file (found none) leave nothing to answer; give one"
            )
        return self


class FillMaskConfig(VerbConfig):
    """Options of fill-mask; a request has `text` with [MASK] or the tokenizer's mask token."""

    top_k: int = Field(default=5, ge=1)
    """Number of candidates per [MASK]."""


class ScoreConfig(StageConfig):
    """Options of the stage score."""

    data: InputPath | None = None
    """Minimal pairs: a .jsonl, .tsv or .csv file, or a directory of them, such as BLiMP's."""

    columns: dict[str, str] = Field(default_factory=dict)
    """Column of a role (good, bad, phenomenon, id, term, field), where it differs from BLiMP's.
    Repeatable."""

    limit: int | None = Field(default=None, ge=1)
    """Maximum number of pairs per phenomenon, from the first. Default: all."""

    mask: Literal["token", "whole-word", "word-l2r", "causal"] = "token"
    """Mask for a scored token: token (itself), whole-word, word-l2r (with the rest of its word), or
    causal (score left to right)."""

    normalize: Literal["none", "tokens", "penalty"] = "none"
    """Divisor of the sum: none, tokens (their number), or penalty, ((5 + n) / 6) ** 0.8."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the encoder. bf16 is faster and may reverse pairs of nearly equal scores."""

    resamples: int = Field(default=1000, ge=1)
    """Number of bootstrap resamples for the confidence interval."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the bootstrap."""


class LikelihoodConfig(StageConfig):
    """Options of the stage likelihood."""

    texts: InputPath | None = None
    """File with a text per line, instead of a corpus's held-out sentences."""

    limit: int = Field(default=512, ge=1)
    """Maximum number of texts; a random sample, equal for all models."""

    mask: Literal["token", "whole-word", "word-l2r", "causal"] = "word-l2r"
    """Mask for a predicted token: token (itself; favours vocabularies of short tokens), whole-word,
    word-l2r (with the rest of its word), or causal (predict left to right)."""

    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the encoder."""

    resamples: int = Field(default=1000, ge=1)
    """Number of bootstrap resamples for the confidence interval."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Seed of the sample and of the bootstrap."""


class PerplexityConfig(StageConfig):
    """Options of the stage perplexity."""

    rows: int = Field(default=2048, ge=1)
    """Maximum number of held-out rows; the first ones, which are a random sample."""

    batch_size: int = Field(default=32, ge=1)
    """Maximum rows per forward pass."""

    precision: Literal["auto", "fp32", "bf16", "int8"] = "auto"
    """Precision of matrix products, over fp32 weights. auto: bf16 if native. int8: for CPUs."""


class MergeConfig(StageConfig):
    """Options of the stage merge: checkpoints and their weights."""

    last: int | None = Field(default=None, ge=2)
    """Number of newest checkpoints to average. Default: 3, if no --step is given."""

    steps: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Step whose checkpoint to average, instead of the newest. Repeatable."""

    decay: float = Field(default=1.0, gt=0, le=1)
    """Weight of each checkpoint relative to the next newer one. 1: plain mean; below 1: exponential
    mean."""

    @model_validator(mode="after")
    def _check_exclusive(self) -> MergeConfig:
        if self.steps and self.last is not None:
            raise ValueError(
                "last and steps exclude each other: both say which checkpoints; give one of them"
            )
        if len(set(self.steps)) == 1:
            raise ValueError(
                f"steps {list(self.steps)} is one checkpoint, whose mean is itself; name several"
            )
        return self
