"""RoBERTa (Liu et al., 2019): BERT without pairs, segments and pooler in pretraining.

Positions start at padding_idx + 1 (fairseq, utils.py, `make_positions`), so the first rows of the
position table are unused. They are kept so that export and import leave a checkpoint unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig, Size
from cloze.model.families.hub_format import TASK_ROWS, Row, fine_tuned
from cloze.model.families.key_map import Drop, KeyMap, decoder_copies


class RobertaConfig(ModelConfig):
    """RoBERTa; defaults are those of Hugging Face's `RobertaConfig` where it has RoBERTa-base's."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("mlm",)
    computes_with_padding: ClassVar[bool] = True
    head_activation: ClassVar[str] = "gelu"  # whatever hidden_act is, as in transformers

    default_vocab_size: ClassVar[int] = 50_265
    default_batch_size: ClassVar[int] = 8192  # section 5

    family: UnionTag[Literal["roberta"]] = "roberta"
    type_vocab_size: Size = 1
    max_position_embeddings: Size = 512
    """Maximum length of a row in tokens. Hugging Face also counts the padding rows of the table
    (514 for 512)."""
    pad_token_id: Annotated[int, Field(ge=0)] = 1


CONFIG = RobertaConfig

# RoBERTa's sizes (Liu et al., 2019, section 5): BERT's with 50K byte-level BPE tokens;
# layer_norm_eps is fairseq's.
PRESETS: dict[str, ModelConfig] = {
    "roberta-tiny": RobertaConfig.of_size(2, 128, layer_norm_eps=1e-5),
    # 125M parameters: 124.7M with the LM head
    "roberta-base": RobertaConfig.of_size(12, 768, layer_norm_eps=1e-5),
    # 355M: 355.4M with the LM head
    "roberta-large": RobertaConfig.of_size(24, 1024, layer_norm_eps=1e-5),
}


LM_ROWS: list[Row] = [
    ("masked_lm.dense.{p}", "lm_head.dense.{p}"),
    ("masked_lm.norm.{p}", "lm_head.layer_norm.{p}"),
    ("masked_lm.bias", "lm_head.bias"),
    ("pooler.dense.{p}", "classifier.dense.{p}"),
    ("classifier.{p}", "classifier.out_proj.{p}"),
]


class RobertaFormat(bert.BertFormat):
    family = "roberta"
    model_type = "roberta"
    # RoBERTa with a SentencePiece vocabulary (Conneau et al., 2020; Martin et al., 2020)
    aliases = {"xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
    keys = KeyMap(bert.encoder_rows("roberta") + LM_ROWS)
    fixed = {"is_decoder": False, "tie_word_embeddings": True}
    architectures = {frozenset({"masked_lm"}): "RobertaForMaskedLM", **fine_tuned("Roberta")}
    # the pooler is the classifier's dense layer under another name
    task_rows = {
        **TASK_ROWS,
        "choice": (*TASK_ROWS["choice"], ("pooler.dense.{p}", "roberta.pooler.dense.{p}")),
    }
    drops = (
        *decoder_copies("roberta", "lm_head"),
        Drop("roberta.pooler.*", named=True, when=lambda model, head: head != "choice"),
    )
    defaults = {"max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 1}

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Add the rows up to the padding id, which transformers counts as positions."""
        positions = config["max_position_embeddings"] + config["pad_token_id"] + 1
        return {**config, "max_position_embeddings": positions}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        positions = config["max_position_embeddings"] - config["pad_token_id"] - 1
        return {**config, "max_position_embeddings": positions}


HUB = RobertaFormat()
