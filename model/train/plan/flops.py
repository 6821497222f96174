"""A model's weights, and the operations of a training step. No torch: plans are made without it.

`cloze.model.train.plan.memory` estimates memory, `cloze.model.hardware` lists devices.
"""

from __future__ import annotations

from collections.abc import Iterator

from cloze.model.families.config import ModelConfig

WEIGHT_BYTES = 4
BYTES_A_WEIGHT = 12  # fp32 weight and two moments, in a checkpoint
MASK_SHARE = 0.16  # approximate share of positions that are predicted
# Operations per token besides the matrices (embeddings, norms, optimizer, loading, kernel
# launches), which slow small models down. On the CPU from BERT-tiny's 44,000 and BERT-mini's 18,000
# tokens/s on two cores of a Xeon with AMX (benchmarks/README.md); on a GPU a guess.
BESIDE = {"cpu": 1.2e7, "cuda": 5.0e7}


def checkpoint_bytes(weights: int, averaging: bool = False) -> int:
    """Return the bytes of a checkpoint. Args: averaging: True if it also contains the EMA."""
    return weights * (BYTES_A_WEIGHT + (WEIGHT_BYTES if averaging else 0))


def approximate_parameters(model: ModelConfig) -> int:
    """Estimate the weights of encoder and heads to a few per cent, ignoring tied embeddings."""
    main_weights = model.distinct_layers * model.layer_weights + model.weights_beside_layers
    return main_weights + sum(
        auxiliary.distinct_layers * auxiliary.layer_weights for auxiliary in model.auxiliary_models
    )


def active_parameters(model: ModelConfig) -> int:
    """Estimate the weights that a token passes through: shared layers count once per use."""
    repeated_weights = (model.num_hidden_layers - model.distinct_layers) * model.layer_weights
    return approximate_parameters(model) + repeated_weights


def step_flops(model: ModelConfig, length: float, kind: str) -> float:
    """Return `flops_per_token` plus the overhead per token on `cpu` or `cuda`."""
    return flops_per_token(model, length) + BESIDE[kind]


def _seen(model: ModelConfig, length: float) -> Iterator[float]:
    """Yield per layer the number of tokens that a token attends to in a row of `length`."""
    for layer in range(model.num_hidden_layers):
        window = model.window_of(layer)
        yield length if window is None else min(length, 2.0 * window + 1.0)


def flops_per_token(model: ModelConfig, length: float) -> float:
    """Return the operations per token of a training step, for rows of `length` tokens.

    Six per weight of the matrices (Kaplan et al., "Scaling Laws for Neural Language Models", 2020,
    section 2.1); 12 L D per layer for attention scores and sums over L attended tokens, and as many
    for each of the two products with relative positions; and the logits of predicted positions.
    """
    predicted = 1.0 if "lm" in model.heads else MASK_SHARE
    layer_flops = sum(
        encoder.num_hidden_layers * 6.0 * encoder.layer_weights
        + 12.0 * (1 + encoder.position_terms) * encoder.hidden_size * sum(_seen(encoder, length))
        for encoder in (model, *model.auxiliary_models)
    )
    return layer_flops + 6.0 * predicted * model.vocab_size * model.word_width
