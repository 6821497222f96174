"""The config of a pretraining whose size is given: what `dial.py` chooses, in its fields."""

from __future__ import annotations

import math
from typing import Any

from cloze.core.humanize import format_count
from cloze.model.objectives import share_left_to_right
from cloze.model.train.config import PretrainConfig
from cloze.model.train.dial import RULES, shape, step_tokens
from cloze.model.train.plan.estimates import StepCost

# Times 1 / width; other optimizers keep their default rate.
RATES = {"muon": 0.5, "adamw": 0.25, "stable-adamw": 0.25}
WARMUP, MOST_WARMUP_TOKENS = 0.05, 3e9
TIMESCALE, MOST_DECAY = 0.1, 0.1
ROWS = 8  # the batch is a multiple


def resolve_size(
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
        step = StepCost.of(model, row_tokens, device=kind, causal_share=causal_share)
        tokens = config.seconds * speed / step.operations
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


def describe_size(config: PretrainConfig) -> dict[str, str]:
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
