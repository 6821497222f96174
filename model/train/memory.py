"""The memory of a training: weights and optimizer by ZeRO stage, and what is kept for the backward pass. No torch.

Weights, gradients and moments are fp32 (`model.train.precision`). What is kept is counted from what our layers keep: dropout keeps a mask
(of the values' own type on a CPU, of bytes on a GPU), a CPU's attention its probabilities, a GPU's none (its fused kernels compute
them again). `python -m benchmarks.memory_plan` holds all of it against measured peaks.

Letters: D width, I width inside the feed-forward block, N heads, L length, V vocabulary, P parameters, R ranks.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import asdict, dataclass
from typing import Literal

from model.families.config import ModelConfig
from model.layers.logit_sizes import chunk_rows, in_chunks
from model.train.arithmetic import MASK_SHARE, WEIGHT_BYTES, approximate_parameters

CPU_TOKENS = 4096  # a micro-batch of 32 x 128: larger ones gain nothing on a CPU and cost memory
MARGIN = 0.9  # of a GPU's memory is planned with: allocators round up, batches differ
PREDICTIONS = 64  # masked positions of a batch are filled up to a multiple of it (`model.data.collate`)
GATHERED = 1_000_000_000  # weights that ZeRO-3 keeps whole at most (DeepSpeed's stage3_max_live_parameters)
BUCKET_NUMBERS = 1 << 25  # gradients that ZeRO lays together at most (`model.train.engines.deepspeed`)
# A process with torch: libraries, threads, the tokenizer; with DeepSpeed; on a GPU, the host's part.
PROCESS = {"cpu": 440e6, "cuda": 2.4e9}
DEEPSPEED = 80e6
SENT_AT_ONCE = 25 << 20  # bytes of gradients (`model.train.engines.gradients`)
HEAP = 1.1  # of a CPU's memory: what is freed lies in pieces (measured; a GPU's pieces are in `MARGIN`)
BAND_PAYS = 4  # as of `model.layers.layout`
PINNED = 1.44  # torch rounds pinned blocks up to powers of two, 1 / ln 2 on average (ATen's CachingHostAllocator)
CONTEXT = 1.2e9  # of a GPU: CUDA's context, cuBLAS's and NCCL's buffers


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """How a training step is computed.

    Attributes:
        bf16: whether matrices are multiplied in 16 bits.
        checkpointing: whether layers keep their inputs alone, and are computed again.
        reduce16: whether gradients travel in 16 bits.
        offload: whether the optimizer's state lies in the machine's memory (ZeRO 1 to 3).
        averaging: whether an average of the weights is kept.
    """

    device: Literal["cpu", "cuda"] = "cuda"
    bf16: bool = True
    checkpointing: bool = False
    reduce16: bool = False
    offload: bool = False
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
        saving: what a save copies beside, which is written while training goes on; a GPU's is the host's.
        host: of the machine's memory, where the rank computes on a GPU: its process there, what a save copies, an optimizer that lies there.
        heap: what an allocator makes of all but the process.
    """

    weights: float
    gradients: float
    moments: float
    activations: float
    buffers: float
    process: float
    saving: float = 0.0
    host: float = 0.0
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


def _head(model: ModelConfig, predicted: int, how: Computing) -> float:
    """Bytes of so many predicted positions: the head's own, and logits with their gradient; a GPU has these in fp32 beside.

    Where these are computed in chunks (`model.layers.cross_entropy`), one chunk, and the gradient of the word embeddings in fp32.
    """
    own = predicted * model.word_width * (4.0 + 3.0 * how.number)
    logits = 2.0 * how.number if how.device == "cpu" else 10.0 if how.bf16 else 12.0
    if reads_logits(model) or not in_chunks(predicted, model.vocab_size, how.device):
        return own + predicted * logits * model.vocab_size
    chunk = chunk_rows(model.vocab_size, how.device) * model.vocab_size * (how.number + (0.0 if how.device == "cpu" else 4.0))
    return own + chunk + (4.0 + how.number) * model.vocab_size * model.word_width


def reads_logits(model: ModelConfig) -> bool:
    """Whether the whole logits of its heads are read, so that they are never computed in chunks: drawn from, compared with a teacher's."""
    return "discriminator" in model.heads or model.learns_from_teacher


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
    found = rows * _encoder(model, length, how, everywhere) + _head(model, predicted, how)
    return found + sum(rows * _encoder(other, length, how, True) for other in model.beside)


def save_bytes(model: ModelConfig, ranks: int, averaging: bool = False) -> float:
    """What the rank that has most of it copies for a save: its part of the moments (and average), and whole tensors of the weights.

    The same at every ZeRO stage and without: ranks that hold all of it share out what they write (`model.train.engines.shares`). Of the
    weights the word table's owner has all of that, however many ranks there are.
    """
    weights = float(WEIGHT_BYTES * approximate_parameters(model))
    table = float(WEIGHT_BYTES * model.vocab_size * model.word_width)
    return max(weights / ranks, table) + (3.0 if averaging else 2.0) * weights / ranks


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
        if ranks > 1 and how.reduce16:
            gradients += 0.5 * weights  # what travels lies there beside what is added up
        elif ranks > 1:
            gradients += weights if accumulating else min(weights, float(SENT_AT_ONCE))
    elif zero < 3:  # the part that is stepped lies there twice more: cut out of the weights, and of the gradients
        own += share * weights
        gradients = (weights if zero == 1 else bucket) + 2 * share * weights
    else:
        own = 2 * share * weights + min(weights, 4.0 * GATHERED)
        gradients = bucket + 2 * share * weights
    if zero and how.offload:  # what is stepped, its gradient and its moments
        own, gradients, moments = own - share * weights, gradients - share * weights, 0.0
    buffers = copies + ((2.5 if how.reduce16 else 2.0) * bucket if zero else 0.0)
    copied = save_bytes(model, ranks, how.averaging)
    beside = PROCESS["cuda"] + PINNED * copied + (offloaded_bytes(model, ranks) if zero and how.offload else 0.0)
    if how.averaging and not (zero and how.offload):
        moments += weights * (share if zero else 1.0)
    return Memory(
        weights=own,
        gradients=gradients,
        moments=moments,
        activations=activations,
        buffers=buffers,
        process=context,
        saving=0.0 if how.device == "cuda" else copied,
        host=beside if how.device == "cuda" else 0.0,
        heap=1.0 if how.device == "cuda" else HEAP,
    )


def offloaded_bytes(model: ModelConfig, ranks: int) -> float:
    """What a rank whose optimizer's state lies in the machine's memory has there: weights, their gradient and two moments."""
    return 4.0 * WEIGHT_BYTES * approximate_parameters(model) / ranks


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
    teacher = None if beside is None else beside.model_copy(update={"num_hidden_layers": 1})
    if beside is not None:  # it keeps nothing for a backward pass, but its weights, a layer and its logits
        memory -= WEIGHT_BYTES * approximate_parameters(beside)

    def fits(rows: int) -> bool:
        taught = 0.0 if teacher is None else rows * activation_bytes(teacher, length, how)
        return activation_bytes(model, length, how, causal_share, rows) + taught <= memory

    most = 1
    while fits(most):
        most *= 2
    found = bisect.bisect_left(range(most), True, key=lambda rows: not fits(rows + 1))
    return found if found < 8 else found - found % 8
