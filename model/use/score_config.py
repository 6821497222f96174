"""Config of the stage score. No torch: the command line imports it at every start."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pipeline.core.config import InputPath, StageConfig


class ScoreConfig(StageConfig):
    """What is scored, and by which sum of log-probabilities."""

    data: InputPath | None = None
    """Minimal pairs: a file (.jsonl, .tsv, .csv), or a directory of them such as BLiMP's."""

    columns: dict[str, str] = Field(default_factory=dict)
    """By role (good, bad, phenomenon, id, term, field): the pairs' column, where it is not called as in BLiMP."""

    limit: int | None = Field(default=None, ge=1)
    """The most pairs of a phenomenon: the first ones; by default all."""

    mask: Literal["token", "whole-word", "word-l2r", "causal"] = "token"
    """Masked beside the piece asked for: nothing, its whole word, or what is right of it in the word; or read left to right."""

    normalize: Literal["none", "tokens", "penalty"] = "none"
    """Divide the sum by nothing, as papers do; by the number of pieces; or by ((5 + n) / 6) ** 0.8."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the encoder; auto takes bf16 where the hardware multiplies it natively, and scores close pairs again in fp32."""

    resamples: int = Field(default=1000, ge=1)
    """Resamples of the bootstrap interval."""

    seed: int = Field(default=1, ge=0, lt=1 << 63)
    """Of the bootstrap."""
