"""XLNet (Yang et al., 2019): permutation language modelling with two-stream attention.

The tokens that a dataset masks are predicted in a random order, from the others and from those that
came before; none is replaced (objective `plm`; with `mlm`, the model reads [MASK] like BERT).
Differs from the authors' program (zihangdai/xlnet):

- Rows stay those of the dataset, `[CLS] … [SEP]`, padded at the end. Theirs are padded at the
  beginning and end with <sep> <cls>. A sequence's vector is the state of [CLS], here the first.
- Memory is the beginning of the row (`memory`), not the row before it: so rows have any order, and
  a resumed training needs no states.
- [CLS] and [SEP] are context and seen by all; one order is drawn for a whole row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.model.families.config import ModelConfig
from cloze.model.families.hub_format import TASK_ROWS, HubFormat, fine_tuned, same
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from torch import Tensor

    from cloze.labs.xlnet.two_stream import PermutationModel


class XlnetConfig(ModelConfig):
    """XLNet-base (zihangdai/xlnet, README.md)."""

    heads: ClassVar[Mapping[str, Any]] = {"masked_lm": {"objectives": ["plm"]}}
    own_objectives: ClassVar[tuple[str, ...]] = ("plm",)
    supports_compile: ClassVar[bool] = False  # not measured
    supports_causal: ClassVar[bool] = False
    supports_packed_rows: ClassVar[bool] = False
    supports_pruned_heads: ClassVar[bool] = False  # biases and segments have all heads
    supports_onnx: ClassVar[bool] = False
    default_vocab_size: ClassVar[int] = 32_000
    default_batch_size: ClassVar[int] = 8192  # section 3.1

    family: UnionTag[Literal["xlnet"]] = "xlnet"
    type_vocab_size: Literal[2] = 2

    memory: Annotated[int, Field(ge=0)] = 0
    """With plm: tokens at the beginning of each row that are the segment before the others: they
    see only one another, have no gradient, and are not predicted (Dai et al., 2019)."""

    @property
    def layer_weights(self) -> int:
        return super().layer_weights + self.hidden_size * self.attention_width

    @property
    def position_terms(self) -> int:  # type: ignore[override]
        return 1


CONFIG = XlnetConfig

# Sizes of zihangdai/xlnet, README.md; counts include 32,000 tokens.
PRESETS: dict[str, ModelConfig] = {
    "xlnet-tiny": XlnetConfig.of_size(2, 128),
    "xlnet-base": XlnetConfig.of_size(12, 768),  # 117M parameters
    "xlnet-large": XlnetConfig.of_size(24, 1024),  # 361M
}


def build_model(config: XlnetConfig) -> PermutationModel:
    from torch import nn

    from cloze.labs.left_to_right import TiedHead
    from cloze.labs.xlnet.two_stream import PermutationModel, RelativeAttention, TwoStreamEncoder
    from cloze.model.families.models import layer
    from cloze.model.layers.cpu import Dropout
    from cloze.model.layers.embeddings import Embeddings

    width, dropout = config.hidden_size, config.hidden_dropout
    layers = [
        layer(
            config,
            RelativeAttention(
                width,
                config.num_attention_heads,
                dropout=config.attention_dropout,
                position_dropout=dropout,
            ),
            inner_dropout=dropout,
        )
        for _ in range(config.num_hidden_layers)
    ]
    table = Embeddings(
        config.vocab_size, width, max_positions=0, segments=0, norm=nn.Identity(), dropout=dropout
    )
    # Section 2.3's w, with which the query stream begins; transformers' `mask_emb`.
    table.add_module("target", nn.Embedding(1, width))
    encoder = TwoStreamEncoder(table, layers, Dropout(dropout))
    return PermutationModel(encoder, TiedHead(bias=config.vocab_size))


ATTENTION = {
    "query.weight": "q",
    "key.weight": "k",
    "value.weight": "v",
    "position.weight": "r",
    "output.weight": "o",
    "segment.weight": "seg_embed",
    "content_bias": "r_w_bias",
    "position_bias": "r_r_bias",
    "segment_bias": "r_s_bias",
}
INPUTS_FIRST = ("query.weight", "key.weight", "value.weight", "position.weight")
WORDS, TARGET = "transformer.word_embedding.weight", "encoder.embeddings.target.weight"


LAYER, THEIRS = "encoder.layers.{n}", "transformer.layer.{n}"


class XLNetFormat(HubFormat):
    family = "xlnet"
    model_type = "xlnet"
    objectives = ("mlm", "plm")
    keys = KeyMap(
        [
            ("encoder.embeddings.word.weight", WORDS),
            (TARGET, "transformer.mask_emb"),
            *((f"{LAYER}.attention.{a}", f"{THEIRS}.rel_attn.{b}") for a, b in ATTENTION.items()),
            (f"{LAYER}.attention_norm.{{p}}", f"{THEIRS}.rel_attn.layer_norm.{{p}}"),
            (f"{LAYER}.feed_forward.up.{{p}}", f"{THEIRS}.ff.layer_1.{{p}}"),
            (f"{LAYER}.feed_forward.down.{{p}}", f"{THEIRS}.ff.layer_2.{{p}}"),
            (f"{LAYER}.feed_forward_norm.{{p}}", f"{THEIRS}.ff.layer_norm.{{p}}"),
            ("masked_lm.bias", "lm_loss.bias"),
            ("pooler.dense.{p}", "sequence_summary.summary.{p}"),
            ("classifier.{p}", "logits_proj.{p}"),
        ]
    )
    fields = {
        **same("vocab_size", "initializer_range", "layer_norm_eps", "pad_token_id"),
        "hidden_size": "d_model",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "d_inner",
        "hidden_act": "ff_activation",
        "hidden_dropout": "dropout",
    }
    fixed = {
        "attn_type": "bi",
        "bi_data": False,
        "clamp_len": -1,
        "same_length": False,
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "tie_word_embeddings": True,
        "type_vocab_size": 2,
    }
    architectures = {
        frozenset({"masked_lm"}): "XLNetLMHeadModel",
        **fine_tuned("XLNet"),
        frozenset({"span"}): "XLNetForQuestionAnsweringSimple",
    }
    task_rows = {**TASK_ROWS, "choice": (("choice.{p}", "logits_proj.{p}"),)}
    drops = (Drop("lm_loss.weight", WORDS),)
    defaults = {"d_model": 1024, "n_layer": 24, "n_head": 16, "d_inner": 4096, "pad_token_id": 5}

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        return {**config, "summary_type": "first"}

    def to_theirs(self, model: ModelConfig, name: str, tensor: Tensor) -> Tensor:
        """Give each head a dimension of its own: [D, N, H], [2, N, H] or [N, H]."""
        if ".attention." not in name:
            return tensor[None] if name == TARGET else tensor
        tensor = tensor.t() if name.endswith(INPUTS_FIRST) else tensor
        return tensor.reshape(*tensor.shape[:-1], model.num_attention_heads, model.head_size)

    def to_ours(self, model: ModelConfig, name: str, tensor: Tensor) -> Tensor:
        """Undo `to_theirs`."""
        del model
        if ".attention." not in name:
            return tensor[0] if name == TARGET else tensor
        tensor = tensor.flatten(-2)
        return tensor.t().contiguous() if name.endswith(INPUTS_FIRST) else tensor

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Refuse classifiers of the last token.

        Raises:
            DataError: it is one, and reads rows that are padded at the beginning.
        """
        pooled = {"XLNetForSequenceClassification", "XLNetForMultipleChoice"}
        kind = config.get("summary_type", "last")
        if kind != "first" and pooled & set(config.get("architectures") or ()):
            raise DataError(
                f"summary_type ({kind!r}) is not 'first', and Cloze's rows begin with [CLS]; "
                f"import the pretrained model, and fine-tune it"
            )
        return config


HUB = XLNetFormat()
