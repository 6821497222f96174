"""ALBERT (Lan et al., 2020): projected embeddings, parameter sharing, sentence-order prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ValidationInfo, field_validator

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.model.families import bert
from cloze.model.families.config import ModelConfig, Probability, Size
from cloze.model.families.hub_format import fine_tuned, same
from cloze.model.families.key_map import KeyMap, decoder_copies

if TYPE_CHECKING:
    from cloze.model.families.pretraining import PretrainingModel
    from cloze.model.layers.embeddings import Embeddings
    from cloze.model.layers.encoder import Encoder


class AlbertConfig(ModelConfig):
    """ALBERT (Lan et al., 2020, section 3; google-research/albert for the other defaults)."""

    own_objectives: ClassVar[tuple[str, ...]] = ("mlm", "sop")
    supports_pruned_heads: ClassVar[bool] = False  # layers share their heads
    default_vocab_size: ClassVar[int] = 30_000
    default_batch_size: ClassVar[int] = 4096  # section 4.1

    family: UnionTag[Literal["albert"]] = "albert"
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    hidden_dropout: Probability = 0.0  # as in the paper's version 2 models (section 4.8)
    attention_dropout: Probability = 0.0

    embedding_size: Size = 128
    """Width of the word, position and segment embeddings (Table 3)."""

    shared: Literal["all", "attention", "feed-forward", "none"] = "all"
    """Parameters that the layers of a group share: all, attention, feed-forward or none (Table
    4)."""

    num_hidden_groups: Size = 1
    """Number of parameter sets, each used by consecutive layers (google-research/albert,
    modeling.py)."""

    inner_group_num: Size = 1
    """Layers per parameter set, applied in sequence."""

    @field_validator("num_hidden_groups")
    @classmethod
    def _groups_divide_layers(cls, groups: int, info: ValidationInfo) -> int:
        layers = info.data.get("num_hidden_layers", groups)
        if layers % groups:
            raise ValueError(
                f"num_hidden_layers ({layers}) must be divisible by num_hidden_groups ({groups}); "
                f"change one of them"
            )
        return groups

    @field_validator("inner_group_num")
    @classmethod
    def _inner_is_shared_whole(cls, inner: int, info: ValidationInfo) -> int:
        if inner > 1 and info.data.get("shared", "all") != "all":
            raise ValueError(
                f"inner_group_num ({inner}) is for groups that share all parameters; use 1, or "
                f"shared: all"
            )
        return inner

    @property
    def distinct_layers(self) -> int:
        return (
            self.num_hidden_groups * self.inner_group_num
            if self.shared == "all"
            else self.num_hidden_layers
        )

    @property
    def word_width(self) -> int:
        return self.embedding_size


CONFIG = AlbertConfig

# ALBERT's sizes (Lan et al., 2020, Table 1); all have embeddings of width 128. Counts are of
# encoder and pooler.
PRESETS: dict[str, ModelConfig] = {
    "albert-tiny": AlbertConfig.of_size(2, 128),
    "albert-base": AlbertConfig.of_size(12, 768),  # 12M parameters in the table, 11.7M counted
    "albert-large": AlbertConfig.of_size(24, 1024),  # 18M, 17.7M counted
    # 60M, 58.7M counted; 16 heads of width 128 (google-research/albert, albert_config.json)
    "albert-xlarge": AlbertConfig.of_size(24, 2048, num_attention_heads=16),
    # 235M in the paper; 222.6M counted, as in the released model
    "albert-xxlarge": AlbertConfig.of_size(12, 4096),
}


def build_model(config: AlbertConfig) -> PretrainingModel:
    from cloze.model.families.models import embeddings, masked_lm
    from cloze.model.families.pretraining import PretrainingModel
    from cloze.model.layers.cpu import Linear
    from cloze.model.layers.heads import Pooler

    size = config.embedding_size
    projected = embeddings(config, size, projection=Linear(size, config.hidden_size))
    return PretrainingModel(
        _build_encoder(config, projected),
        masked_lm(config, size),
        pooler=Pooler(config.hidden_size),
        pair=Linear(config.hidden_size, 2),
    )


def _build_encoder(config: AlbertConfig, embeddings: Embeddings) -> Encoder:
    from cloze.model.families.models import layer
    from cloze.model.layers.cpu import ModuleReference
    from cloze.model.layers.encoder import Encoder, GroupedEncoder

    repeats = config.num_hidden_layers // config.num_hidden_groups
    if config.shared == "all":
        groups = [
            [layer(config) for _ in range(config.inner_group_num)]
            for _ in range(config.num_hidden_groups)
        ]
        return GroupedEncoder(embeddings, groups, repeats)
    layers = [layer(config) for _ in range(config.num_hidden_layers)]
    blocks = {
        "attention": ("attention", "attention_norm"),
        "feed-forward": ("feed_forward", "feed_forward_norm"),
        "none": (),
    }
    for number, current in enumerate(layers):
        # The first layer of each group owns what the others refer to.
        owner = layers[number - number % repeats]
        for name in blocks[config.shared] if current is not owner else ():
            setattr(current, name, ModuleReference(getattr(owner, name)))
    return Encoder(embeddings, layers)


_CLOZE_NAMES, _HF_NAMES = (
    "encoder.groups.{n}.{m}",
    "albert.encoder.albert_layer_groups.{n}.albert_layers.{m}",
)
_KEYS = KeyMap(
    [
        *(
            (cloze_name, hf_name.replace("bert.", "albert.", 1))
            for cloze_name, hf_name in bert.encoder_rows("bert")
            if "embeddings" in cloze_name
        ),
        ("encoder.embeddings.projection.{p}", "albert.encoder.embedding_hidden_mapping_in.{p}"),
        (f"{_CLOZE_NAMES}.attention.query.{{p}}", f"{_HF_NAMES}.attention.query.{{p}}"),
        (f"{_CLOZE_NAMES}.attention.key.{{p}}", f"{_HF_NAMES}.attention.key.{{p}}"),
        (f"{_CLOZE_NAMES}.attention.value.{{p}}", f"{_HF_NAMES}.attention.value.{{p}}"),
        (f"{_CLOZE_NAMES}.attention.output.{{p}}", f"{_HF_NAMES}.attention.dense.{{p}}"),
        (f"{_CLOZE_NAMES}.attention_norm.{{p}}", f"{_HF_NAMES}.attention.LayerNorm.{{p}}"),
        (f"{_CLOZE_NAMES}.feed_forward.up.{{p}}", f"{_HF_NAMES}.ffn.{{p}}"),
        (f"{_CLOZE_NAMES}.feed_forward.down.{{p}}", f"{_HF_NAMES}.ffn_output.{{p}}"),
        (f"{_CLOZE_NAMES}.feed_forward_norm.{{p}}", f"{_HF_NAMES}.full_layer_layer_norm.{{p}}"),
        ("pooler.dense.{p}", "albert.pooler.{p}"),
        ("masked_lm.dense.{p}", "predictions.dense.{p}"),
        ("masked_lm.norm.{p}", "predictions.LayerNorm.{p}"),
        ("masked_lm.bias", "predictions.bias"),
        ("pair.{p}", "sop_classifier.classifier.{p}"),
        ("classifier.{p}", "classifier.{p}"),
    ]
)


class AlbertFormat(bert.BertFormat):
    family = "albert"
    model_type = "albert"
    keys = _KEYS
    fields = {
        **bert.HUB.fields,
        **same("embedding_size", "num_hidden_groups", "inner_group_num", "shared"),
    }
    architectures = {
        frozenset({"masked_lm", "pair"}): "AlbertForPreTraining",
        frozenset({"masked_lm"}): "AlbertForMaskedLM",
        **fine_tuned("Albert"),
    }
    fixed = {"tie_word_embeddings": True}
    drops = decoder_copies("albert", "predictions")
    # transformers' defaults are those of ALBERT-xxlarge
    defaults = {
        "shared": "all",
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        shared = config.pop("shared")
        if shared != "all":
            raise DataError(
                f"layers that share {shared} (found in the model's shared) have no Hugging Face "
                f"form; it has shared: all"
            )
        return config


HUB = AlbertFormat()
