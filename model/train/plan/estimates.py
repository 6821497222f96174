"""Estimates of a training: weights, operations of a step, and memory. No torch.

Memory is an upper bound of one rank's peak, to be planned with under `MARGIN`: state by ZeRO stage,
activations, and the process. It is checked by `tests/model/train/plan/test_estimates.py` (tensors
that autograd keeps) and by `python -m benchmarks.memory_plan` (measured peaks on a CPU).
`cloze.model.hardware` lists devices.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from cloze.model.families.config import ModelConfig
from cloze.model.hardware import chunks_logits, logit_chunk_rows
from cloze.model.train.spec.engine_choice import BUCKET_NUMBERS

WEIGHT_BYTES = 4
BYTES_A_WEIGHT = 12  # fp32 weight and two moments, in a checkpoint
MASK_SHARE = 0.16  # approximate share of positions that are predicted
FORWARD = 1 / 3  # operations of a forward pass, as a share of a training step's
# Operations per token besides the matrices (embeddings, norms, optimizer, loading, kernel
# launches), which slow small models down. On the CPU from BERT-tiny's 44,000 and BERT-mini's 18,000
# tokens/s on two cores of a Xeon with AMX (benchmarks/README.md); on a GPU a guess.
OVERHEAD_OPERATIONS = {"cpu": 1.2e7, "cuda": 5.0e7}
CPU_TOKENS = 4096  # a micro-batch of 32 x 128: larger ones cost memory and gain nothing on a CPU
MARGIN = 0.9  # share of the memory to plan with: allocators round up, batches differ
PREDICTIONS = 64  # masked positions of a batch are padded to a multiple (`cloze.model.data.batch`)
GATHERED = 1_000_000_000  # weights that ZeRO-3 keeps whole (DeepSpeed's stage3_max_live_parameters)
BUCKETS = 3.0  # buckets that exist at once
# Bytes of a process with torch, data and tokenizer on the host.
PROCESS = {"cpu": 440e6, "cuda": 2.4e9}
DEEPSPEED = 80e6  # additional bytes of a process with DeepSpeed
CONTEXT = 1.2e9  # bytes of a GPU: CUDA's context, cuBLAS's and NCCL's buffers
HEAP = 1.1  # factor of a CPU's heap for fragmentation (measured; a GPU's is in `MARGIN`)
PINNED = 1.44  # torch rounds pinned blocks up to powers of two: 1 / ln 2 on average
BAND_PAYS = 4  # as in `cloze.model.layers.layout`
MOST_ROWS = 1 << 20  # per micro-batch
TRANSIENT = 0.5  # of a layer: share needed only while the layer is computed


def operations(weights: float, tokens: float, kind: str = "", forward: bool = False) -> float:
    """Return the operations of steps or forward passes, with the overhead on `cpu` or `cuda`."""
    a_token = 6.0 * weights + OVERHEAD_OPERATIONS.get(kind, 0.0)
    return a_token * tokens * (FORWARD if forward else 1.0)


def cpu_rows(length: int) -> int:
    """Return the rows of `length` tokens of a micro-batch on a CPU."""
    return max(1, CPU_TOKENS // length)


def checkpoint_bytes(weights: int) -> int:
    """Return the bytes of a checkpoint."""
    return weights * BYTES_A_WEIGHT


def approximate_parameters(model: ModelConfig) -> int:
    """Estimate the weights of encoder and heads to a few per cent, ignoring tied embeddings."""
    main_weights = model.distinct_layers * model.layer_weights + model.weights_outside_layers
    return main_weights + sum(
        auxiliary.distinct_layers * auxiliary.layer_weights for auxiliary in model.auxiliary_models
    )


def active_parameters(model: ModelConfig) -> int:
    """Estimate the weights that a token passes through: shared layers count once per use."""
    repeated_weights = (model.num_hidden_layers - model.distinct_layers) * model.layer_weights
    return approximate_parameters(model) + repeated_weights


def flops_per_token(
    model: ModelConfig, length: float, teacher: ModelConfig | None = None, causal_share: float = 0.0
) -> float:
    """Return the operations per token of a training step, for rows of `length` tokens.

    The layers of all networks, the logits of predicted positions, and a teacher's forward pass.

    Args:
        causal_share: see `predicted_share`.
    """
    layer_flops = sum(
        encoder_flops_per_token(encoder, length) for encoder in (model, *model.auxiliary_models)
    )
    teacher_flops = 0.0 if teacher is None else FORWARD * flops_per_token(teacher, length)
    return layer_flops + logit_flops_per_token(model, causal_share) + teacher_flops


def logit_flops_per_token(model: ModelConfig, causal_share: float = 0.0) -> float:
    """Return the operations per token of a training step in the logits of predicted positions."""
    # 2 operations a weight forward, 4 backward (for the weights and for the states).
    return 6.0 * predicted_share(model, causal_share) * model.vocab_size * model.word_width


def predicted_share(model: ModelConfig, causal_share: float = 0.0) -> float:
    """Return the share of positions that are predicted: all, if no head needs masks or a target.

    Args:
        causal_share: share of samples that a fill-mask model reads left to right.
    """
    if not {"masked_lm", "generator", "seq2seq"} & set(model.heads):
        return 1.0
    return MASK_SHARE + causal_share * (1.0 - MASK_SHARE)


def encoder_flops_per_token(encoder: ModelConfig, length: float) -> float:
    """Return the operations per token of a training step in the layers of one network.

    Six per weight of the matrices (Kaplan et al., "Scaling Laws for Neural Language Models", 2020,
    section 2.1); 12 L D per layer for attention scores and sums over L attended tokens, and as many
    for each of the two products with relative positions.
    """
    attention = 12.0 * (1 + encoder.position_terms) * encoder.attention_width
    weights = encoder.num_hidden_layers * 6.0 * encoder.layer_weights
    return weights + attention * _attended(encoder, length)


def _attended(model: ModelConfig, length: float) -> float:
    """Return the tokens that a token attends to in a row of `length`, summed over the layers."""
    windows = map(model.window_of, range(model.num_hidden_layers))
    # A window reaches to both sides of the token, and has the token itself.
    return sum(length if window is None else min(length, 2.0 * window + 1.0) for window in windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeOptions:
    """Options of a training step that affect what it costs.

    Attributes:
        bf16: True if matrices are multiplied in 16 bits.
        checkpointing: True if layers keep only their inputs (activation checkpointing).
        offload: True if the optimizer state is in host memory (ZeRO 1 to 3).
        fsdp: True with the engine fsdp, for ZeRO 2 and 3.
        ranks, zero: number of processes, and the ZeRO stage by which several share the state.
        causal_share: see `predicted_share`.
        teacher: config of a teacher that runs on the same batches.
    """

    device: Literal["cpu", "cuda"] = "cuda"
    bf16: bool = True
    checkpointing: bool = False
    offload: bool = False
    fsdp: bool = False
    ranks: int = 1
    zero: int = 0
    causal_share: float = 0.0
    teacher: ModelConfig | None = None

    @property
    def value_bytes(self) -> int:
        """Bytes per operand of a matrix product."""
        return 2 if self.bf16 else 4


ON_GPU = ComputeOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes of one rank at its peak.

    Attributes:
        state: weights, gradients, optimizer state, and the engine's copies and buffers.
        activations: kept for the backward pass, and those of the layer being computed.
        process: the process itself; on a GPU, CUDA's context.
        saving: copy for a save, written during training; 0 on a GPU, whose copy is in `host`.
        host: host memory of a rank on a GPU; 0 on a CPU.
    """

    state: float
    activations: float
    process: float
    saving: float = 0.0
    host: float = 0.0

    @property
    def training(self) -> float:
        """Peak of a step without a save."""
        return self.state + self.activations + self.process

    @property
    def total(self) -> float:
        """Peak of a step during a save."""
        return self.training + self.saving


