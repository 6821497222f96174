"""The labs' stages take and give what `tests/contracts.txt` says of them."""

from __future__ import annotations

import pytest

from cloze.core.stages.stage import Stage
from cloze.labs.before_bert import static_stage
from cloze.labs.inside import (
    attention_stage,
    heads_stage,
    layer_stages,
    neighbours_config,
    prune_stage,
)
from cloze.labs.papers import submission
from cloze.labs.retrieval import index_stage
from cloze.labs.retrieval import stages as retrieval
from cloze.labs.selection import embed_corpus_stage, quality_filter_stage, semantic_stage
from cloze.labs.seq2seq import verb
from cloze.labs.serving import verbs, worker
from tests import contracts

STAGES = (
    static_stage.STAGE, attention_stage.STAGE, heads_stage.STAGE, layer_stages.PROBE, layer_stages.LAYERS,
    neighbours_config.STAGE, prune_stage.STAGE, submission.STAGE, index_stage.STAGE, retrieval.ENTITIES,
    retrieval.SEARCH, retrieval.ANSWER_CORPUS, quality_filter_stage.STAGE, semantic_stage.STAGE,
    embed_corpus_stage.STAGE, verb.STAGE, verbs.ANSWER_STAGE,
    verbs.CLASSIFY_STAGE, verbs.TAG_STAGE, verbs.SCORE_STAGE, verbs.EMBED_STAGE, worker.SERVE,
)  # fmt: skip


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_stage_is_as_recorded(stage: Stage) -> None:
    assert list(contracts.contract(stage)) == contracts.recorded(f"stage {stage.name}")
