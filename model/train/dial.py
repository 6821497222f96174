"""One dial: the model's shape, the batch and the rates of a pretraining follow from its size.

`--size N`, with `--tokens` or `--max-time`, sets the fields in `RULES`, except those that the user
sets. N counts all parameters, word embeddings included, as Ettin does, with the dataset's own
vocabulary: 8,192 tokens leave more of N to the layers than Ettin's 50,368. Imports no torch.

    N        layers  width  heads  feed-forward   (JHU-CLSP/ettin-encoder-vs-decoder, its configs)
    17M           7    256      4           384
    32M          10    384      6           576
    68M          19    512      8           768
    150M         22    768     12         1,152
    400M         28  1,024     16         2,624
    1B           28  1,792     28         3,840

Between these rows depth and feed-forward width are linear in the width, below them in proportion.
Of all shapes that have N parameters, give or take 5 %, the one nearest to that depth is taken.
docs/explanation/dial.md has the sweep that the rates come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator

from cloze.core.config import Values
from cloze.core.errors import UsageError
from cloze.core.humanize import parse_count
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config

# Ettin's widths, layers and feed-forward widths, and the origin
SHAPES = [
    (0, 256, 384, 512, 768, 1024, 1792),
    (0, 7, 10, 19, 22, 28, 28),
    (0, 384, 576, 768, 1152, 2624, 3840),
]
WIDTHS = (*range(32, 256, 32), *range(256, 1793, 64))
FEWEST_LAYERS, DEEPEST = 2, 3.0  # layers; their ratio to the natural number, or its inverse
NEAR, FARTHEST = 0.05, 0.15  # error of the number of parameters, as a logarithm

RULES = {
    "model": "ModernBERT's layers in Ettin's shapes, arXiv 2507.11412",
    "global_batch": "0.58 tokens^0.571 tokens a step: Step Law, arXiv 2503.04715",
    "optimizer": "lower losses than adamw, docs/explanation/speedrun.md",
    "learning_rate": "0.5 / width, adamw 0.25: muP, arXiv 2203.03466; docs/explanation/dial.md",
    "hidden_lr_multiplier": "1.5 with muon, docs/explanation/speedrun.md",
    "warmup_share": "a twentieth, at most Ettin's 3 billion tokens",
    "weight_decay": "1 / (rate x a tenth of the steps), arXiv 2405.13698, at most Ettin's 0.1",
    "betas": "Ettin's and RoBERTa's",
}
"""Field of `PretrainConfig`: the rule that it follows, with its source."""


class Dial(Values):
    """The size, and the fields that the user sets instead of the dial.

    Attributes:
        parameters: size of the model, with word embeddings; also written 17m or 1.5M.
        by_hand: names of the fields in `RULES` that the config has; validation fills it in.
    """

    parameters: int = Field(ge=100_000, le=2_000_000_000)
    by_hand: tuple[str, ...] = ()

    @field_validator("parameters", mode="before")
    @classmethod
    def _written_short(cls, value: Any) -> Any:
        count = parse_count(value) if isinstance(value, str) else value
        if count is None:
            raise ValueError("is no number of parameters; write 17m, 1.5M or 400000000")
        return count


def note_by_hand(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config's values with a size as a mapping that names the fields set by hand."""
    size = values.get("size")
    if size is None or isinstance(size, (Dial, Mapping)):  # a dump names them already
        return values
    by_hand = [name for name in RULES if values.get(name) is not None]
    return {**values, "size": {"parameters": size, "by_hand": by_hand}}


def shape(size: int, vocabulary: int) -> ModelConfig:
    """Return a ModernBERT of about `size` parameters for a vocabulary.

    Raises:
        UsageError: no shape has about as many, because the word embeddings take nearly all.
    """
    shapes = []
    for width in WIDTHS:
        model, natural = _modern(width, 1, vocabulary), _by_width(width, 1)
        fewest, most = math.ceil(natural / DEEPEST), round(DEEPEST * natural)
        for layers in range(max(FEWEST_LAYERS, fewest), most + 1):
            count = model.weights_outside_layers + layers * model.layer_weights
            error = abs(math.log(count / size))
            shapes.append((max(error, NEAR), abs(math.log(layers / natural)), width, layers, count))
    error, _, width, layers, count = min(shapes)
    if error > FARTHEST:
        raise UsageError(
            f"size ({size:,}) suits no model with a vocabulary of {vocabulary:,} tokens, the "
            f"nearest has {count:,} parameters; use that, or a smaller vocabulary"
        )
    return _modern(width, layers, vocabulary)


def _by_width(width: int, row: int) -> float:
    import numpy as np

    return float(np.interp(width, SHAPES[0], SHAPES[row]))


def _modern(width: int, layers: int, vocabulary: int) -> ModelConfig:
    return model_config(
        "modern-base",
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // (64 if width % 64 == 0 else 32),
        intermediate_size=16 * round(_by_width(width, 2) / 16),
    )


def step_tokens(tokens: float) -> float:
    """Return the tokens of a step: Li et al., "Predictable Scale: Part I, Step Law", 2025.

    5.6 million for Ettin's 1.7 trillion tokens, which have 4.7 million; 5,000 for 8 million.
    """
    return float(0.58 * tokens**0.571)
