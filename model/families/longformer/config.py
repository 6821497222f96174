"""The config of Longformer: RoBERTa's, and how wide the windows are. No torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from model.families.config import Size
from model.families.roberta.config import RobertaConfig
from pipeline.core.config import Tag

Window = Annotated[int, Field(ge=2, multiple_of=2)]


class LongformerConfig(RobertaConfig):
    """Defaults are those of longformer-base-4096 (Beltagy et al., "Longformer", 2020, section 5 and Table 12)."""

    both_ways: ClassVar[bool] = False

    usual_batch: ClassVar[int] = 64  # section 5

    family: Tag[Literal["longformer"]] = "longformer"  # type: ignore[assignment]
    max_position_embeddings: Size = 4096
    layer_norm_eps: Annotated[float, Field(gt=0.0)] = 1e-5

    attention_window: Window | tuple[Window, ...] = 512
    """How wide each layer's window is, half of it to either side: one even number for all layers, or one a layer."""

    @field_validator("attention_window")
    @classmethod
    def _one_a_layer(cls, window: Any, info: ValidationInfo) -> Any:
        layers = info.data.get("num_hidden_layers")
        if isinstance(window, tuple) and layers is not None and len(window) != layers:
            raise ValueError(
                f"attention_window has {len(window)} numbers for {layers} layers; give one for each layer, or one for all"
            )
        return window

    def window(self, layer: int) -> int:
        """How far a token sees to either side in the layer of this number, from 0."""
        whole = self.attention_window[layer] if isinstance(self.attention_window, tuple) else self.attention_window
        return whole // 2

    @property
    def weights_beside_layers(self) -> int:
        """With the matrices of the tokens that see the whole row: no other token goes through them."""
        return super().weights_beside_layers + 3 * self.num_hidden_layers * self.hidden_size**2

    def window_of(self, layer: int) -> int | None:
        return self.window(layer)


CONFIG = LongformerConfig
