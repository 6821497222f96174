"""Layouts without padding: all layers except attention compute [T, D] like [B, L, D].

`cloze.model.data.layouts` computes them on the host. Shapes: see `layout.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cloze.model.layers.attention_kernels import varlen_attention
from cloze.model.layers.layout import AttentionPattern, BatchLayout, PaddedLayout, Scores


@dataclass(eq=False)
class UnpaddedLayout(BatchLayout):
    """Layout of [T, D].

    Args:
        shape: (B, L).
        flat_positions: int64 [T], position of each token in the flattened B * L.
        slots: int64 [B * L], index in T of each flat position's token; 0 at padding.
        padding: bool [B * L], true at padding.
        positions: int64 [T], see `BatchLayout`.
        real: bool [T], false at filler tokens; None: all are real.
    """

    shape: tuple[int, int]
    flat_positions: Tensor
    slots: Tensor
    padding: Tensor
    positions: Tensor
    real: Tensor | None = None

    def take(self, values: Tensor) -> Tensor:
        """Select the tokens: [B, L] to [T]."""
        return values.flatten().index_select(0, self.flat_positions)

    def put_back(self, hidden: Tensor) -> Tensor:
        """Restore the rows: [T, D] to [B, L, D], zeros at padding."""
        restored: Tensor = _PutBack.apply(hidden, self)  # type: ignore[no-untyped-call]
        return restored.view(*self.shape, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The groups' blocks for N heads: a block's row has all places of one head, then the next.

    Attributes:
        rows: layout of each group.
        sizes: values of H numbers in each group's block.
        forward: int64 [G * N], index in the T * N values of each place.
        inverse: int64 [T * N], place of each value; the heads of a token are consecutive.
    """

    rows: list[PaddedLayout]
    sizes: list[int]
    forward: Tensor
    inverse: Tensor


@dataclass(eq=False, kw_only=True)
class BucketedLayout(UnpaddedLayout):
    """Real tokens; attention pads groups of sequences of similar length.

    Only attention computes on padding, except for filler tokens that round up T. Groups have equal
    numbers of rows, and lengths are rounded, so that few shapes occur.

    Args:
        blocks: int64 [G], index in T at each place of the concatenated group blocks; filler at
            padding.
        block_positions: int64 [T], place of each token in the blocks; padding for filler.
        groups: (rows, length) of each group, longest first; the products sum up to G.
        causal: bool [sum of the groups' rows], sequences with causal attention in addition to the
            pattern; None: no sequence.
    """

    blocks: Tensor
    block_positions: Tensor
    groups: tuple[tuple[int, int], ...]
    causal: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._by_heads: dict[int, Blocks] = {}

    @property
    def max_distance(self) -> int:
        return max((length for _, length in self.groups), default=1)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        heads, size = query.shape[1:]
        if heads not in self._by_heads:
            self._by_heads[heads] = self._blocks(heads)
        blocks = self._by_heads[heads]
        gather: Callable[..., Tensor] = _Gather.apply
        parts: list[Sequence[Tensor]] = []
        for tensor in (query, key, value):
            # [T N, H]: one gather moves tokens to their places and heads before lengths.
            gathered = gather(tensor.reshape(-1, size), blocks.forward, blocks.inverse)
            parts.append(torch.split(gathered, blocks.sizes))
        mixed = []
        for rows, *group in zip(blocks.rows, *parts, strict=True):
            # The transposed view of [N, L, H] is what a layout takes; it turns it back at no cost.
            shape = (rows.shape[0], heads, rows.shape[1], size)
            q, k, v = (tensor.view(shape).transpose(1, 2) for tensor in group)
            attended = rows.attend(q, k, v, pattern, dropout, added)
            mixed.append(attended.transpose(1, 2).reshape(-1, size))
        # The same maps, exchanged: only filler tokens read places of padding.
        together = gather(torch.cat(mixed), blocks.inverse, blocks.forward)
        return together.view_as(query)

    def _blocks(self, heads: int) -> Blocks:
        head = torch.arange(heads, device=self.blocks.device)
        forward, inverse, sizes, rows = [], [], list[int](), []
        start = first = 0
        places = torch.split(self.blocks, [count * length for count, length in self.groups])
        for (count, length), indices in zip(self.groups, places, strict=True):
            # Of a place's token t and head n the values are at t N + n in [T N, H].
            forward.append((indices.view(count, 1, length) * heads + head[:, None]).flatten())
            size = count * heads * length
            numbers = torch.arange(start, start + size, device=head.device)
            inverse.append(numbers.view(count, heads, length).transpose(1, 2).reshape(-1, heads))
            # Places of padding hold a filler token, so this is also the mask of the group's
            # padding.
            real = None if self.real is None else self.real.index_select(0, indices)
            rows.append(
                PaddedLayout(
                    (count, length),
                    None if real is None else real.view(count, length),
                    causal=None if self.causal is None else self.causal[first : first + count],
                )
            )
            sizes.append(size)
            start, first = start + size, first + count
        return Blocks(
            rows=rows,
            sizes=sizes,
            forward=torch.cat(forward),
            inverse=torch.cat(inverse).index_select(0, self.block_positions).flatten(),
        )


