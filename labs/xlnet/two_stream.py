"""Two-stream attention with relative positions and memory (Yang et al., "XLNet", 2019, section 2).

Positions and memory are those of Transformer-XL (Dai et al., 2019, section 3): scores add terms of
content, distance and segment, each with a bias of its own on the query. The *content stream* is a
token's state; the *query stream* knows a target's position and what precedes it in the order of
prediction, and not the target itself. Both have the same weights, so layers run over both at once.

The objective `plm` (section 2.2) predicts a masked token from the context and from the masked
tokens before it in a random order; nothing is replaced.

Shapes: B batch, L length, D model, N heads, H per head, P targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core import random_keys
from cloze.core.errors import UsageError
from cloze.core.ragged import I64, offsets_of, ranges
from cloze.model.data.rows import MaskedRows
from cloze.model.families.config import ModelConfig
from cloze.model.families.pretraining import PretrainingModel
from cloze.model.layers.attention import SelfAttention, gather_positions
from cloze.model.layers.batch import Batch
from cloze.model.layers.cpu import Linear, autocast_input
from cloze.model.layers.cpu import dropout as drop
from cloze.model.layers.disentangled import diagonals
from cloze.model.layers.encoder import Encoder
from cloze.model.layers.layout import BatchLayout, additive
from cloze.model.objectives.losses import masked_objective
from cloze.model.random_streams import Stream
from cloze.pipeline.dataset.schema import DatasetInfo


@dataclass(eq=False, kw_only=True)
class TwoStreamLayout(BatchLayout):
    """Padded rows; with targets, states are both streams, [B * L + P, D].

    Args:
        shape, real, maps: as for `BatchLayout`.
        segments: int64 [B, L], segment of each token; None: one segment.
        order: int64 [B, L], `Batch.target_order`; None: every token sees every other.
        targets: int64 [P], flat positions in B * L of the query stream.
    """

    segments: Tensor | None = None
    order: Tensor | None = None
    targets: Tensor | None = None


class RelativeAttention(SelfAttention):
    """Self-attention by content, distance and segment, of the content stream or of both.

    Args:
        hidden_size, num_heads, dropout: as for `SelfAttention`.
        position_dropout: dropout of the sinusoids of the distances.
    """

    def __init__(
        self, hidden_size: int, num_heads: int, *, dropout: float, position_dropout: float
    ) -> None:
        super().__init__(hidden_size, num_heads, dropout=dropout, bias=False)
        self.position_dropout = position_dropout
        self.position = Linear(hidden_size, hidden_size, bias=False)
        self.segment = nn.Embedding(2, hidden_size)  # of a key in the query's segment; in another
        self.content_bias, self.position_bias, self.segment_bias = (
            nn.Parameter(torch.zeros(hidden_size)) for _ in range(3)
        )

    def forward(
        self, hidden: Tensor, layout: BatchLayout | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Compute attention; arguments and result as for `SelfAttention.forward`.

        Raises:
            UsageError: the batch is packed or unpadded.
        """
        if not isinstance(layout, TwoStreamLayout):
            raise UsageError(
                f"xlnet models read padded rows of one text each, and not packed ones "
                f"({type(layout).__name__}); make the dataset with --recipe roberta or spanbert"
            )
        states, targets = autocast_input(hidden), layout.targets
        content, asking = states, None
        if targets is not None:
            content = states[: -len(targets)].view(*layout.shape, states.shape[-1])
            asking = states[-len(targets) :]
        known = content
        if layout.order is not None:  # memory has no gradient
            known = torch.where((layout.order < 0)[..., None], content.detach(), content)
        query = self.split(self.query(content))
        key, value = self.split(self.key(known)), self.split(self.value(known))
        distance = self.split(self.position(self._sinusoids(layout, query)))
        mixed = self._mixed(query, (key, value, distance), layout, itself=False)
        if asking is not None and targets is not None:
            asked = self.split(self.query(asking))
            # Queries at the targets' places, so that distances are read as in the content stream.
            asked = torch.zeros_like(query).flatten(0, 1).index_copy(0, targets, asked)
            queried = self._mixed(asked.view_as(query), (key, value, distance), layout, itself=True)
            mixed = torch.cat([mixed.flatten(0, 1), gather_positions(queried, targets)])
        output: Tensor = self.output(gather_positions(mixed, positions))
        return output

    def _sinusoids(self, layout: TwoStreamLayout, query: Tensor) -> Tensor:
        """Return sinusoids of the distances from L - 1 down to 1 - L, float [2 L - 1, D]."""
        if layout.sinusoids is None:
            size, length = self.query.in_features, query.shape[1]
            even = torch.arange(0, size, 2, device=query.device, dtype=torch.float32)
            # `diagonals` reads row L - 1 + j - i, and that has the distance i - j.
            distances = torch.arange(length - 1, -length, -1, device=query.device)
            angle = distances[:, None] * (1 / 10000 ** (even / size))
            sinusoids = torch.cat([angle.sin(), angle.cos()], dim=-1)
            # Dropped once a pass: all layers read the same ones, as in transformers' XLNet.
            dropped = drop(sinusoids, self.position_dropout if self.training else 0.0)
            layout.sinusoids = dropped.to(query.dtype)
        return layout.sinusoids

    def _mixed(
        self,
        query: Tensor,
        keys: tuple[Tensor, Tensor, Tensor],
        layout: TwoStreamLayout,
        *,
        itself: bool,
    ) -> Tensor:
        """Mix values for queries, float [B, L, N, H]; return float [B, L, N H].

        Args:
            keys: keys and values, float [B, L, N, H]; projected distances, [2 L - 1, N, H].
            itself: hide the target itself: the query stream.
        """
        key, value, distance = keys
        scale, ids = 1 / math.sqrt(self.head_size), layout.segments

        def biased(bias: Tensor) -> Tensor:
            return (query + self.split(bias)).to(query.dtype)

        def scores(_query: Tensor, _key: Tensor) -> Tensor:
            # The kernel divides scores of content by the root of H; added terms come divided.
            total = diagonals((biased(self.position_bias) * scale).transpose(1, 2), distance)
            if ids is not None:
                other = (ids[:, :, None] != ids[:, None])[:, None]
                asked = (biased(self.segment_bias) * scale).transpose(1, 2)
                terms = asked @ self.split(self.segment.weight).permute(1, 2, 0).to(asked.dtype)
                total = total + torch.where(other, terms[..., 1:], terms[..., :1])
            if layout.order is None:
                return total
            own, others = layout.order[:, :, None], layout.order[:, None]
            # The query stream reads z_<t, the content stream z_<=t (section 2.3).
            visible = others < own if itself else others <= own
            return total + additive(visible[:, None], total.dtype)

        dropout, content = self.dropout if self.training else 0.0, biased(self.content_bias)
        return layout.attend(content, key, value, self.pattern, dropout, scores).flatten(-2)


