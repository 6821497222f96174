"""Stage export: a checkpoint in; a Hugging Face directory out, after the check that it says the same.

Files: `config.json`, `model.safetensors`, the tokenizer's, `README.md` (a model card). transformers' `AutoTokenizer` and
`AutoModelForPreTraining` or `AutoModelForMaskedLM` open it, and of a fine-tuned checkpoint `AutoModelForSequenceClassification`,
`…QuestionAnswering`, `…TokenClassification` or `…MultipleChoice`.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from pipeline.core.config import StageConfig
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1


class ExportConfig(StageConfig):
    """There is nothing to choose: the checkpoint says it all."""


def run(config: ExportConfig, build: Build) -> Outcome:
    """Export and check; see `model.hub.write.export`."""
    from model.hub.write import export

    return export(build)


STAGE = Stage(
    name="export", version=VERSION, config=ExportConfig, run=run, inputs={"checkpoint": Input(required=True)}, worker="model"
)
