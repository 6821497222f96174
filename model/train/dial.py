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
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from cloze.core.artifacts.artifact import read_manifest
from cloze.core.errors import UsageError
from cloze.core.humanize import format_count, parse_count
from cloze.core.stages.execution import MachineSpec
from cloze.core.stages.stage import role_of
from cloze.model import hardware
from cloze.model.families.config import ModelConfig
from cloze.model.families.registry import model_config
from cloze.model.objectives import share_left_to_right
from cloze.model.train.plan.estimates import step_flops

if TYPE_CHECKING:
    from cloze.model.train.build_model import SetupJob
    from cloze.model.train.config import PretrainConfig

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

# Times 1 / width; other optimizers keep their default rate.
RATES = {"muon": 0.5, "adamw": 0.25, "stable-adamw": 0.25}
WARMUP, MOST_WARMUP_TOKENS = 0.05, 3e9
TIMESCALE, MOST_DECAY = 0.1, 0.1
ROWS = 8  # the batch is a multiple


class Dial(BaseModel):
    """The size, and the fields that the user sets instead of the dial.

    Attributes:
        parameters: size of the model, with word embeddings; also written 17m or 1.5M.
        by_hand: names of the fields in `RULES` that the config has; validation fills it in.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

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


def resolve(
    config: PretrainConfig, vocabulary: int, row_tokens: float, speed: float, kind: str
) -> PretrainConfig:
    """Return the config with the fields of `RULES` filled in; unchanged without `size`.

    1 / width is muP's rule (Yang et al., "Tensor Programs V", 2022, Table 3). A batch
    by hand that is smaller than the rule's lowers the rate by the root (Malladi et al., 2022).

    Args:
        vocabulary: size of the dataset's vocabulary.
        row_tokens: mean tokens of a row.
        speed, kind: operations per second of all devices together, and `cpu` or `cuda`: they turn
            `max_time` into a number of tokens.
    """
    if config.size is None:
        return config
    by_hand, values = config.size.by_hand, dict[str, Any]()

    def choose(name: str, value: Any) -> Any:
        if name in by_hand:
            return getattr(config, name)
        values[name] = float(f"{value:.2g}") if isinstance(value, float) else value
        return values[name]

    model = shape(config.size.parameters, vocabulary)
    choose("model", model.model_copy(update={"vocab_size": 0}))  # the tokenizer's, with its ids
    tokens = float(config.tokens or 0)
    if config.seconds is not None:
        causal_share = share_left_to_right(config.objectives or (), config.causal_share)
        tokens = config.seconds * speed / step_flops(model, row_tokens, kind, causal_share)
    optimizer = choose("optimizer", "muon")
    best_batch = max(ROWS, ROWS * round(step_tokens(tokens) / row_tokens / ROWS))
    batch = choose("global_batch", best_batch)
    rate = RATES.get(optimizer)
    if rate is not None:
        rate *= math.sqrt(min(1.0, batch / best_batch)) / model.hidden_size
    choose("learning_rate", rate)
    choose("hidden_lr_multiplier", 1.5 if optimizer == "muon" else 1.0)
    choose("warmup_share", min(WARMUP, MOST_WARMUP_TOKENS / tokens))
    peak = config.model_copy(update=values).peak_learning_rate()
    timescale = TIMESCALE * tokens / (batch * row_tokens) * peak
    choose("weight_decay", min(MOST_DECAY, 1 / timescale))
    choose("betas", (0.9, 0.98))
    return config.model_copy(update=values)


def resolve_for_run(
    config: PretrainConfig, job: SetupJob, kept: Mapping[str, Any] | None
) -> PretrainConfig:
    """Return the config for the job's datasets and devices, and note what was chosen.

    Args:
        kept: config of the checkpoint to resume, whose choices count on every machine.
    """
    if config.size is None:
        return config
    if kept is not None:
        chosen = type(config).model_validate(kept)
        return config.model_copy(update={name: getattr(chosen, name) for name in RULES})
    import torch

    from cloze.model.train.plan import cost

    paths = {key: path for key, path in job.build.inputs.items() if role_of(key) == "dataset"}
    data = cost.dataset_metadata({key: read_manifest(path).summary for key, path in paths.items()})
    kind = job.world.device.type
    gpu = torch.cuda.get_device_name() if kind == "cuda" else ""
    device = hardware.of(kind, MachineSpec(cpus=torch.get_num_threads(), gpu=gpu))
    speed = job.world.size * device.speed()
    resolved = resolve(config, job.info.vocab_size, cost.row_tokens(data), speed, kind)
    job.notes.extend(describe(resolved).values())
    return resolved


def describe(config: PretrainConfig) -> dict[str, str]:
    """Return value and rule of each field that the dial has set in a resolved config."""
    if config.size is None or config.model is None:
        return {}
    model = config.model
    values: dict[str, Any] = {
        **dict(config),
        "model": f"of {format_count(config.size.parameters)}: {model.num_hidden_layers} layers of "
        f"{model.hidden_size}, {model.num_attention_heads} heads, feed-forward "
        f"{model.intermediate_size}",
    }
    chosen = [name for name in RULES if name not in config.size.by_hand]
    return {name: f"{name} {values[name]} ({RULES[name]})" for name in chosen}
