"""Longformer (Beltagy et al., 2020): RoBERTa with sliding windows and global tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from cloze.core.config import UnionTag
from cloze.core.errors import DataError, UsageError
from cloze.model.families import bert, roberta
from cloze.model.families.config import ModelConfig, Size
from cloze.model.families.hub_format import Row, same
from cloze.model.families.key_map import Drop, KeyMap, decoder_copies
from cloze.model.families.roberta import RobertaConfig
from cloze.pipeline import tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from cloze.model.families.pretraining import PretrainingModel
    from cloze.pipeline.tokenizer.special import SpecialTokens


SEPARATORS = 3  # in a row with a pair of texts, as RoBERTa's tokenizer puts them
SHORTEST_PAIR = 5  # tokens of a row with three separators in two places
Window = Annotated[int, Field(ge=2, multiple_of=2)]


class LongformerConfig(RobertaConfig):
    """Longformer (Beltagy et al., 2020, section 5, Table 12): longformer-base-4096."""

    supports_causal: ClassVar[bool] = False
    supports_pruned_heads: ClassVar[bool] = False  # global tokens have projections of their own
    default_batch_size: ClassVar[int] = 64  # section 5

    family: UnionTag[Literal["longformer"]] = "longformer"  # type: ignore[assignment]
    max_position_embeddings: Size = 4096
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5

    attention_window: Window | tuple[Window, ...] = 512
    """Attention window in tokens, half on each side: one even number for all layers, or one per
    layer."""

    @field_validator("attention_window")
    @classmethod
    def _window_per_layer(cls, window: Any, info: ValidationInfo) -> Any:
        layers = info.data.get("num_hidden_layers")
        if isinstance(window, tuple) and layers is not None and len(window) != layers:
            raise ValueError(
                f"attention_window has {len(window)} numbers for {layers} layers; give one for "
                f"each layer, or one for all"
            )
        return window

    @property
    def weights_outside_layers(self) -> int:
        """Number of weights outside the layers, plus the matrices of global tokens."""
        return super().weights_outside_layers + 3 * self.num_hidden_layers * self.hidden_size**2

    def window_of(self, layer: int) -> int:
        windows = self.attention_window
        return (windows[layer] if isinstance(windows, tuple) else windows) // 2


CONFIG = LongformerConfig

# Longformer's sizes (Beltagy et al., 2020, section 5): RoBERTa's with 4,096 positions.
PRESETS: dict[str, ModelConfig] = {
    "longformer-tiny": LongformerConfig.of_size(2, 128, attention_window=64),
    "longformer-base": LongformerConfig.of_size(12, 768),  # windows of 512, 148M parameters
    "longformer-large": LongformerConfig.of_size(24, 1024),  # windows of 512, 435M parameters
}


def build_model(config: LongformerConfig) -> PretrainingModel:
    from cloze.labs.longformer.global_attention import GlobalAttention, LongEncoder, LongModel
    from cloze.model.families.models import encoder, masked_lm

    plain = encoder(config)
    for number, layer in enumerate(plain.layers):
        layer.attention = GlobalAttention(
            config.hidden_size,
            config.num_attention_heads,
            dropout=config.attention_dropout,
            window=config.window_of(number),
        )
    return LongModel(
        LongEncoder(plain.embeddings, list(plain.layers), plain.norm), masked_lm(config)
    )


def convert(
    model: ModelConfig, state: Mapping[str, Tensor], positions: int
) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Convert a trained RoBERTa (section 5; allenai/longformer, convert_model_to_long.ipynb).

    Learned positions are repeated, and the global projections start as copies of the local ones.
    The window is 512 as there, or the largest even number that the RoBERTa could see.

    Args:
        model, state: config and weights of the RoBERTa.
        positions: maximum row length of the Longformer.

    Raises:
        UsageError: the model is no RoBERTa, or reads longer rows already.
    """
    if model.family != "roberta":
        raise UsageError(
            f"family ({model.family}) cannot be converted to longformer; use a roberta model"
        )
    old_positions = model.max_position_embeddings
    if positions < old_positions:
        raise UsageError(
            f"positions ({positions}) must be at least max_position_embeddings of the model "
            f"({old_positions}); use {old_positions} or more"
        )
    values = {**model.model_dump(), "family": "longformer", "max_position_embeddings": positions}
    config = LongformerConfig(**values, attention_window=max(2, min(512, old_positions // 2 * 2)))
    import torch

    converted = dict(state)
    table = state["encoder.embeddings.position.weight"]
    offset = model.pad_token_id + 1
    learned = table[offset:]
    converted["encoder.embeddings.position.weight"] = torch.cat(
        [table[:offset], learned.repeat(-(-positions // len(learned)), 1)[:positions]]
    )
    for name, tensor in state.items():
        for projection in ("query", "key", "value"):
            if f".attention.{projection}." in name:
                converted[name.replace(f".{projection}.", f".global_{projection}.")] = (
                    tensor.clone()
                )
    return config, converted


LAYER = "longformer.encoder.layer.{n}.attention.self"
GLOBAL_ROWS: list[Row] = [
    (f"encoder.layers.{{n}}.attention.global_{name}.{{p}}", f"{LAYER}.{name}_global.{{p}}")
    for name in ("query", "key", "value")
]
# What transformers does instead, by head (modeling_longformer.py).
_GLOBAL = {
    "choice": "makes the ending global and the first token not",
    "token_classifier": "makes no token global",
    "embedding": "makes no token global",
}


class LongformerFormat(roberta.RobertaFormat):
    family = "longformer"
    model_type = "longformer"
    aliases = {}
    keys = KeyMap(bert.encoder_rows("longformer") + GLOBAL_ROWS + roberta.LM_ROWS)
    fields = {**roberta.HUB.fields, **same("attention_window")}
    fixed = {"tie_word_embeddings": True}
    architectures = {
        frozenset({"masked_lm"}): "LongformerForMaskedLM",
        frozenset({"classifier"}): "LongformerForSequenceClassification",
        frozenset({"span"}): "LongformerForQuestionAnswering",
    }
    refused = {
        head: (
            f"transformers' class {why}, unlike Cloze's model; predict with Cloze, or export a "
            f"roberta model"
        )
        for head, why in _GLOBAL.items()
    }
    drops = (*decoder_copies("longformer", "lm_head"), Drop("longformer.pooler.*", named=True))
    converts = {"roberta": convert}
    defaults = {**roberta.HUB.defaults, "attention_window": 512, "layer_norm_eps": 1e-12}

    def token_fields(
        self, heads: Iterable[str], special: SpecialTokens, separators: int
    ) -> dict[str, Any]:
        """Name the separator, of which transformers' class finds the question by three in a row."""
        if "span" not in heads:
            return {}
        if separators != SEPARATORS:
            raise DataError(
                f"span (a head of this longformer model) has no Hugging Face form with its "
                f"tokenizer, which puts {separators} separators into a row; transformers' class "
                f"finds the question by {SEPARATORS}, as RoBERTa's tokenizer puts them; predict "
                f"with Cloze"
            )
        return {"sep_token_id": special.sep}

    def probe(
        self,
        model: LongformerConfig,
        heads: Mapping[str, Any],
        pieces: str,
        batch: dict[str, Tensor],
    ) -> dict[str, Tensor]:
        """Make questions of the rows' first halves, by the separators of transformers."""
        if "span" not in heads:
            return batch
        import torch

        lengths = batch["attention_mask"].sum(dim=1)
        batch = {name: rows[lengths >= SHORTEST_PAIR] for name, rows in batch.items()}
        lengths, ids = lengths[lengths >= SHORTEST_PAIR], batch["input_ids"]
        special, ends = tokenizer.load(pieces).special, lengths // 2
        ids[ids == special.sep] = special.cls
        ids.scatter_(1, torch.stack([ends, ends + 1, lengths - 1], dim=1), special.sep)
        asked = torch.arange(ids.shape[1]) < ends[:, None]
        return {**batch, "global_attention_mask": asked}

    def read(self, config: dict[str, Any]) -> dict[str, Any]:
        """Convert transformers' list of equal windows to one number."""
        values = super().read(config)
        windows = values["attention_window"]
        if isinstance(windows, list):
            values["attention_window"] = windows[0] if len(set(windows)) == 1 else tuple(windows)
        return values


HUB = LongformerFormat()