class TwoStreamEncoder(Encoder):
    """Encoder of padded rows; `predict` runs both streams.

    Its embeddings have a module `target`, an embedding of one row: where the query stream begins.
    """

    supports_unpadding = False

    def rows(
        self, input_ids: Tensor, attention_mask: Tensor | None, token_type_ids: Tensor | None = None
    ) -> TwoStreamLayout:
        shape = (input_ids.shape[0], input_ids.shape[1])
        return TwoStreamLayout(shape, attention_mask, segments=token_type_ids)

    def predict(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor,
        order: Tensor,
        positions: Tensor,
    ) -> Tensor:
        """Return the last states of the query stream, float [P, D].

        Args:
            input_ids, attention_mask, token_type_ids: as for `Encoder.forward`; targets have their
                own tokens.
            order: int64 [B, L], `Batch.target_order`.
            positions: int64 [P], flat positions of the targets.
        """
        layout = self.rows(input_ids, attention_mask, token_type_ids)
        layout.order, layout.targets = order, positions
        hidden = self.embeddings(input_ids, token_type_ids).flatten(0, 1)
        target = self.embeddings.get_submodule("target")
        asking = self.embeddings.dropout(target(torch.zeros_like(positions)))
        asked = torch.arange(len(hidden), len(hidden) + len(positions), device=hidden.device)
        return self.run(torch.cat([hidden, asking]), layout, asked)


