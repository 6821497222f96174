"""Pretraining models: an encoder with heads, and how a batch passes through them.

PretrainingModel: masked tokens, and sentence pairs (BERT and most families).
SpanModel: also masked tokens from span boundaries (SpanBERT).
DecoderModel: masked tokens through an enhanced mask decoder (DeBERTa).
ReplacedTokenModel: a generator fills masks, the encoder detects replaced tokens (ELECTRA,
    DeBERTaV3).

Shapes: B batch, L length, D model, V vocabulary, M masked positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cloze.model.layers.attention import gather_positions
from cloze.model.layers.batch import Batch, overlay
from cloze.model.layers.disentangled import EnhancedMaskDecoder
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.heads import MaskedLMHead, ReplacedTokenHead, SpanBoundaryHead
from cloze.model.layers.layout import BatchLayout

HELDOUT_SEED = 0  # seed of the generator's samples in evaluation, equal at every evaluation


class PretrainingModel(nn.Module):
    """Encoder with pretraining heads.

    Attributes:
        predicts_all_positions: compute and return the last layer's states at every position. If
            False, most of the last layer is computed only where heads read it (one position in
            six). That saves a tenth of a BERT-mini's arithmetic, a twentieth of BERT-base's.

    Args:
        encoder: maps token ids to hidden states.
        masked_lm: maps (states [M, D], word embeddings [V, E]) to logits [M, V].
        pooler: maps hidden states to one vector per sequence; None if pretraining needs none.
        pair: classifies sentence pairs from the pooler's output; None without a pair task.
    """

    predicts_all_positions: bool = True

    def __init__(
        self,
        encoder: Encoder,
        masked_lm: nn.Module,
        *,
        pooler: nn.Module | None = None,
        pair: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.pooler = pooler
        self.masked_lm = masked_lm
        self.pair = pair

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the heads' logits, and hidden states; the batch's labels are not used.

        Returns:
            mlm_logits: [M, V], at masked positions only, which saves a fifth of BERT-base's
                arithmetic.
            pair_logits: [B, 2], with a pair head.
            clm_logits: [C, V], of the masked LM head, with causal_positions.
            hidden: [B, L, D], if `predicts_all_positions`.
        """
        positions = self.head_positions(batch)
        if self.predicts_all_positions:
            hidden = self.encode(batch)
            states = [gather_positions(hidden, index) for index in positions.values()]
        else:
            # All heads' positions at once: the last layer runs once, only where a head reads it.
            head_states = self.encode(batch, torch.cat(list(positions.values())))
            states = list(torch.split(head_states, list(map(len, positions.values()))))
        outputs = self.logits(dict(zip(positions, states, strict=True)), batch)
        return {**outputs, "hidden": hidden} if self.predicts_all_positions else outputs

    def head_positions(self, batch: Batch) -> dict[str, Tensor]:
        """Return the positions that the heads read, by name: int64, in the flattened B * L."""
        positions = {"masked": batch.get("prediction_positions", batch["masked_positions"])}
        if "causal_positions" in batch:
            positions["causal"] = batch["causal_positions"]
        if self.pair is not None:
            ids = batch["input_ids"]
            positions["first"] = torch.arange(0, ids.numel(), ids.shape[1], device=ids.device)
        return positions

    def logits(self, states: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return the heads' logits from `states`, float [P, D] by the names of `head_positions`."""
        words = self.encoder.embeddings.word.weight
        outputs = {"mlm_logits": self.masked_lm(states["masked"], words)}
        if "causal" in states:
            outputs["clm_logits"] = self.masked_lm(states["causal"], words)
        if self.pair is not None and self.pooler is not None:
            outputs["pair_logits"] = self.pair(self.pooler(states["first"][:, None]))
        return outputs

    def encode(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        """Return hidden states, float [B, L, D], or [P, D] at the wanted flat positions."""
        return encode(self.encoder, batch["input_ids"], batch, positions)


def encode(
    encoder: nn.Module, ids: Tensor, batch: Mapping[str, Any], positions: Tensor | None = None
) -> Tensor:
    """Run an encoder on a batch with these ids: float [B, L, D], or [P, D] at `positions`."""
    real, layout = batch.get("attention_mask"), batch.get("layout")
    if layout is None and isinstance(encoder, Encoder):
        layout = encoder.layout_of(ids, batch)
    hidden: Tensor = encoder(ids, real, batch["token_type_ids"], layout, positions)
    return hidden


class SpanBoundaries(NamedTuple):
    """Flat positions before and after each masked position's span, and its offset; int64 [M]."""

    left: Tensor
    right: Tensor
    offset: Tensor


def spans(positions: Tensor) -> SpanBoundaries:
    """Return the spans of masked positions: runs without a gap.

    Adjacent spans are merged, as in the original (facebookresearch/SpanBERT, masking.py,
    `merge_intervals`), so boundaries are unmasked tokens. Special tokens are never masked, so no
    span crosses rows, and both boundaries exist.

    Args:
        positions: int64 [M], ascending indices into the flattened B * L, with filler (0) at the
            end.
    """
    number = torch.arange(len(positions), device=positions.device)
    is_start = torch.ones_like(positions, dtype=torch.bool)
    is_start[1:] = positions[1:] != positions[:-1] + 1
    is_end = torch.ones_like(is_start)
    is_end[:-1] = is_start[1:]
    # The newest start up to a position, and from behind the next end, without a loop.
    starts = torch.where(is_start, number, 0).cummax(dim=0).values
    ends = torch.where(is_end, number, len(positions)).flip(0).cummin(dim=0).values.flip(0)
    left, right = positions[starts] - 1, positions[ends] + 1
    return SpanBoundaries(left=left.clamp(min=0), right=right, offset=number - starts)


class SpanModel(PretrainingModel):
    """Pretraining model with a span boundary head in addition to its masked LM head."""

    def __init__(
        self, encoder: Encoder, masked_lm: MaskedLMHead, span_boundary: SpanBoundaryHead
    ) -> None:
        super().__init__(encoder, masked_lm)
        self.span_boundary = span_boundary

    def head_positions(self, batch: Batch) -> dict[str, Tensor]:
        """Return the positions that the heads read, span boundaries included."""
        boundaries = spans(batch["masked_positions"])
        # A row that is one mask has no token after it.
        last_position = batch["input_ids"].numel() - 1
        return {
            **super().head_positions(batch),
            "left": boundaries.left,
            "right": boundaries.right.clamp(max=last_position),
        }

    def logits(self, states: Mapping[str, Tensor], batch: Batch) -> dict[str, Tensor]:
        """Return `PretrainingModel.logits` and `sbo_logits` [M, V]."""
        offset = spans(batch["masked_positions"]).offset
        logits = self.span_boundary(
            states["left"], states["right"], offset, self.encoder.embeddings.word.weight
        )
        return {**super().logits(states, batch), "sbo_logits": logits}


class DecoderModel(PretrainingModel):
    """Masked language model that may have an enhanced mask decoder.

    Args:
        decoder: computes the states that tokens are predicted from; None: the last layer's states.
    """

    def __init__(
        self, encoder: Encoder, masked_lm: MaskedLMHead, decoder: EnhancedMaskDecoder | None
    ) -> None:
        super().__init__(encoder, masked_lm)
        self.decoder = decoder

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute logits; see `PretrainingModel.forward`."""
        if self.decoder is None or not self.predicts_all_positions:
            return super().forward(batch)
        # The decoder's states are those of masked positions, so the others need their own pass.
        states = self.encode(batch, batch["masked_positions"])
        return {**self.logits({"masked": states}, batch), "hidden": self.encode(batch)}

    def encode(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        """Return hidden states [B, L, D], or decoded states [P, D] at the wanted positions."""
        if self.decoder is None or positions is None:
            return super().encode(batch, positions)
        decoded: Tensor = self.encoder(
            batch["input_ids"],
            batch.get("attention_mask"),
            batch["token_type_ids"],
            batch.get("layout"),
            positions,
            self._decoded,
        )
        return decoded

    def _decoded(self, hidden: Tensor, layout: BatchLayout, positions: Tensor | None) -> Tensor:
        assert self.decoder is not None
        decoded: Tensor = self.decoder(
            self.encoder.layers[-1], self.encoder.below(hidden, layout), layout, positions
        )
        return decoded


class ReplacedTokenModel(nn.Module):
    """Generator and discriminator (Clark et al., 2020); `encoder` is the discriminator's.

    Args:
        discriminator: maps (states [B, L, D], sequence starts of packed rows) to logits [B, L].
        generator: masked language model on the same embeddings.

    Attributes:
        reads_logits: the model samples from its own logits.
    """

    reads_logits: bool = True

    pooler = None

    def __init__(
        self, encoder: Encoder, discriminator: ReplacedTokenHead, generator: PretrainingModel
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.discriminator = discriminator
        self.generator = generator
        generator.predicts_all_positions = False

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Fill the masks with samples of the generator, and classify every token.

        A batch without labels is not trained on: its tokens are classified unchanged.

        Returns:
            mlm_logits: [M, V], of the generator.
            hidden, rtd_logits: [B, L, D] and [B, L], of the discriminator.
            rtd_labels: bool [B, L], true for replaced tokens; for a batch with labels only.
        """
        outputs = {"mlm_logits": self.generator(batch)["mlm_logits"]}
        ids = batch["input_ids"]
        if "masked_labels" in batch:
            # A sample that is the original token counts as original (Clark et al., 2020, section
            # 2).
            ids = overlay(batch, self._sample(outputs["mlm_logits"]))
            outputs["rtd_labels"] = ids != overlay(batch, batch["masked_labels"])
        outputs["hidden"] = encode(self.encoder, ids, batch)
        outputs["rtd_logits"] = self.discriminator(outputs["hidden"], batch.get("sequence_first"))
        return outputs

    def _sample(self, logits: Tensor) -> Tensor:
        """Sample one token per row of logits from their softmax; int64 [M].

        Uses one random number per row and the cumulative probabilities. The reference program draws
        one number per vocabulary token (Gumbel noise), which takes a CPU longer than the generator
        itself.
        """
        generator = None
        if not self.training:
            # A held-out loss must not depend on what was drawn before.
            generator = torch.Generator(device=logits.device).manual_seed(HELDOUT_SEED)
        summed = logits.detach().float().softmax(dim=-1).cumsum(dim=-1)
        draws = torch.rand(len(logits), 1, device=logits.device, generator=generator)
        # A rounded softmax does not sum up to 1: draws are scaled to its last sum. The product may
        # round up to that sum, hence the clamp.
        tokens = torch.searchsorted(summed, draws * summed[:, -1:], right=True).squeeze(1)
        return tokens.clamp(max=logits.shape[-1] - 1)
