"""Stage compare-vocab: a corpus and tokenizers in, their metrics on held-out text out; no files."""

from __future__ import annotations

from pydantic import Field

from cloze.core.config import InputPath, StageConfig
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult

VERSION = 1


class CompareConfig(StageConfig):
    """The tokenizers to compare."""

    tokenizers: tuple[InputPath, ...] = Field(min_length=1)
    """Tokenizers: vocab artifacts, Hugging Face directories, vocab.txt, tokenizer.json or
    spiece.model files."""


def run(config: CompareConfig, build: BuildContext) -> StageResult:
    """Measure each tokenizer; the summary's `report` has the path and the metrics of each."""
    from cloze.pipeline.vocab.tokenizer_metrics import compare

    return StageResult(summary={"report": compare(build.inputs["corpus"], config.tokenizers)})


STAGE = Stage(
    name="compare-vocab",
    version=VERSION,
    config=CompareConfig,
    run=run,
    inputs={"corpus": InputSpec(required=True)},
    worker="cloze.pipeline",
)
