"""Hugging Face names of ELECTRA's discriminator; the generator is not exported."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cloze.model.families.bert import hub as bert
from cloze.model.families.hub import TASK_ROWS, KeyMap, fine_tuned

# Defaults of transformers' `ElectraConfig` that differ from BERT's: those of ELECTRA-small.
_DEFAULTS = {
    "embedding_size": 128,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}


def _read(config: dict[str, Any]) -> dict[str, Any]:
    return {**_DEFAULTS, **config}


HUB = replace(
    bert.HUB,
    family="electra",
    model_type="electra",
    keys=KeyMap(
        [
            *bert.encoder_rows("electra"),
            ("encoder.embeddings.projection.{p}", "electra.embeddings_project.{p}"),
            ("discriminator.dense.{p}", "discriminator_predictions.dense.{p}"),
            ("discriminator.output.{p}", "discriminator_predictions.dense_prediction.{p}"),
            ("pooler.dense.{p}", "classifier.dense.{p}"),
            ("classifier.{p}", "classifier.out_proj.{p}"),
        ]
    ),
    fields={**bert.HUB.fields, "embedding_size": "embedding_size"},
    fixed={"is_decoder": False},
    architectures={
        frozenset({"discriminator"}): "ElectraForPreTraining",
        **fine_tuned("Electra"),
    },
    # ElectraForMultipleChoice pools by a summary, by default the classifier's dense layer and GELU.
    task_rows={
        **TASK_ROWS,
        "choice": (*TASK_ROWS["choice"], ("pooler.dense.{p}", "sequence_summary.summary.{p}")),
    },
    copies={},
    ignored=frozenset({"electra.embeddings.position_ids"}),
    unexported=("masked_lm", "generator"),
    unused=("generator_predictions.", "generator_lm_head."),
    outputs={"logits": "rtd_logits"},
    read=_read,
)
