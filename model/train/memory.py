"""The memory of a training: weights and optimizer by ZeRO stage, and what is kept for the backward pass. No torch.

Weights, gradients and moments are fp32 (`model.train.precision`). What is kept is counted from what our layers keep: dropout keeps a mask
(of the values' own type on a CPU, of bytes on a GPU), a CPU's attention its probabilities, a GPU's none (its fused kernels compute
them again). `python -m benchmarks.memory_plan` holds all of it against measured peaks.

Letters: D width, I width inside the feed-forward block, N heads, L length, V vocabulary, P parameters, R ranks.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from model.families.config import ModelConfig
from model.train.arithmetic import MASK_SHARE, WEIGHT_BYTES, approximate_parameters

CPU_TOKENS = 4096  # a micro-batch of 32 x 128: larger ones gain nothing on a CPU and cost memory
MARGIN = 0.9  # of a GPU's memory is planned with: allocators round up, batches differ
PREDICTIONS = 64  # masked positions of a batch are filled up to a multiple of it (`model.data.collate`)
GATHERED = 1_000_000_000  # weights that ZeRO-3 keeps whole at most (DeepSpeed's stage3_max_live_parameters)
BUCKET_NUMBERS = 1 << 25  # gradients that ZeRO lays together (`model.train.engines.deepspeed`)
# A process with torch: libraries, threads, the tokenizer; with DeepSpeed; on a GPU, the host's part.
PROCESS = {"cpu": 440e6, "cuda": 2.4e9}
DEEPSPEED = 80e6
SENT_AT_ONCE = 25 << 20  # bytes of gradients (`model.train.engines.gradients`)
HEAP = 1.1  # of a CPU's memory: what is freed lies in pieces (measured; a GPU's pieces are in `MARGIN`)
BAND_PAYS = 4  # as of `model.layers.layout`
CONTEXT = 1.2e9  # of a GPU: CUDA's context, cuBLAS's and NCCL's buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """How a training step is computed.

    Attributes:
        checkpointing: whether layers keep their inputs alone, and are computed again.
        averaging: whether an average of the weights is kept.
    """

    device: Literal["cpu", "cuda"] = "cuda"
    bf16: bool = True
    checkpointing: bool = False
    averaging: bool = False

    @property
    def number(self) -> int:
        """Bytes of a number that a matrix is multiplied with."""
        return 2 if self.bf16 else 4


ON_GPU = Computing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes of one rank at its peak.

    Attributes:
        weights, gradients, moments: what this rank has of them, with what the engine copies; the weights' average is one more moment.
        activations: kept for the backward pass, with the layer that is just computed.
        buffers: the rest: bf16 copies of the weights, what goes out to other ranks.
        process: of the process itself.
        saving: what a save copies, which is written while training goes on.
        heap: what an allocator makes of all but the process.
    """

    weights: float
    gradients: float
    moments: float
    activations: float
    buffers: float
    process: float
    saving: float = 0.0
    heap: float = 1.0

    @property
    def training(self) -> float:
        """At the peak of a step that no save is beside."""
        return self.heap * (self.weights + self.gradients + self.moments + self.activations + self.buffers) + self.process

    @property
    def total(self) -> float:
        """While a save is written, too."""
        return self.training + self.heap * self.saving

    def as_json(self) -> dict[str, int]:
        return {name: round(value) for name, value in {**asdict(self), "total": self.total}.items() if name != "heap"}


def _attention(model: ModelConfig, length: int, layer: int, how: Computing) -> float:
    """Bytes a token of a layer's attention: its input, query, key and value, what they mix to; and probabilities, where they are kept."""
    number, dropped = how.number, model.attention_dropout > 0
    window = model.window_of(layer)
    banded = window is not None and length >= BAND_PAYS * window
    found = number * (5.0 + (4 if banded else 0)) * model.hidden_size  # in bands, keys and values lie there three times
    if how.device == "cpu" and (how.bf16 or dropped):
        keys = 3 * window if banded and window is not None else length
        found += number * (3 if dropped else 1) * model.num_attention_heads * keys
    if model.position_terms:  # a GPU's kernels are given their sum, and its gradient
        found += number * model.position_terms * model.hidden_size
        found += number * 2 * model.num_attention_heads * length if how.device == "cuda" else 0.0
    return found


def _rest(model: ModelConfig, how: Computing) -> float:
    """Bytes a token of what follows attention in a layer: two norms' inputs in fp32, two masks of dropout, the feed-forward block."""
    number = how.number
    mask = 0 if not model.hidden_dropout else 1 if how.device == "cuda" else number
    inside = (4 if model.gated else 2) * model.intermediate_size
    return model.hidden_size * (2 * 4 + 2 * mask + number) + number * inside


