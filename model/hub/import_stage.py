"""Stage import: a Hugging Face directory in; a checkpoint out that pretraining, fine-tuning and distillation start from.

The command line imports this module at every start; torch comes in when the stage runs.
"""

from __future__ import annotations

from pydantic import Field, field_validator

from model.families.table import FAMILIES
from pipeline.core.config import StageConfig
from pipeline.core.errors import did_you_mean
from pipeline.core.stage import Build, Input, Outcome, Stage

VERSION = 1
CHECKPOINT = "checkpoint"


class ImportConfig(StageConfig):
    """What the directory becomes."""

    family: str | None = None
    """The model family it becomes; by default that of the directory's model_type."""

    positions: int | None = Field(default=None, ge=1)
    """The longest row that the model will read, where the new family can be longer."""

    trust_pickle: bool = False
    """Read weights from a pickle where there are no others: tensors alone, no code that it names is run."""

    @field_validator("family")
    @classmethod
    def _known(cls, family: str | None) -> str | None:
        if family is not None and family not in FAMILIES:
            raise ValueError(f"there is no such model family; {did_you_mean(family, FAMILIES)}")
        return family


def run(config: ImportConfig, build: Build) -> Outcome:
    """Import; see `model.hub.read.import_directory`.

    Returns:
        summary: `checkpoint`; `family`; `parameters`; `initialized`, the heads that the directory lacks; `left_out`,
        its parameters that the family has no use for; `max_logit_difference`, the largest difference of any logit from what
        transformers computes from the directory: None where transformers is not installed, or the model became another.
    """
    from model import checkpoint
    from model.hub.parity import compare_with_transformers
    from model.hub.read import import_directory
    from pipeline.core import storage

    source = build.inputs["directory"]
    found = import_directory(
        source,
        build.file(CHECKPOINT),
        family=config.family,
        positions=config.positions,
        trust_pickle=config.trust_pickle,
    )
    same = config.positions is None and not found.fresh and storage.is_local(source) and not config.trust_pickle
    difference = compare_with_transformers(checkpoint.load(build.file(CHECKPOINT)), source) if same else None
    summary = {
        "checkpoint": CHECKPOINT,
        "family": found.model.family,
        "parameters": sum(tensor.numel() for tensor in found.state.values()),
        "initialized": sorted({name.split(".", 1)[0] for name in found.fresh}),
        "left_out": list(found.left_out),
        "max_logit_difference": None if difference is None else difference.absolute,
    }
    return Outcome(summary=summary)


STAGE = Stage(
    name="import",
    version=VERSION,
    config=ImportConfig,
    run=run,
    inputs={"directory": Input(required=True)},
    worker="model",
    outputs=("checkpoint",),
)
