"""The labs' stages take and give what `tests/contracts.txt` says of them."""

from __future__ import annotations

import pytest

from cloze.core.stages.stage import Stage
from cloze.labs.before_bert import stages as static_stage
from cloze.labs.inside import stages as inside
from cloze.labs.papers import submission
from cloze.labs.retrieval import stages as retrieval
from cloze.labs.selection import stages as selection
from cloze.labs.seq2seq import stages as verb
from cloze.labs.serving import verbs, worker
from tests import contracts

STAGES = (
    static_stage.STAGE, inside.ATTENTION_STAGE, inside.HEADS, inside.PROBE, inside.LAYERS,
    inside.NEIGHBOURS_STAGE, inside.PRUNE, submission.STAGE, retrieval.INDEX, retrieval.ENTITIES,
    retrieval.SEARCH, retrieval.ANSWER_CORPUS, selection.FILTER, selection.SEMDEDUP,
    selection.VECTORS, verb.STAGE, verbs.ANSWER_STAGE,
    verbs.CLASSIFY_STAGE, verbs.TAG_STAGE, verbs.SCORE_STAGE, verbs.EMBED_STAGE, worker.SERVE,
)  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_is_as_recorded(stage: Stage) -> None:
    assert list(contracts.contract(stage)) == contracts.recorded(f"stage {stage.name}")