def _encoder(model: ModelConfig, length: int, how: Computing, everywhere: bool) -> float:
    """Bytes a row that the layers keep. Args: everywhere: whether the last layer is computed at every position."""
    layers = range(model.num_hidden_layers)
    attention = [_attention(model, length, layer, how) for layer in layers]
    rest = _rest(model, how)
    widest = max(attention) + rest  # of the layer that is just computed, forward or backward, as much again
    if how.checkpointing:
        last = attention[-1] + rest * (1.0 if everywhere else MASK_SHARE)  # neither it nor the first is computed again
        kept = 4.0 * model.hidden_size * max(0, len(attention) - 2) + attention[0] + rest + last
    else:
        kept = sum(attention) + rest * (len(attention) - 1 + (1.0 if everywhere else MASK_SHARE))
    embeddings = model.word_width * (4.0 + (how.number if model.hidden_dropout else 0))
    return length * (kept + embeddings + _TRANSIENT * widest)


_TRANSIENT = 0.5


def _head(model: ModelConfig, how: Computing) -> float:
    """Bytes a predicted position: the head's own, and logits with their gradient; a GPU has these in fp32 beside."""
    logits = 2.0 * how.number if how.device == "cpu" else 10.0 if how.bf16 else 12.0
    return logits * model.vocab_size + model.word_width * (4.0 + 3.0 * how.number)


def activation_bytes(
    model: ModelConfig, length: int, how: Computing = ON_GPU, causal_share: float = 0.0, rows: int = 1
) -> float:
    """What a micro-batch of `rows` rows of `length` tokens keeps for the backward pass.

    Args:
        causal_share: of the samples, those that a model which fills masks reads from left to right: it learns from each position.
    """
    share = 1.0 if "lm" in model.heads else MASK_SHARE + causal_share * (1.0 - MASK_SHARE)
    predicted = rows * length if share == 1.0 else math.ceil(rows * length * share / PREDICTIONS) * PREDICTIONS
    everywhere = not set(model.heads) <= {"masked_lm", "pair"}
    found = rows * _encoder(model, length, how, everywhere) + predicted * _head(model, how)
    return found + sum(rows * _encoder(other, length, how, True) for other in model.beside)


def training_memory(
    model: ModelConfig,
    length: int,
    rows: int,
    *,
    ranks: int = 1,
    zero: int = 0,
    accumulating: bool = False,
    how: Computing = ON_GPU,
    causal_share: float = 0.0,
) -> Memory:
    """What one rank of a training takes.

    Args:
        rows: of a micro-batch.
        ranks: processes that train together.
        accumulating: whether a step has several micro-batches.
    """
    weights = float(WEIGHT_BYTES * approximate_parameters(model))
    zero = zero if ranks > 1 else 0
    share = 1.0 / ranks
    activations = activation_bytes(model, length, how, causal_share, rows)
    copies = 0.5 * weights if how.bf16 else 0.0  # autocast keeps what it rounded until the backward pass
    bucket = min(weights, 4.0 * BUCKET_NUMBERS)
    context = CONTEXT if how.device == "cuda" else PROCESS["cpu"] + (DEEPSPEED if zero else 0.0)
    own, gradients, moments = weights, weights, 2.0 * weights * share
    if zero == 0:
        moments = 2.0 * weights
        gradients += 0.0 if ranks == 1 else weights if accumulating else min(weights, float(SENT_AT_ONCE))
    elif zero < 3:  # the part that is stepped lies there twice more: cut out of the weights, and of the gradients
        own += share * weights
        gradients = (weights if zero == 1 else bucket) + 2 * share * weights
    else:
        own = 2 * share * weights + min(weights, 4.0 * GATHERED)
        gradients = bucket + 2 * share * weights
    buffers = copies + (2 * bucket if zero else 0.0)
    # every rank copies its part of weights and moments to the host's memory, and goes on; and of the average
    saving = 0.0 if how.device == "cuda" else (4.0 if how.averaging else 3.0) * weights * share
    if how.averaging:
        moments += weights * (share if zero else 1.0)
    return Memory(
        weights=own,
        gradients=gradients,
        moments=moments,
        activations=activations,
        buffers=buffers,
        process=context,
        saving=saving,
        heap=1.0 if how.device == "cuda" else HEAP,
    )


def fitting_rows(
    free: float,
    model: ModelConfig,
    length: int,
    beside: ModelConfig | None = None,
    causal_share: float = 0.0,
    *,
    ranks: int = 1,
    zero: int = 0,
    how: Computing = ON_GPU,
) -> int:
    """Sequences of `length` tokens that a GPU with so many free bytes takes at once; a multiple of 8 from there on; 0: none.

    Args:
        beside: a teacher's config, which runs on the same batches.
        causal_share: as of `activation_bytes`.
        ranks, zero: as of `training_memory`.
    """
    fixed = training_memory(model, length, 0, ranks=ranks, zero=zero, accumulating=True, how=how)
    memory = free * MARGIN - fixed.training
    row = activation_bytes(model, length, how, causal_share, rows=64) / 64
    if beside is not None:  # it keeps nothing for a backward pass, but its weights, a layer and its logits
        memory -= WEIGHT_BYTES * approximate_parameters(beside)
        row += activation_bytes(beside.model_copy(update={"num_hidden_layers": 1}), length, how)
    found = max(0, int(memory // row))
    return found if found < 8 else found - found % 8