@dataclass(frozen=True, slots=True)
class StepCost:
    """Time and memory of a training step with rows of `length` tokens: all figures of a plan."""

    model: ModelConfig
    length: float
    how: ComputeOptions = ON_GPU

    @classmethod
    def of(
        cls, model: ModelConfig, length: float, how: ComputeOptions = ON_GPU, **changes: Any
    ) -> StepCost:
        """Return the cost with these options, of which `changes` replaces some."""
        return cls(model, length, replace(how, **changes))

    @property
    def operations(self) -> float:
        """Operations per token, with the overhead of the device."""
        share, teacher = self.how.causal_share, self.how.teacher
        flops = flops_per_token(self.model, self.length, teacher, share)
        return flops + OVERHEAD_OPERATIONS[self.how.device]

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights in fp32."""
        return float(WEIGHT_BYTES * approximate_parameters(self.model))

    def activation_bytes(self, rows: int = 1) -> float:
        """Estimate the bytes that a micro-batch keeps for the backward pass."""
        share, tokens = predicted_share(self.model, self.how.causal_share), rows * self.length
        predicted = (
            tokens if share == 1.0 else math.ceil(tokens * share / PREDICTIONS) * PREDICTIONS
        )
        networks = (self.model, *self.model.auxiliary_models)
        encoder_bytes = sum(replace(self, model=network)._encoder() for network in networks)
        return rows * encoder_bytes + self._head(predicted)

    def _layer(self, layer: int) -> float:
        """Return the bytes per token that a layer keeps.

        Attention: input, query, key, value and output; probabilities on a CPU (a GPU's fused
        kernels recompute them). Then the inputs of two norms in fp32, dropout masks (in the values'
        dtype on a CPU, bytes on a GPU), and the feed-forward block.
        """
        model, value_bytes, on_cpu = self.model, self.how.value_bytes, self.how.device == "cpu"
        width, heads, has_dropout = (
            model.hidden_size, model.num_attention_heads, model.attention_dropout > 0,
        )  # fmt: skip
        window = model.window_of(layer)
        banded = window is not None and self.length >= BAND_PAYS * window
        # Local attention stores keys and values three times.
        attention = value_bytes * width * (9.0 if banded else 5.0)
        if on_cpu and (self.how.bf16 or has_dropout):
            attended = 3 * window if banded and window is not None else self.length
            attention += value_bytes * heads * attended * (3 if has_dropout else 1)
        if model.position_terms:  # a GPU's kernels get their sum, and return its gradient
            attention += value_bytes * model.position_terms * width
            attention += 0.0 if on_cpu else value_bytes * 2 * heads * self.length
        mask = 0 if not model.hidden_dropout else value_bytes if on_cpu else 1
        feed_forward_width = (4 if model.gated else 2) * model.intermediate_size
        return (
            attention + width * (2 * 4 + 2 * mask + value_bytes) + value_bytes * feed_forward_width
        )

    def _encoder(self) -> float:
        """Return the bytes per row that embeddings and layers keep."""
        model = self.model
        layers = [self._layer(layer) for layer in range(model.num_hidden_layers)]
        largest_layer = max(layers, default=0.0)  # a model may have no layers
        # The first and the last layer are not recomputed.
        if self.how.checkpointing and len(layers) > 1:
            # fp32 on a CPU; a GPU's states are narrower under autocast, and this is an upper bound.
            inputs = [4.0 * model.hidden_size] * (len(layers) - 2)
            layers = [*layers[:1], *inputs, *layers[-1:]]
        values = self.how.value_bytes if model.hidden_dropout else 0
        embeddings = model.word_width * (4.0 + values)
        return self.length * (sum(layers) + embeddings + TRANSIENT * largest_layer)

    def _head(self, predicted: float) -> float:
        """Return the bytes of the predicted positions: activations, logits, gradients.

        A GPU also keeps the logits in fp32. Chunked logits (`cloze.model.layers.cross_entropy`)
        take one chunk, and the gradient of the word embeddings in fp32.
        """
        model, value_bytes, device = self.model, self.how.value_bytes, self.how.device
        transform_bytes = predicted * model.word_width * (4.0 + 3.0 * value_bytes)
        logit_bytes = 2.0 * value_bytes if device == "cpu" else 10.0 if self.how.bf16 else 12.0
        samples_logits = "discriminator" in model.heads or model.learns_from_teacher
        if samples_logits or not chunks_logits(int(predicted), model.vocab_size, device):
            return transform_bytes + predicted * logit_bytes * model.vocab_size
        chunk_bytes = value_bytes + (0.0 if device == "cpu" else 4.0)
        chunk_bytes *= min(predicted, logit_chunk_rows(model.vocab_size, device)) * model.vocab_size
        table_bytes = (4.0 + value_bytes) * model.vocab_size * model.word_width
        return transform_bytes + chunk_bytes + table_bytes

    @property
    def save_bytes(self) -> float:
        """Bytes that a rank copies for a save: its part of the moments, and weights.

        They do not depend on the ZeRO stage: ranks divide the writing
        (`cloze.model.train.engines.gradients`), weights by whole tensors, so one rank has the whole
        word table, and copies at least that.
        """
        model, ranks = self.model, self.how.ranks
        table_bytes = float(WEIGHT_BYTES * model.vocab_size * model.word_width)
        return max(self.weight_bytes / ranks, table_bytes) + 2.0 * self.weight_bytes / ranks

    @property
    def state_bytes(self) -> float:
        """Bytes of a rank's weights, gradients and optimizer state, with the engine's buffers."""
        how, weight_bytes = self.how, self.weight_bytes
        # autocast keeps them until the backward pass
        rounded = 0.5 * weight_bytes if how.bf16 else 0.0
        if how.zero == 0 or how.ranks == 1:
            # Gradients in flight exist in addition to accumulated ones.
            in_flight = weight_bytes if how.ranks > 1 else 0.0
            return 4.0 * weight_bytes + in_flight + rounded
        if how.fsdp:
            layer = WEIGHT_BYTES * self.model.layer_weights
            # Gathered at once for the whole module: weights, their gradient, a copy to send.
            root = float(WEIGHT_BYTES * self.model.weights_outside_layers + layer)
            # A CPU's heap keeps what layers free.
            freed = how.zero == 3 and how.device == "cuda"
            gathered = min(weight_bytes, root + 2.0 * layer) if freed else weight_bytes
            sharded = 0.0 if how.offload else 4.0 * weight_bytes
            return gathered + 2.0 * root + sharded / how.ranks + rounded
        kept = min(weight_bytes, float(WEIGHT_BYTES * GATHERED))
        whole = {1: 2.0 * weight_bytes, 2: weight_bytes, 3: kept}[how.zero]
        # Including the parts that a step cuts out of `whole`.
        sharded = (6.0 if how.zero == 3 else 5.0) * weight_bytes
        if how.offload:
            sharded -= 4.0 * weight_bytes
        buckets = BUCKETS * min(weight_bytes, float(WEIGHT_BYTES * BUCKET_NUMBERS))
        return whole + sharded / how.ranks + buckets + rounded

    def memory(self, rows: int) -> MemoryEstimate:
        """Estimate the memory of one of the processes with micro-batches of `rows` rows."""
        how, zero = self.how, self.how.zero if self.how.ranks > 1 else 0
        state, activations = self.state_bytes, self.activation_bytes(rows)
        if how.device == "cpu":
            return MemoryEstimate(
                state=HEAP * state,
                activations=HEAP * activations,
                process=PROCESS["cpu"] + (DEEPSPEED if zero else 0.0),
                saving=HEAP * self.save_bytes,
            )
        host = PROCESS["cuda"] + PINNED * self.save_bytes
        if zero and how.offload:  # weights, gradient and two moments
            host += 4.0 * self.weight_bytes / how.ranks
        return MemoryEstimate(state=state, activations=activations, process=CONTEXT, host=host)

    def fitting_rows(self, free: float) -> int:
        """Estimate how many rows fit a GPU with `free` bytes at once.

        Returns:
            The number, from 8 on a multiple of 8; 0 if not even one fits.
        """
        available, beside = free * MARGIN - self.memory(0).training, None
        if self.how.teacher is not None:
            # A teacher keeps nothing for a backward pass; it takes weights, a layer and logits.
            layer = self.how.teacher.model_copy(update={"num_hidden_layers": 1})
            beside = StepCost(layer, self.length, replace(self.how, causal_share=0.0))
            available -= replace(beside, model=self.how.teacher).weight_bytes

        def fits(rows: int) -> bool:
            teacher_bytes = 0.0 if beside is None else rows * beside.activation_bytes()
            return self.activation_bytes(rows) + teacher_bytes <= available

        row_count = largest(fits, MOST_ROWS)
        return row_count if row_count < 8 else row_count - row_count % 8


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to `limit` that fits, or 0, if all smaller ones fit too."""
    return bisect.bisect_left(range(1, limit + 1), True, key=lambda number: not fits(number))
