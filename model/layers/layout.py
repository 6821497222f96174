"""Batch layouts: the arrangement of tokens in memory, and which tokens see which.

A layer computes on hidden states and calls its layout for attention, independent of the class:

PaddedLayout: [B, L, D], padding included.
BucketedLayout: [T, D], real tokens; attention forms blocks of similar lengths, fast on CPUs.
PackedLayout: [T, D], real tokens, for the GPU's variable-length kernels.

The second and third are in `unpadded.py`. The collator computes layouts
on the host (`cloze.model.data.layouts`); they never synchronize with the device.

Shapes: B batch, L length, T tokens, D model, N heads, H per head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from cloze.model.layers.attention_kernels import (
    attend,
    attend_chunks,
    attention_maps,
    neighbour_chunks,
)

if TYPE_CHECKING:
    from typing import Self

# Minimum ratio of row length to one-sided window for computing attention in bands.
BAND_PAYS = 4

Scores = Callable[
    [Tensor, Tensor], Tensor
]  # maps queries and keys, float [B, N, L, H], to a term of their scores, [1 or B, N, L, L]
Pair = tuple[Tensor, Tensor]


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


class SharedTensors:
    """What the first layer of a forward pass computes for all others, by what it depends on.

    Without it, every layer would build the same masks and factors, which takes a small model longer
    than its products.

    Attributes:
        biases: bias of the scores by pattern, dtype and whether it is that of a band.
        rotary: factors of `Rotary`, by its wavelengths' base and head size.
        relative: bias by relative position, by the numbers of queries and of keys.
        distances: embeddings and rows of DeBERTa's relative positions.
        sinusoids: those of XLNet's distances.
        asked: key and value that a layer computes once for several queries.
    """

    def __init__(self) -> None:
        self.biases: dict[tuple[AttentionPattern, torch.dtype, bool], Tensor | None] = {}
        self.rotary: dict[tuple[float, int], Pair] = {}
        self.relative: dict[tuple[int, int], Tensor] = {}
        self.distances: Pair | None = None
        self.sinusoids: Tensor | None = None
        self.asked: dict[nn.Module, Pair] = {}


class BatchLayout(ABC):
    """Arrangement of one batch.

    Attributes:
        memory: what a decoder reads of its encoder; None in an encoder.
        positions: int64, position of each token in its sequence, in the shape of hidden states
            without D; None: 0 to L - 1 in every row.
        shared: what layers share in one forward pass, see `fresh`.
    """

    memory: Any = None  # of the class, so that dataclasses do not see a field
    positions: Tensor | None

    def __post_init__(self) -> None:
        # Not a field with a factory: torch's compiler cannot trace one.
        self.shared = SharedTensors()

    @property
    @abstractmethod
    def max_distance(self) -> int:
        """Upper bound of sequence lengths; tokens that see each other are closer."""

    @abstractmethod
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

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the layout with changed tensors, which shares nothing; layouts are dataclasses."""
        values = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}  # type: ignore[arg-type]
        layout = type(self)(
            **{
                name: change(value) if isinstance(value, Tensor) else value
                for name, value in values.items()
            }
        )
        if self.memory is not None:
            layout.memory = self.memory.map_tensors(change)
        return layout

    def to(self, device: torch.device, non_blocking: bool = False) -> Self:
        """Copy the layout to a device, as `Tensor.to`."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """Copy the layout to page-locked memory, for asynchronous transfer to a GPU."""
        return self.map_tensors(Tensor.pin_memory)

    def fresh(self) -> Self:
        """Return the layout for a new forward pass.

        A copy: a layer that is recomputed in the backward pass still reads what its pass shared,
        and what one pass computed without gradient must not reach another.
        """
        return self.map_tensors(lambda tensor: tensor)


@dataclass(eq=False)
class PaddedLayout(BatchLayout):
    """Padded rows, [B, L, D].

    Args:
        shape: (B, L).
        real: bool [B, L], true at tokens; None: everywhere.
        sequence: int64 [B, L], sequence number of each token in packed rows; other sequences are
            hidden. None: one sequence per row.
        positions: int64 [B, L], see `BatchLayout`; packed rows only.
        causal: bool [B], rows with causal attention in addition to the pattern; None: no row.
        maps: list for each layer's attention probabilities, float [B, N, L, L]; None: not computed.
    """

    shape: tuple[int, int]
    real: Tensor | None = None
    sequence: Tensor | None = None
    positions: Tensor | None = None
    causal: Tensor | None = None
    maps: list[Tensor] | None = None

    @property
    def max_distance(self) -> int:
        return self.shape[1]

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pattern: AttentionPattern,
        dropout: float,
        added: Scores | None = None,
    ) -> Tensor:
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        window, length = pattern.window, self.shape[1]
        # Bands have no whole [L, L] scores, which an added term and maps are for.
        plain = added is None and self.maps is None
        banded = plain and window is not None and length >= BAND_PAYS * window
        if not banded and window is not None and window >= length - 1:
            pattern = AttentionPattern(causal=pattern.causal)  # the window covers the whole row
        known = (pattern, query.dtype, banded)
        if known not in self.shared.biases:
            visible = self.visible(pattern, self.real, query.device, in_chunks=banded)
            if visible is not None:  # of all heads, [B, 1, …] or in chunks [B, C, 1, …]
                visible = visible.unsqueeze(2 if banded else 1)
            self.shared.biases[known] = None if visible is None else additive(visible, query.dtype)
        bias = self.shared.biases[known]
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
        """Return the keys that each query sees; None: all see all.

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