@dataclass(eq=False, kw_only=True)
class PackedLayout(UnpaddedLayout):
    """Real tokens, concatenated.

    Args:
        bounds: int32 [S + 1], start of each of S sequences in T, and T at the end.
        causal: (sequences, tokens) at the start with causal attention in addition to the pattern.
    """

    bounds: Tensor
    longest: int
    causal: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._rows: tuple[PaddedLayout, Tensor, Tensor] | None = None

    @property
    def max_distance(self) -> int:
        return self.longest

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        if added is None:
            return self._attend(query, key, value, pattern, dropout)
        # The kernel does not accept additional scores, so the rows are padded.
        if self._rows is None:
            self._rows = self._padded()
        rows, to_rows, from_rows = self._rows
        query, key, value = (
            tensor.index_select(0, to_rows).view(*rows.shape, *tensor.shape[1:])
            for tensor in (query, key, value)
        )
        return (
            rows.attend(query, key, value, pattern, dropout, added)
            .flatten(0, 1)
            .index_select(0, from_rows)
        )

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, pattern: AttentionPattern, dropout: float
    ) -> Tensor:
        """Run the kernel, separately for causal and other sequences."""
        sequences, tokens = self.causal
        if not sequences:
            return varlen_attention(
                query,
                key,
                value,
                self.bounds,
                self.longest,
                pattern.window,
                pattern.causal,
                dropout,
            )
        mixed = []
        # The kernel has one mode a call. Each call's bounds count from its own first token.
        for causal, selected, bounds in (
            (True, slice(tokens), self.bounds[: sequences + 1]),
            (pattern.causal, slice(tokens, None), self.bounds[sequences:] - tokens),
        ):
            if len(bounds) > 1:
                inputs = (query[selected], key[selected], value[selected], bounds, self.longest)
                mixed.append(varlen_attention(*inputs, pattern.window, causal, dropout))
        return torch.cat(mixed)

    def _padded(self) -> tuple[PaddedLayout, Tensor, Tensor]:
        """Return a layout with one sequence per row, and the index maps to and from it.

        The maps are int64 [S * longest], indices in T, and int64 [T], places in the rows.
        """
        # `longest` came with the batch: read from the device, it would make the host wait.
        offsets = torch.arange(self.longest, device=self.bounds.device)
        begins, ends = self.bounds[:-1, None], self.bounds[1:, None]
        sequences = self.causal[0]
        causal = torch.arange(len(begins), device=offsets.device) < sequences if sequences else None
        rows = PaddedLayout((len(begins), self.longest), offsets < ends - begins, causal=causal)
        count = len(self.flat_positions)
        number = (
            # The last bound at or before a token is its sequence; torch wants both in one dtype.
            torch.searchsorted(
                self.bounds,
                torch.arange(count, device=offsets.device, dtype=self.bounds.dtype),
                right=True,
            )
            - 1
        )
        return (
            rows,
            # Behind a sequence's end any token may be read, as the layout hides it.
            (begins + offsets).flatten().clamp(max=count - 1),
            number * self.longest + self.positions,
        )


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
    def forward(context, hidden: Tensor, layout: UnpaddedLayout) -> Tensor:  # type: ignore[no-untyped-def]
        context.save_for_backward(layout.flat_positions, layout.real)
        return hidden.index_select(0, layout.slots).masked_fill_(layout.padding[:, None], 0.0)

    @staticmethod
    def backward(context, gradient: Tensor):  # type: ignore[no-untyped-def]
        flat_positions, real = context.saved_tensors
        input_gradient = gradient.index_select(0, flat_positions)
        # Filler has the flat position 0, whose gradient belongs to the first token of the batch.
        return input_gradient if real is None else input_gradient.mul_(real[:, None]), None
