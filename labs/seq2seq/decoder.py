"""Encoder and decoder as one backbone (Vaswani et al., 2017), and search for the best output.

Task kinds of any sort read the decoder's states for a row that both read (BART: Lewis et al., 2020,
section 3): `EncoderDecoder.forward`. Pretraining (`Seq2SeqModel`) and text-to-text tasks use
`memory_of` and `decode`, generation uses `generate`.

Shapes: B rows, S source length, T target length, D model, V vocabulary, K beams.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cloze.labs.left_to_right import last_state
from cloze.labs.seq2seq.kv_cache import KVCache, Memory
from cloze.model.layers.attention import SelfAttention, gather_positions
from cloze.model.layers.batch import IGNORE_INDEX, Batch, unmask
from cloze.model.layers.cpu import Dropout, attend, autocast_input
from cloze.model.layers.embeddings import Embeddings
from cloze.model.layers.encoder import Encoder, Run
from cloze.model.layers.layout import BatchLayout


class CrossAttention(SelfAttention):
    """Attention of a decoder to the encoder's states, which its layout carries (`memory`)."""

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Compute attention of hidden, float [B, L, D], to the layout's memory; return its shape.

        Args:
            positions: not supported: decoders compute all positions.
        """
        memory = None if layout is None else layout.memory
        assert memory is not None, "a decoder's layout carries the encoder's states"
        assert positions is None
        query = self.split(self.query(autocast_input(hidden))) * self.query_scale
        key, value = memory.projected(self, self.key_and_value)
        mixed = attend(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            memory.bias(query.dtype),
            self.dropout if self.training else 0.0,
        )
        output: Tensor = self.output(mixed.transpose(1, 2).flatten(-2))
        return output


def target_labels(batch: Batch) -> Tensor:
    """Return the tokens that an encoder-decoder writes, int64 [B, T], -100 behind the last."""
    if "target_labels" in batch:
        return batch["target_labels"]
    ids, real = unmask(batch), batch.get("attention_mask")
    return ids if real is None else ids.masked_fill(~real, IGNORE_INDEX)


class DecoderIds(NamedTuple):
    """Ids of a decoder's special tokens.

    start: token that is read first. end: token that ends an output. first: token with which outputs
    begin, and which `generate` does not return; None: any.
    """

    start: int
    end: int
    pad: int
    first: int | None = None


class EncoderDecoder(Encoder):
    """Encoder whose states a causal decoder reads by cross-attention.

    Args:
        embeddings, layers, norm: of the encoder.
        decoder: decoder; its layers have a cross-attention.
        dropout: dropout of the states of encoder and decoder, after their last norm (T5).
        ids: special tokens.
        head: maps (states [..., D], word embeddings [V, D]) to logits [..., V].
        output: matrix of the logits, as a layer without bias; None: the word embeddings.
        fan_in: initialize weights by their inputs, as T5; else as BERT.
    """

    supports_unpadding = False

    def __init__(
        self,
        embeddings: Embeddings,
        layers: Sequence[nn.Module],
        norm: nn.Module | None,
        decoder: Encoder,
        *,
        dropout: float,
        ids: DecoderIds,
        head: nn.Module,
        output: nn.Linear | None = None,
        fan_in: bool = False,
    ) -> None:
        super().__init__(embeddings, layers, norm)
        self.fan_in = fan_in
        self.decoder, self.output, self.head = decoder, output, head
        self.dropout, self.ids = Dropout(dropout), ids

    def initialize_own(self) -> None:
        """Initialize the weights as T5, if `fan_in` is set.

        Words: deviation 1. Other weights: the root of 1 / inputs (mesh-tensorflow,
        transformer_layers.py; transformers `T5PreTrainedModel._init_weights`). States are as large
        as words, which BERT's small words would be lost in.
        """
        if not self.fan_in:
            return
        width = self.embeddings.word.weight.shape[1]
        for part in self.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                inputs = part.in_features if isinstance(part, nn.Linear) else width
                nn.init.normal_(part.weight, std=inputs**-0.5)
        for part in self.modules():
            if isinstance(part, SelfAttention):
                with torch.no_grad():
                    part.query.weight /= part.query_scale
        nn.init.normal_(self.embeddings.word.weight)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        layout: BatchLayout | None = None,
        positions: Tensor | None = None,
        run: Run | None = None,
    ) -> Tensor:
        """Return the decoder's states for the row itself, float [B, L, D], or [P, D].

        At each position the decoder has read the tokens before it; the last token's state is thus
        that of a row whose other tokens are known. Arguments as for `Encoder.forward`.
        """
        assert run is None
        memory = self.memory_of(input_ids, attention_mask, layout)
        return gather_positions(self.decode(memory, input_ids), positions)

    def memory_of(
        self, input_ids: Tensor, attention_mask: Tensor | None, layout: BatchLayout | None = None
    ) -> Memory:
        """Run the encoder on int64 [B, S]."""
        types = torch.zeros_like(input_ids)
        states = super().forward(input_ids, attention_mask, types, layout)
        return Memory(self.dropout(states), attention_mask)

    def decode(self, memory: Memory, targets: Tensor) -> Tensor:
        """Return the decoder's states, float [B, T, D], that predict targets, int64 [B, T].

        Target padding, -100, is behind the tokens, which do not see it.
        """
        start = self.ids.start
        read = torch.cat([torch.full_like(targets[:, :1], start), targets[:, :-1]], dim=1)
        layout = BatchLayout((read.shape[0], read.shape[1]))
        layout.memory = memory
        return self.decoded(read.masked_fill(read == IGNORE_INDEX, start), layout)

    def target_logits(self, memory: Memory, targets: Tensor) -> Any:
        """Return the logits of targets without the first token, if all begin with one.

        Args:
            targets: int64 [B, T], without the first token.

        Returns:
            float [B, T, V]; they may be lazy.
        """
        first = self.ids.first
        if first is None:
            return self.logits(self.decode(memory, targets))
        logits: Any = self.logits(
            self.decode(memory, nn.functional.pad(targets, (1, 0), value=first))
        )
        if isinstance(logits, Tensor):
            return logits[:, 1:]
        return logits._replace(hidden=logits.hidden[:, 1:].contiguous())

    def decoded(self, ids: Tensor, layout: BatchLayout) -> Tensor:
        """Run the decoder on int64 [B, l], whose layout has a memory; return float [B, l, D]."""
        hidden = self.decoder.embeddings(ids, torch.zeros_like(ids), layout.positions)
        states: Tensor = self.dropout(self.decoder.run(hidden, layout))
        return states

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits of states, float [..., D] to [..., V]; they may be lazy."""
        words = self.embeddings.word if self.output is None else self.output
        logits: Tensor = self.head(states, words.weight)
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """Search for the likeliest output.

    Attributes:
        beams: K, partial outputs that are followed; 1: the likeliest token at each step.
        length_penalty: scores are log-probabilities divided by length ** length_penalty (as in
            transformers; Wu et al., 2016, divide by ((5 + length) / 6) ** alpha); 0: not divided.
        tokens: maximum length of an output, end token included.
    """

    beams: int = 1
    length_penalty: float = 1.0
    tokens: int


