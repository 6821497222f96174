"""GPT-2 (Radford et al., 2019): pre-norm causal decoder, learned positions, tied head.

In fine-tuning, a sequence's vector is the state of its last token. Hugging Face's linear layers
are `Conv1D`, which stores the transposed weight: [in, out].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from cloze.core.config import UnionTag
from cloze.core.errors import DataError
from cloze.model.families.config import ModelConfig, Size
from cloze.model.families.hub_format import EMBEDDING, TASK_ROWS, HubFormat, same
from cloze.model.families.key_map import Drop, KeyMap

if TYPE_CHECKING:
    from torch import Tensor

    from cloze.labs.left_to_right import LeftToRightModel
    from cloze.labs.seq2seq.decoder import LastState


class Gpt2Config(ModelConfig):
    """GPT-2 (Radford et al., 2019, Table 2); defaults are those of the smallest model."""

    heads: ClassVar[Mapping[str, Any]] = {"lm": {}}
    own_objectives: ClassVar[tuple[str, ...]] = ("lm",)
    needs_first_token: ClassVar[bool] = False
    pre_norm: ClassVar[bool] = True

    # section 2.3
    scaled_projections: ClassVar[tuple[str, ...]] = (
        "attention.output.weight",
        "feed_forward.down.weight",
    )

    default_vocab_size: ClassVar[int] = 50_257
    default_batch_size: ClassVar[int] = 512  # section 2.3

    family: UnionTag[Literal["gpt2"]] = "gpt2"
    max_position_embeddings: Size = 1024
    type_vocab_size: Literal[0] = 0
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu_new"
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5


CONFIG = Gpt2Config

# GPT-2's sizes (Radford et al., 2019, Table 2); counts include its 50,257 tokens.
PRESETS: dict[str, ModelConfig] = {
    "gpt2-tiny": Gpt2Config.of_size(2, 128),
    "gpt2": Gpt2Config.of_size(12, 768),  # 124M parameters
    "gpt2-medium": Gpt2Config.of_size(24, 1024),  # 355M
    "gpt2-large": Gpt2Config.of_size(36, 1280),  # 774M
    "gpt2-xl": Gpt2Config.of_size(48, 1600),  # 1,558M
}


def build_model(config: ModelConfig) -> LeftToRightModel:
    from cloze.labs.left_to_right import LeftToRightModel, TiedHead
    from cloze.model.families.models import encoder

    return LeftToRightModel(encoder(config, causal=True, fused=True), TiedHead())


def build_pooler(config: ModelConfig) -> LastState:
    from cloze.labs.seq2seq.decoder import LastState

    return LastState()


LAYER = "transformer.h.{n}"

KEYS = KeyMap(
    [
        ("encoder.embeddings.word.weight", "transformer.wte.weight"),
        ("encoder.embeddings.position.weight", "transformer.wpe.weight"),
        ("encoder.layers.{n}.attention_input_norm.{p}", f"{LAYER}.ln_1.{{p}}"),
        ("encoder.layers.{n}.attention.qkv.{p}", f"{LAYER}.attn.c_attn.{{p}}"),
        ("encoder.layers.{n}.attention.output.{p}", f"{LAYER}.attn.c_proj.{{p}}"),
        ("encoder.layers.{n}.feed_forward_input_norm.{p}", f"{LAYER}.ln_2.{{p}}"),
        ("encoder.layers.{n}.feed_forward.up.{p}", f"{LAYER}.mlp.c_fc.{{p}}"),
        ("encoder.layers.{n}.feed_forward.down.{p}", f"{LAYER}.mlp.c_proj.{{p}}"),
        ("encoder.norm.{p}", "transformer.ln_f.{p}"),
        ("classifier.weight", "score.weight"),
    ]
)
# transformers' defaults are for another vocabulary; `cloze.model.hub.write` writes the tokenizer's
NO_IDS = ("bos_token_id", "eos_token_id")


class Gpt2Format(HubFormat):
    family = "gpt2"
    model_type = "gpt2"
    keys = KEYS
    fields = {
        **same("vocab_size", "initializer_range", "pad_token_id"),
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "max_position_embeddings": "n_positions",
        "hidden_act": "activation_function",
        "hidden_dropout": "resid_pdrop",
        "attention_dropout": "attn_pdrop",
        "layer_norm_eps": "layer_norm_epsilon",
    }
    fixed = {
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "reorder_and_upcast_attn": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    }
    architectures = {
        frozenset({"lm"}): "GPT2LMHeadModel",
        frozenset({"classifier"}): "GPT2ForSequenceClassification",
        frozenset({"span"}): "GPT2ForQuestionAnswering",
        frozenset({"token_classifier"}): "GPT2ForTokenClassification",
        frozenset({EMBEDDING}): "GPT2Model",
    }
    task_rows = {name: rows for name, rows in TASK_ROWS.items() if name != "choice"}
    refused = {"choice": "transformers has no GPT-2 that chooses by the last token"}
    drops = (
        Drop("lm_head.weight", "transformer.wte.weight"),
        # masks and a number that versions before 4.30 saved as weights
        Drop("*.attn.bias"),
        Drop("*.attn.masked_bias"),
    )
    base = "transformer."

    def to_theirs(self, model: Any, name: str, tensor: Tensor) -> Tensor:
        """Transpose the matrices of the layers, both ways."""
        # transformers' GPT-2 has `Conv1D` there, whose weight is [in, out].
        matrices = ("qkv.weight", "attention.output.weight", "up.weight", "down.weight")
        return tensor.t().contiguous() if name.endswith(matrices) else tensor

    to_ours = to_theirs

    def write(self, config: dict[str, Any]) -> dict[str, Any]:
        """Write one dropout as transformers' two."""
        return {**config, **dict.fromkeys(NO_IDS), "embd_pdrop": config["resid_pdrop"]}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Read transformers' two dropouts as one.

        Raises:
            DataError: the two differ.
        """
        residual, embedded = config.get("resid_pdrop", 0.1), config.get("embd_pdrop", 0.1)
        if residual != embedded:
            raise DataError(
                f"resid_pdrop ({residual}) and embd_pdrop ({embedded}) differ, and gpt2 has one "
                f"dropout; make them equal"
            )
        width = config.get("n_embd", 768)
        return {**config, "n_embd": width, "n_inner": config.get("n_inner") or 4 * width}


HUB = Gpt2Format()
