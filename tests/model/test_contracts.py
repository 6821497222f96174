"""The model's stages, families and kinds of tasks take and give what `tests/contracts.txt` says of them."""

from __future__ import annotations

import pytest

from cloze.core.stages.stage import Stage
from cloze.model.families.registry import FAMILIES, config_class
from cloze.model.hub import stages as hub
from cloze.model.tasks.evaluate import stage as evaluate
from cloze.model.tasks.finetune import stage as finetune
from cloze.model.tasks.table import KINDS
from cloze.model.train import stage as train
from cloze.model.use import stages as use
from tests import contracts

STAGES = (
    train.STAGE, finetune.STAGE, evaluate.STAGE, hub.EXPORT, hub.IMPORT,
    use.MERGE, use.PERPLEXITY, use.SCORE, use.LIKELIHOOD,
)  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_is_as_recorded(stage: Stage) -> None:
    assert list(contracts.contract(stage)) == contracts.recorded(f"stage {stage.name}")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_is_as_recorded(family: str) -> None:
    values = contracts.values_of(config_class(family))
    assert list(values) == contracts.recorded(f"family {family}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_task_is_as_recorded(kind: str) -> None:
    assert (
        list(contracts.values_of(KINDS[kind].options))
        == contracts.recorded(f"task kind {kind}")[1:]
    )