@torch.no_grad()
def generate(
    network: EncoderDecoder, memory: Memory, search: BeamSearch, prior: Tensor | None = None
) -> Tensor:
    """Return the best output of each row, int64 [B, T], padded, with its end token if it ended.

    The best output that ended is kept; a row's search ends when no partial output can become
    better. With one beam it ends at the first end token.

    Args:
        prior: float32 [B, k], log-probabilities of k memories of each row, the B * k of `memory`;
            outputs are searched by the mixture of their next-token distributions. None: one each.
    """
    start, end, pad, given = network.ids
    copies = 1 if prior is None else prior.shape[1]
    rows, beams, shift = len(memory.states) // copies, search.beams, int(given is not None)
    banned = list({pad, *(() if given is None else (given,))} - {end})
    device, dead = memory.states.device, torch.finfo(torch.float32).min
    cache = KVCache(rows * copies * beams, search.tokens + shift)
    cache.memory = memory.repeated(beams)
    scores = torch.full((rows, beams), dead, device=device)
    scores[:, 0] = 0.0  # all beams begin alike
    written = torch.empty(rows, beams, 0, dtype=torch.int64, device=device)
    newest = torch.full((rows * copies * beams, 1), start, device=device)
    if given is not None:
        network.decoded(newest, cache.advance(torch.zeros_like(newest), 1))
        newest = torch.full_like(newest, given)
    best = torch.full((rows, search.tokens), pad, device=device)
    best[:, 0] = end
    best_scores = torch.full((rows,), dead, device=device)
    for step in range(search.tokens):
        place = step + shift
        positions = torch.full_like(newest, place)
        states = network.decoded(newest, cache.fresh().advance(positions, place + 1))
        logits = network.logits(states[:, 0])
        logits = logits if isinstance(logits, Tensor) else logits.whole()
        logs = logits.float().log_softmax(dim=-1)
        if prior is not None:
            mixed = logs.view(rows, copies, beams, -1) + prior[:, :, None, None]
            logs = mixed.logsumexp(dim=1).flatten(0, 1)
        logs[:, banned] = dead
        size = logs.shape[-1]
        totals = (scores[:, :, None] + logs.view(rows, beams, size)).clamp(min=dead).flatten(1)
        scores, chosen = totals.topk(min(2 * beams, totals.shape[1]), dim=1)
        owner, token = chosen // size, chosen % size
        last = step + 1 == search.tokens
        ends = (token == end) | last
        # Finished outputs among the first K candidates of each row.
        finished = (scores / (step + 1) ** search.length_penalty).masked_fill(~ends, dead)
        score, index = finished[:, :beams].max(dim=1)
        better = score > best_scores
        own = torch.arange(rows, device=device)
        ended = torch.full_like(best, pad)
        ended[:, :step] = written[own, owner[own, index]]
        ended[:, step] = token[own, index]
        best = torch.where(better[:, None], ended, best)
        best_scores = torch.where(better, score, best_scores)
        # The K best others continue.
        done = (best_scores > dead)[:, None] & (beams == 1)
        scores, kept = scores.masked_fill(ends | done, dead).topk(beams, dim=1)
        owner, token = owner.gather(1, kept), token.gather(1, kept)
        written = torch.cat([written[own[:, None], owner], token[:, :, None]], dim=2)
        longest = search.tokens if search.length_penalty > 0 else step + 1
        reachable = scores[:, 0] / longest**search.length_penalty
        if last or bool((reachable <= best_scores).all()):
            break
        owner, token = (part.repeat_interleave(copies, dim=0) for part in (owner, token))
        order = (torch.arange(rows * copies, device=device)[:, None] * beams + owner).flatten()
        cache = cache.fresh(partial(torch.index_select, dim=0, index=order))
        newest = token.reshape(-1, 1)
    width = int((best != pad).sum(dim=1).max())
    return best[:, :width]


