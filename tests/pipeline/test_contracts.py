"""The pipeline's stages take and give what `tests/contracts.txt` says of them."""

from __future__ import annotations

import pytest

from cloze.core.stages.stage import Stage
from cloze.pipeline.corpus import explain_stage
from cloze.pipeline.corpus import stage as corpus
from cloze.pipeline.dataset import stage as dataset
from cloze.pipeline.vocab import stage as vocab
from tests import contracts

STAGES = (
    corpus.STAGE,
    explain_stage.STAGE,
    dataset.STAGE,
    dataset.INSPECT,
    vocab.STAGE,
    vocab.COMPARE,
)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_is_as_recorded(stage: Stage) -> None:
    assert list(contracts.contract(stage)) == contracts.recorded(f"stage {stage.name}")
