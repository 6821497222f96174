"""A model's arithmetic: its weights, the memory and the operations of a training step. No torch: plans are made without it."""

from __future__ import annotations

from model.families.config import ModelConfig

CPU_TOKENS = 4096  # a micro-batch of 32 x 128: larger ones gain nothing on a CPU and cost memory
CUDA_SHARE = 0.6  # of the GPU's memory, for activations; weights and optimizer have been taken off
STATE_BYTES = 16  # a parameter's weight, gradient and two moments in fp32
WEIGHT_BYTES = 4
BYTES_A_WEIGHT = 12  # fp32 weight and two moments, in a checkpoint
MASK_SHARE = 0.16  # of the positions are predicted, roughly


def activation_bytes(model: ModelConfig, length: int, causal_share: float = 0.0) -> float:
    """What a row of `length` tokens keeps for the backward pass, roughly.

    34 D + 5 N L bytes a token and layer in 16 bits (Korthikanti et al., 2022, equation 2), and fp32 logits three times: of the
    positions that are predicted, or of all where a family learns from each. Scores of relative positions are another N L numbers.

    Args:
        causal_share: of the samples, those that a model which fills masks reads from left to right: it learns from each position.
    """
    scores = 5 + (2 if model.position_terms else 0)
    layer = 34 * model.hidden_size + scores * model.num_attention_heads * length
    predicted = 1.0 if "lm" in model.heads else MASK_SHARE + causal_share * (1.0 - MASK_SHARE)
    row = length * (model.num_hidden_layers * layer + predicted * 3 * 4 * model.vocab_size)
    return 2.0 * row if "discriminator" in model.heads else row  # a generator runs before it, at most as large


def approximate_parameters(model: ModelConfig) -> int:
    """Weights of the encoder and of what is trained beside it, to a few per cent; ties of embeddings between them are not seen."""
    own = model.distinct_layers * model.layer_weights + model.weights_beside_layers
    return own + sum(other.distinct_layers * other.layer_weights for other in model.beside)


def computed_weights(model: ModelConfig) -> int:
    """As `approximate_parameters`, with layers that share their weights counted each: a token runs through all of them."""
    shared = (model.num_hidden_layers - model.distinct_layers) * model.layer_weights
    return approximate_parameters(model) + shared


def fitting_rows(
    free: float, model: ModelConfig, length: int, beside: ModelConfig | None = None, causal_share: float = 0.0
) -> int:
    """Sequences of `length` tokens that a GPU with so many free bytes takes at once; a multiple of 8 from there on.

    Args:
        beside: a teacher's config, which runs on the same batches.
        causal_share: as of `activation_bytes`.
    """
    memory = free * CUDA_SHARE - STATE_BYTES * approximate_parameters(model)
    row = activation_bytes(model, length, causal_share)
    if beside is not None:  # it keeps nothing for a backward pass, but its weights, a layer and its logits
        memory -= WEIGHT_BYTES * approximate_parameters(beside)
        row += activation_bytes(beside.model_copy(update={"num_hidden_layers": 1}), length)
    found = max(1, int(memory // row))
    return found if found < 8 else found - found % 8


def operations_per_token(model: ModelConfig, length: float) -> float:
    """Floating point operations of a training step, a token in a row of so many tokens, forward and backward.

    Six a weight of the matrices (Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1), 12 L D a layer for
    attention's scores and sums, as many for each product with relative positions, of which there are two for every key, and the
    logits of the positions that are predicted.
    """
    predicted = 1.0 if "lm" in model.heads else MASK_SHARE
    layers = sum(
        one.num_hidden_layers * (6.0 * one.layer_weights + 12.0 * (1 + one.position_terms) * length * one.hidden_size)
        for one in (model, *model.beside)
    )
    return layers + 6.0 * predicted * model.vocab_size * model.word_width
