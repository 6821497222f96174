"""A model's arithmetic: its weights, and the operations of a training step. No torch: plans are made without it.

Memory is in `model.train.memory`, hardware and time in `model.train.scale`.
"""

from __future__ import annotations

from collections.abc import Iterator

from model.families.config import ModelConfig

WEIGHT_BYTES = 4
BYTES_A_WEIGHT = 12  # fp32 weight and two moments, in a checkpoint
MASK_SHARE = 0.16  # of the positions are predicted, roughly
# What a token takes beside its matrices (embeddings, norms, the optimizer, loading, starting kernels), as so many operations: it makes small
# models slower than their matrices are. On the CPU it follows from BERT-tiny's 44,000 and BERT-mini's 18,000 tokens/s on two cores of a Xeon
# with AMX (benchmarks/README.md); on a GPU it is a guess.
BESIDE = {"cpu": 1.2e7, "cuda": 5.0e7}


def checkpoint_bytes(weights: int, averaging: bool = False) -> int:
    """Of a checkpoint of so many weights. Args: averaging: whether it holds their average, too."""
    return weights * (BYTES_A_WEIGHT + (WEIGHT_BYTES if averaging else 0))


def approximate_parameters(model: ModelConfig) -> int:
    """Weights of the encoder and of what is trained beside it, to a few per cent; ties of embeddings between them are not seen."""
    own = model.distinct_layers * model.layer_weights + model.weights_beside_layers
    return own + sum(other.distinct_layers * other.layer_weights for other in model.beside)


def computed_weights(model: ModelConfig) -> int:
    """As `approximate_parameters`, with layers that share their weights counted each: a token runs through all of them."""
    shared = (model.num_hidden_layers - model.distinct_layers) * model.layer_weights
    return approximate_parameters(model) + shared


def step_work(model: ModelConfig, length: float, kind: str) -> float:
    """`operations_per_token`, and what a token takes beside them on a `cpu` or on `cuda`."""
    return operations_per_token(model, length) + BESIDE[kind]


def _seen(model: ModelConfig, length: float) -> Iterator[float]:
    """How many tokens of a row of so many a token sees, layer by layer."""
    for layer in range(model.num_hidden_layers):
        window = model.window_of(layer)
        yield length if window is None else min(length, 2.0 * window + 1.0)


def operations_per_token(model: ModelConfig, length: float) -> float:
    """Floating point operations of a training step, a token in a row of so many tokens, forward and backward.

    Six a weight of the matrices (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1), 12 L D a layer for
    attention's scores and sums over the L tokens that one sees, as many for each product with relative positions, of which there are two
    for every key, and the logits of the positions that are predicted.
    """
    predicted = 1.0 if "lm" in model.heads else MASK_SHARE
    layers = sum(
        one.num_hidden_layers * 6.0 * one.layer_weights
        + 12.0 * (1 + one.position_terms) * one.hidden_size * sum(_seen(one, length))
        for one in (model, *model.beside)
    )
    return layers + 6.0 * predicted * model.vocab_size * model.word_width
