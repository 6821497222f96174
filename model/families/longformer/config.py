"""The config of Longformer: RoBERTa's, and the width of the attention windows. No torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from cloze.core.config import UnionTag
from cloze.model.families.config import ModelConfig, Size
from cloze.model.families.roberta.config import RobertaConfig

Window = Annotated[int, Field(ge=2, multiple_of=2)]


class LongformerConfig(RobertaConfig):
    """Longformer (Beltagy et al., 2020, section 5, Table 12): longformer-base-4096."""

    supports_causal: ClassVar[bool] = False

    default_batch_size: ClassVar[int] = 64  # section 5

    family: UnionTag[Literal["longformer"]] = "longformer"  # type: ignore[assignment]
    max_position_embeddings: Size = 4096
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5

    attention_window: Window | tuple[Window, ...] = 512
    """Attention window in tokens, half on each side: one even number for all layers, or one per
    layer."""

    @field_validator("attention_window")
    @classmethod
    def _one_a_layer(cls, window: Any, info: ValidationInfo) -> Any:
        layers = info.data.get("num_hidden_layers")
        if isinstance(window, tuple) and layers is not None and len(window) != layers:
            raise ValueError(
                f"attention_window has {len(window)} numbers for {layers} layers; give one for "
                f"each layer, or one for all"
            )
        return window

    def window(self, layer: int) -> int:
        """Return the tokens visible on each side in layer `layer`, from 0."""
        whole = (
            self.attention_window[layer]
            if isinstance(self.attention_window, tuple)
            else self.attention_window
        )
        return whole // 2

    @property
    def weights_beside_layers(self) -> int:
        """Number of weights outside the layers, plus the matrices of global tokens."""
        return super().weights_beside_layers + 3 * self.num_hidden_layers * self.hidden_size**2

    def window_of(self, layer: int) -> int | None:
        return self.window(layer)


CONFIG = LongformerConfig

# Longformer's sizes (Beltagy et al., 2020, section 5): RoBERTa's with 4,096 positions.
PRESETS: dict[str, ModelConfig] = {
    "longformer-tiny": LongformerConfig.of_size(2, 128, attention_window=64),
    "longformer-base": LongformerConfig.of_size(12, 768),  # windows of 512, 148M parameters
    "longformer-large": LongformerConfig.of_size(24, 1024),  # windows of 512, 435M parameters
}
