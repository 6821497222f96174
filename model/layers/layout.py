"""The layout of a batch: the arrangement of tokens in memory, and which tokens see which.

A layer calls its layout for attention, however the tokens lie:

rows: [B, L, D], padding included.
buckets: [T, D], real tokens; attention forms blocks of similar lengths, fast on CPUs.
packed: [T, D], real tokens, for the GPU's variable-length kernels.

All layers except attention compute [T, D] like [B, L, D]. The collator computes layouts on the host
(`cloze.model.data.layouts`); they never synchronize with the device.

Shapes: B batch, L length, T tokens, S sequences, D model, N heads, H per head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cloze.model.layers.attention_kernels import attend_chunks, neighbour_chunks, varlen_attention
from cloze.model.layers.cpu import attend, attention_maps

if TYPE_CHECKING:
    from typing import Self

# Minimum ratio of row length to one-sided window for computing attention in bands.
BAND_PAYS = 4

# Maps queries and keys, float [B, N, L, H], to a term of their scores, [1 or B, N, L, L].
Scores = Callable[[Tensor, Tensor], Tensor]
Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]  # query, key and value


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """Tokens of its own sequence that a token sees.

    Attributes:
        window: maximum distance; None: unlimited.
        causal: hide later tokens.
    """

    window: int | None = None
    causal: bool = False

    def visible(self, offset: Tensor) -> Tensor | None:
        """Return key visibility by key position minus query position; None if all are visible."""
        mask = None if self.window is None else offset.abs() <= self.window
        if self.causal:
            mask = offset <= 0 if mask is None else mask & (offset <= 0)
        return mask


class Blocks(NamedTuple):
    """Groups of sequences as padded rows of N heads: all places of one head, then the next.

    Attributes:
        rows: layout of each group.
        sizes: values of H numbers in each group.
        forward: int64 [G * N], index in the T * N values of each place.
        inverse: int64 [T * N], place of each value; the heads of a token are consecutive.
    """

    rows: list[BatchLayout]
    sizes: list[int]
    forward: Tensor
    inverse: Tensor


@dataclass(eq=False)
class BatchLayout:
    """Arrangement of one batch: padded rows, or without padding if it has `flat_positions`.

    Args:
        shape: (B, L).
        real: bool [B, L], true at tokens, or [T], false at filler tokens; None: everywhere.
        sequence: int64 [B, L], sequence number of each token in packed rows; other sequences are
            hidden. None: one sequence per row.
        positions: int64, position of each token in its sequence, in the shape of hidden states
            without D; None: 0 to L - 1 in every row.
        causal: bool [B], or [S] in the order of `bounds`: rows or sequences with causal attention
            in addition to the pattern; None: none.
        maps: list for each layer's attention probabilities, float [B, N, L, L]; None: not computed.
        memory: what all layers read beside their input, as a decoder of its encoder; None: nothing.
        flat_positions: int64 [T], position of each token in the flattened B * L.
        slots: int64 [B * L], index in T of each flat position's token; 0 at padding.
        padding: bool [B * L], true at padding.
        places: int64 [T], place of each token in the groups' blocks, padding for filler.
        bounds: int32 [S + 1], start of each of S sequences in T, and the end of the last one.
        groups: (sequences, length) of the blocks that attention pads; they sum up to S.
        causal_first: (sequences, tokens) at the start that are causal, for the variable-length
            kernel, which is used without an added term of the scores; None: another device's.
    """

    shape: tuple[int, int]
    real: Tensor | None = None
    sequence: Tensor | None = None
    positions: Tensor | None = None
    causal: Tensor | None = None
    maps: list[Tensor] | None = None
    memory: Any = None
    flat_positions: Tensor | None = None
    slots: Tensor | None = None
    padding: Tensor | None = None
    places: Tensor | None = None
    bounds: Tensor | None = None
    groups: tuple[tuple[int, int], ...] = ()
    causal_first: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        # What the first layer of a pass computes for all others: the same masks and factors in
        # every layer would take a small model longer than its products. Fields with factories are
        # not for torch's compiler. Bias of the scores, by pattern, dtype and whether of a band;
        self.biases: dict[tuple[AttentionPattern, torch.dtype, bool], Tensor | None] = {}
        # factors of `Rotary`, by its wavelengths' base and head size;
        self.rotary: dict[tuple[float, int], Pair] = {}
        # bias by relative position, by the numbers of queries and of keys;
        self.relative: dict[tuple[int, int], Tensor] = {}
        # embeddings and rows of DeBERTa's relative positions; sinusoids of XLNet's distances;
        self.distances: Pair | None = None
        self.sinusoids: Tensor | None = None
        # key and value that a layer computes once for several queries.
        self.asked: dict[nn.Module, Pair] = {}
        self.blocks: dict[int, Blocks] = {}  # by the number of heads

    @property
    def max_distance(self) -> int:
        """Upper bound of sequence lengths; tokens that see each other are closer."""
        if self.flat_positions is None:
            return self.shape[1]
        return max((length for _, length in self.groups), default=1)

    def fresh(self, change: Callable[[Tensor], Tensor] | None = None) -> Self:
        """Return the layout for a new forward pass, its tensors changed.

        A copy: a layer that is recomputed in the backward pass still reads what its pass shared,
        and what one pass computed without gradient must not reach another.
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        if change is not None:
            tensors = {name: v for name, v in values.items() if isinstance(v, Tensor)}
            values |= {name: change(tensor) for name, tensor in tensors.items()}
            if self.memory is not None:
                values["memory"] = self.memory.map_tensors(change)
        return type(self)(**values)

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """Copy the layout to a device, as `Tensor.to`."""
        return self.fresh(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy the layout to page-locked memory, for asynchronous transfer to a GPU."""
        return self.fresh(Tensor.pin_memory)

    def put_back(self, hidden: Tensor) -> Tensor:
        """Restore the rows: [T, D] to [B, L, D], zeros at padding; padded rows are unchanged."""
        if self.flat_positions is None:
            return hidden
        restored: Tensor = _PutBack.apply(hidden, self)  # type: ignore[no-untyped-call]
        return restored.view(*self.shape, -1)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        """Compute attention for query, key and value, float [..., N, H]; return that shape.

        Args:
            pattern: visible tokens.
            dropout: dropout of the probabilities; 0 outside training.
            added: function that gives an additional term of the scores, for blocks of L tokens, L
                at most `max_distance`.
        """
        if self.causal_first is not None and added is None:
            return self._varlen(query, key, value, pattern, dropout)
        if self.flat_positions is not None:
            return self._in_blocks((query, key, value), pattern, dropout, added)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        window, length = pattern.window, self.shape[1]
        # Bands have no whole [L, L] scores, which an added term and maps are for.
        plain = added is None and self.maps is None
        banded = plain and window is not None and length >= BAND_PAYS * window
        if not banded and window is not None and window >= length - 1:
            pattern = AttentionPattern(causal=pattern.causal)  # the window covers the whole row
        known = (pattern, query.dtype, banded)
        if known not in self.biases:
            visible = self.visible(pattern, self.real, query.device, in_chunks=banded)
            if visible is not None:  # of all heads, [B, 1, …] or in chunks [B, C, 1, …]
                visible = additive(visible.unsqueeze(2 if banded else 1), query.dtype)
            self.biases[known] = visible
        bias = self.biases[known]
        if banded:
            assert bias is not None
            assert window is not None
            keys, values = (neighbour_chunks(each, window, bias.shape[1]) for each in (key, value))
            return attend_chunks(query, keys, values, bias, dropout).transpose(1, 2)
        if added is not None:
            scores = added(query, key)
            bias = scores if bias is None else scores + bias
        if self.maps is not None:
            # Fused kernels return no probabilities, so an analysis computes them once more.
            self.maps.append(attention_maps(query, key, bias))
        return attend(query, key, value, bias, dropout).transpose(1, 2)

    def visible(
        self,
        pattern: AttentionPattern,
        real: Tensor | None,
        device: torch.device,
        *,
        in_chunks: bool = False,
    ) -> Tensor | None:
        """Return the keys that each query of padded rows sees; None: all see all.

        Args:
            real: bool [1 or B, L], keys that any query sees; None: all.
            in_chunks: by chunk of W queries, W being the window.

        Returns:
            bool [1 or B, 1 or L, L]. In chunks [1 or B, C, W, 3W], C = ceil(L / W): by query of the
            chunk, and by key of the chunk and its two neighbours; False outside the row.
        """
        width = (pattern.window or 1) if in_chunks else None
        visible = None
        if pattern.window is not None or pattern.causal or self.causal is not None:
            query, key = _pairs(torch.arange(self.shape[1], device=device)[None], width)
            visible = pattern.visible(key - query)
            if self.causal is not None:
                # [B, 1, …] against positions: rows that are not causal see both ways.
                sees = (key <= query) | ~self.causal.view(-1, *[1] * (query.dim() - 1))
                visible = sees if visible is None else visible & sees
        if self.sequence is not None:
            own, other = _pairs(self.sequence, width)
            visible = own == other if visible is None else visible & (own == other)
        if real is None and in_chunks:  # chunks reach beyond the row
            real = torch.ones(1, self.shape[1], dtype=torch.bool, device=device)
        if real is not None:
            _, there = _pairs(real, width)
            visible = there if visible is None else visible & there
        return visible

    def _in_blocks(
        self, inputs: Triple, pattern: AttentionPattern, dropout: float, added: Scores | None
    ) -> Tensor:
        """Pad groups of sequences of similar length, and attend in their rows."""
        heads, size = inputs[0].shape[1:]
        if heads not in self.blocks:
            self.blocks[heads] = self._blocks(heads)
        rows_of_groups, sizes, forward, inverse = self.blocks[heads]
        gather: Callable[..., Tensor] = _Gather.apply
        # [T N, H]: one gather moves tokens to their places and heads before lengths.
        parts = (
            torch.split(gather(tensor.reshape(-1, size), forward, inverse), sizes)
            for tensor in inputs
        )
        mixed = []
        for rows, *group in zip(rows_of_groups, *parts, strict=True):
            # The transposed view of [N, L, H] is what `attend` takes; it turns it back at no cost.
            shape = (rows.shape[0], heads, rows.shape[1], size)
            q, k, v = (tensor.view(shape).transpose(1, 2) for tensor in group)
            attended = rows.attend(q, k, v, pattern, dropout, added)
            mixed.append(attended.transpose(1, 2).reshape(-1, size))
        together = torch.cat(mixed)
        if self.causal_first is not None:  # no filler token takes the gradients of padding
            return together.index_select(0, inverse).view_as(inputs[0])
        # The same maps, exchanged: only filler tokens read places of padding.
        return gather(together, inverse, forward).view_as(inputs[0])

    def _blocks(self, heads: int) -> Blocks:
        assert self.flat_positions is not None
        assert self.bounds is not None
        assert self.places is not None
        bounds, tokens = self.bounds.long(), len(self.flat_positions)
        counts = [count for count, _ in self.groups]
        places = sum(count * length for count, length in self.groups)
        full = self.real is None and tokens == places  # filler is for padding
        causal = [None] * len(counts) if self.causal is None else torch.split(self.causal, counts)
        head = torch.arange(heads, device=bounds.device)[:, None]
        forward, inverse, sizes, rows = [], [], list[int](), []
        begins, ends = torch.split(bounds[:-1], counts), torch.split(bounds[1:], counts)
        for group, begin, end, is_causal in zip(self.groups, begins, ends, causal, strict=True):
            count, length = group
            index = begin[:, None] + torch.arange(length, device=bounds.device)
            real = None if full else index < end[:, None]
            # Padding holds the last token, filler or hidden, whose place gets no gradient.
            index = index if real is None else index.where(real, tokens - 1)
            # Of a place's token t and head n the values are at t N + n in [T N, H].
            forward.append((index[:, None] * heads + head).flatten())
            start, size = sum(sizes), count * heads * length
            numbers = torch.arange(start, start + size, device=bounds.device)
            inverse.append(numbers.view(count, heads, length).transpose(1, 2).reshape(-1, heads))
            rows.append(BatchLayout((count, length), real, causal=is_causal))
            sizes.append(size)
        by_place = torch.cat(inverse).index_select(0, self.places)
        return Blocks(rows, sizes, torch.cat(forward), by_place.flatten())

    def _varlen(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: AttentionPattern, dropout: float
    ) -> Tensor:
        """Run the variable-length kernel, separately for causal and other sequences."""
        assert self.bounds is not None
        assert self.causal_first is not None
        (_, longest), (sequences, tokens) = self.groups[0], self.causal_first
        window, mixed = pattern.window, []
        if not sequences:
            inputs = (query, key, value, self.bounds, longest)
            return varlen_attention(*inputs, window, pattern.causal, dropout)
        # The kernel has one mode a call. Each call's bounds count from its own first token.
        for causal, part, bounds in (
            (True, slice(tokens), self.bounds[: sequences + 1]),
            (pattern.causal, slice(tokens, None), self.bounds[sequences:] - tokens),
        ):
            if len(bounds) > 1:
                inputs = (query[part], key[part], value[part], bounds, longest)
                mixed.append(varlen_attention(*inputs, window, causal, dropout))
        return torch.cat(mixed)


def _pairs(row: Tensor, width: int | None) -> Pair:
    """Arrange values of tokens, [1 or B, L], by query and by key, whole or in chunks of `width`."""
    if width is None:
        return row[:, :, None], row[:, None]
    # Queries become [1 or B, C, W, 1]. A chunk of zeros on both sides gives the first and the last
    # chunk two neighbours, too: keys are [1 or B, C, 1, 3W].
    chunks = -(-row.shape[1] // width)
    queries = pad(row, (0, chunks * width - row.shape[1])).view(len(row), chunks, width, 1)
    keys = pad(row, (width, (chunks + 1) * width - row.shape[1])).unfold(1, 3 * width, width)
    return queries, keys[:, :, None]


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias that hides all keys except those at which `visible`, bool, is True.

    The value -10000 is the reference program's (google-research/bert, modeling.py, `adder`). Its
    exponential is exactly 0 in fp32, it fits fp16 and bf16, and rows of padding stay finite.
    """
    return visible.logical_not().to(dtype) * -10000.0


class _Gather(torch.autograd.Function):
    """Select rows `index`, int64 [R], of [S, H]; gradients select `inverse`, int64 [S].

    Both directions gather: the rows are used once, or have no gradient. The gradient of torch's own
    `index_select` is a scatter that accumulates.
    """

    @staticmethod
    def forward(context, values: Tensor, index: Tensor, inverse: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        context.save_for_backward(inverse)
        return values.index_select(0, index)

    @staticmethod
    def backward(context, gradient: Tensor):  # type: ignore[no-untyped-def]
        return gradient.index_select(0, context.saved_tensors[0]), None, None


class _PutBack(torch.autograd.Function):
    """Gather in both directions; the gradient of torch's indexing is an accumulating scatter."""

    @staticmethod
    def forward(context, hidden: Tensor, layout: BatchLayout) -> Tensor:  # type: ignore[no-untyped-def]
        assert layout.slots is not None
        assert layout.padding is not None
        context.save_for_backward(layout.flat_positions, layout.real)
        return hidden.index_select(0, layout.slots).masked_fill_(layout.padding[:, None], 0.0)

    @staticmethod
    def backward(context, gradient: Tensor):  # type: ignore[no-untyped-def]
        flat_positions, real = context.saved_tensors
        input_gradient = gradient.index_select(0, flat_positions)
        # Filler has the flat position 0, whose gradient belongs to the first token of the batch.
        return input_gradient if real is None else input_gradient.mul_(real[:, None]), None