class PermutationModel(PretrainingModel):
    """Model that predicts masked tokens by its query stream, if the batch has an order for them.

    Without `target_order` it is a masked language model on the content stream.
    """

    encoder: TwoStreamEncoder

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Compute logits; see `PretrainingModel.forward`. `hidden` is that of whole rows."""
        if "target_order" not in batch or not self.predicts_all_positions:
            return super().forward(batch)
        states = self.encode(batch, batch["masked_positions"])
        return {**self.logits({"masked": states}, batch), "hidden": self.encode(batch)}

    def encode(self, batch: Batch, positions: Tensor | None = None) -> Tensor:
        """Return hidden states [B, L, D], or the query stream's [P, D] at the wanted positions."""
        if positions is None or "target_order" not in batch:
            return super().encode(batch, positions)
        return self.encoder.predict(
            batch["input_ids"],
            batch.get("attention_mask"),
            batch["token_type_ids"],
            batch["target_order"],
            positions,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Permutation:
    """The order in which masked tokens are predicted, which keep their own tokens.

    Attributes:
        seed: seed of the order.
        memory: tokens at the beginning of a row that are not predicted.
    """

    seed: int
    memory: int = 0

    @classmethod
    def of(cls, model: ModelConfig, info: DatasetInfo, tokenizer: str, seed: int) -> Permutation:
        """Return the permutation of a training; see `Objective.transform`.

        Raises:
            UsageError: the model has no query stream.
        """
        memory: int | None = getattr(model, "memory", None)
        if memory is None:
            raise UsageError(
                f"objective (plm) needs a second stream of attention, which {model.family} models "
                f"do not have; train with --objective mlm, or an xlnet model"
            )
        return cls(seed=seed, memory=memory)

    def collate(
        self, rows: MaskedRows, samples: I64, plain: Callable[[MaskedRows], Batch]
    ) -> Batch:
        """Return the batch with `target_order`, int64 [B, L]: -1 in the memory, else from 1."""
        rows = self.targets(rows)
        batch = plain(rows)
        order = np.zeros(batch["input_ids"].shape, np.int64)
        order[:, : self.memory] = -1
        masked = batch["masked_positions"][: len(rows.positions)].numpy()  # behind is filler
        order.reshape(-1)[masked] = self.numbers(rows, samples)
        batch["target_order"] = torch.from_numpy(order)
        return batch

    def empty(self, batch: Batch) -> Batch:
        return {**batch, "target_order": torch.zeros_like(batch["input_ids"])}

    def targets(self, rows: MaskedRows) -> MaskedRows:
        """Return the rows with their own tokens as replacements, and no masks in the memory."""
        owners = np.repeat(np.arange(len(rows.lengths)), rows.counts)
        own = rows.ids[offsets_of(rows.lengths)[:-1][owners] + rows.positions]
        keep = rows.positions >= self.memory
        counts = np.bincount(owners[keep], minlength=len(rows.lengths)).astype(np.int64)
        return rows.with_masks(rows.positions[keep], own[keep], counts)

    def numbers(self, rows: MaskedRows, samples: I64) -> I64:
        """Return each mask's number in its row, from 1, by its keyed random number."""
        owners = np.repeat(np.arange(len(samples)), rows.counts)
        keys = random_keys.fold_in(self.seed, Stream.PERMUTATION, samples)[owners]
        # The last key is the first to sort by: masks stay with their row, shuffled inside of it.
        order = np.lexsort((random_keys.fold_in(keys, rows.positions), owners))
        numbers = np.empty(len(order), np.int64)
        numbers[order] = ranges(np.ones_like(rows.counts), rows.counts)
        return numbers


PLM = replace(masked_objective("plm", "masked_lm", "mlm_logits"), transform=Permutation.of)