class Seq2SeqModel(nn.Module):
    """Encoder-decoder that writes a target: the batch's, or else its unmasked rows.

    Attributes:
        label_smoothing: see `EncoderDecoderConfig`; used in training only.
    """

    pooler = None

    def __init__(self, encoder: EncoderDecoder, label_smoothing: float = 0.0) -> None:
        super().__init__()
        self.encoder = encoder
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return `hidden` [B, T, D] and `seq2seq_logits` [B, T, V], which may be lazy."""
        memory = self.encoder.memory_of(
            batch["input_ids"], batch.get("attention_mask"), batch.get("layout")
        )
        hidden = self.encoder.decode(memory, target_labels(batch))
        outputs = {"hidden": hidden, "seq2seq_logits": self.encoder.logits(hidden)}
        if self.training and self.label_smoothing:
            outputs["label_smoothing"] = hidden.new_tensor(self.label_smoothing)
        return outputs


class LastState(nn.Module):
    """Pooler without weights: the last token's state (`GPT2ForSequenceClassification`).

    Attributes:
        head_bias: a classifier on it has a bias.
    """

    head_bias: bool = False

    def forward(self, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Map hidden, float [B, L, D], and attention_mask, bool [B, L], to float [B, D]."""
        return last_state(hidden, attention_mask).squeeze(1)
