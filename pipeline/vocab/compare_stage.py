"""Stage compare-vocab: a corpus and some tokenizers in; each one's figures on the corpus's held-out text out. It writes no files."""

from __future__ import annotations

from pydantic import Field

from pipeline.core.config import InputPath, StageConfig
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


class CompareConfig(StageConfig):
    """What is compared."""

    tokenizers: tuple[InputPath, ...] = Field(min_length=1)
    """Tokenizers: vocab artifacts, Hugging Face directories, vocab.txt, tokenizer.json or spiece.model files."""


def run(config: CompareConfig, build: Build) -> Outcome:
    """Measure each; the summary's `report` holds, a tokenizer, its path and the figures of `pipeline.vocab.measure`."""
    from pipeline.vocab.compare import compare

    return Outcome(summary={"report": compare(build.inputs["corpus"], config.tokenizers)})


STAGE = Stage(
    name="compare-vocab",
    version=VERSION,
    config=CompareConfig,
    run=run,
    inputs={"corpus": Input(required=True)},
    worker="pipeline",
)
