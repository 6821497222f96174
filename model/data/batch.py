"""Batches: collation of rows, token counts, transfer to the device, prefetching."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cloze.core.ragged import I64
from cloze.model.data.layouts import MULTIPLE, LayoutKind, Sequences, fixed_size, make_layout
from cloze.model.data.rows import MaskedRows, RowTransform
from cloze.model.layers.batch import IGNORE_INDEX, Batch
from cloze.pipeline.dataset.masking.candidates import SENTENCES

AnyBatch = TypeVar("AnyBatch", bound=Mapping[str, Any])  # a `Batch`, or some fields of one


def pin(batch: AnyBatch, device: torch.device) -> AnyBatch:
    """Copy the batch to page-locked memory if `device` is a GPU, for transfers that overlap."""
    return _copy(batch, lambda field: field.pin_memory()) if device.type == "cuda" else batch


def move(batch: AnyBatch, device: torch.device) -> AnyBatch:
    """Copy a collated batch to `device`, without waiting for a GPU's copy of a pinned batch."""
    if device.type == "cpu":  # where it was collated
        return batch
    moved = _copy(batch, lambda field: field.to(device, non_blocking=True))
    # The host reads this number, and would wait for the device.
    return cast(AnyBatch, {**moved, "step": batch["step"]}) if "step" in batch else moved


def _copy(batch: AnyBatch, copy: Callable[[Any], Any]) -> AnyBatch:
    return cast(AnyBatch, {name: copy(field) for name, field in batch.items()})


# Attention modes: bidirectional samples have masks, causal ones none.


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionModes:
    """Attention modes of the samples of a run.

    Attributes:
        causal_share: share of samples that are read left to right.
        before: predict a masked token at the position before it, as a next token is predicted.
        transform: what the objective makes of rows; None: they are read as they are stored.
    """

    causal_share: float = 0.0
    before: bool = False
    transform: RowTransform | None = None

    def causal(self, samples: I64) -> npt.NDArray[np.bool_]:
        """Return which samples are read left to right, bool [B].

        The result depends on the sample number alone, so resuming is exact and ranks agree. Of any
        n consecutive samples, share * n are causal, to within one.

        Args:
            samples: int64 [B], sample numbers.
        """
        share = self.causal_share
        # The share is spread evenly, as a line is drawn on a grid (Bresenham): no draw, no state.
        is_causal: npt.NDArray[np.bool_] = np.floor((samples + 1) * share) > np.floor(
            samples * share
        )
        return is_causal


BIDIRECTIONAL = AttentionModes()


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Numbers of tokens of one or more batches.

    Attributes:
        tokens: real tokens.
        positions: positions that run through the layers, padding included.
        attended: attended pairs in a full-attention layer: the sum of the squared sequence lengths.
    """

    tokens: int = 0
    positions: int = 0
    attended: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(
            self.tokens + other.tokens,
            self.positions + other.positions,
            self.attended + other.attended,
        )


def sizes(*batches: Batch) -> TokenCounts:
    """Count the tokens of collated batches on the CPU; those without `attention_mask` have none."""
    tokens = positions = attended = 0
    for batch in batches:
        if (mask := batch.get("attention_mask")) is None:
            continue
        real = mask.numpy().astype(bool)
        lengths = real.sum(axis=-1).ravel().astype(np.int64)
        # Attention costs the square of a sequence, not of the row that holds several.
        sequence_starts = batch.get("sequence_first")
        if sequence_starts is not None:  # several sequences a row do not attend to each other
            sequences = np.cumsum(sequence_starts.numpy().ravel())
            lengths = np.bincount(sequences[real.ravel()]).astype(np.int64)
        layout = batch.get("layout")
        kept = None if layout is None else layout.flat_positions
        tokens += int(real.sum())
        positions += real.size if kept is None else len(kept)
        attended += int((lengths**2).sum())
    return TokenCounts(tokens, positions, attended)


# Collation: vectorized, no Python object per token or row.

# M is rounded up to a multiple. On a CPU every new shape builds and caches a kernel (milliseconds,
# megabytes): without rounding, BERT-tiny trained at half the speed in five times the memory.
PREDICTIONS = 64


def collate(
    rows: MaskedRows,
    *,
    pad: int,
    longest: int,
    fixed_predictions: int | None = None,
    layout: LayoutKind = "rows",
    directions: AttentionModes = BIDIRECTIONAL,
    samples: I64 | None = None,
) -> Batch:
    """Apply the masks to B rows and pad the rows to one length.

    Args:
        rows: rows from `ShardedRows.take`.
        pad: id of the padding token.
        longest: maximum length of the dataset's rows, in tokens.
        fixed_predictions: for compiled models: masked positions per row; each batch then has length
            `longest`.
        layout: layout of the tokens in the layers; see `cloze.model.data.layouts`.
        directions: attention modes; causal rows have no masks.
        samples: int64 [B], sample numbers of the rows; needed if some rows are causal or
            transformed.

    Returns:
        The batch. M is fixed, or a multiple of `PREDICTIONS`, as C is.
    """
    if directions.transform is not None:
        assert samples is not None
        plain = partial(
            collate,
            pad=pad,
            longest=longest,
            fixed_predictions=fixed_predictions,
            layout=layout,
            directions=replace(directions, transform=None),
            samples=samples,
        )
        return directions.transform.collate(rows, samples, plain)
    causal = None
    if directions.causal_share and samples is not None:
        causal = directions.causal(samples)
        rows = rows.without_masks(causal)
    count = len(rows.lengths)
    padded = -(-int(rows.lengths.max()) // MULTIPLE) * MULTIPLE
    length = min(longest, padded) if fixed_predictions is None else longest
    predictions = None if fixed_predictions is None else count * fixed_predictions
    if layout == "fixed" and fixed_predictions is not None:
        # Rows round their predictions to whole ones: by half of one each.
        share, tokens = fixed_predictions / longest, fixed_size(int(rows.lengths.sum()))
        predictions = -(-int(share * tokens + count / 2) // MULTIPLE) * MULTIPLE
    columns = np.arange(length)
    real = columns < rows.lengths[:, None]
    input_ids = np.full((count, length), pad, np.int64)
    input_ids[real] = rows.ids
    flat_ids = input_ids.reshape(-1)  # a view
    masked = np.repeat(np.arange(count) * length, rows.counts) + rows.positions
    # Before the replacements are written: labels are the original tokens.
    labels = flat_ids[masked]
    flat_ids[masked] = rows.replacements
    if predictions is not None and len(masked) > predictions:
        predictions = None
    masked_positions, masked_labels = filled(masked, labels, predictions)
    sequences = Sequences.of(rows, length, causal)
    is_first = np.zeros((count, length), np.bool_)
    is_first.reshape(-1)[sequences.first] = True
    in_second = (columns >= rows.segment_start[:, None]) & real & (not sequences.packed)
    batch: Batch = {
        "input_ids": torch.from_numpy(input_ids),
        "attention_mask": torch.from_numpy(real),
        "token_type_ids": torch.from_numpy(in_second.astype(np.int64)),
        "masked_positions": masked_positions,
        "masked_labels": masked_labels,
        "pair_labels": torch.from_numpy(rows.pair_labels),
        "source": torch.from_numpy(
            np.column_stack([rows.documents.view(np.int64), rows.sentences & SENTENCES])
        ),
    }
    if directions.before:
        # Filler has position 0, and must not become -1.
        batch["prediction_positions"] = (masked_positions - 1).clamp(min=0)
    if sequences.packed:
        batch["sequence_first"] = torch.from_numpy(is_first)
    if causal is not None:
        targets = np.flatnonzero(real & causal[:, None] & ~is_first)
        # The output at the token before predicts it; a sequence's first token has none.
        batch["causal_positions"], batch["causal_labels"] = filled(targets - 1, flat_ids[targets])
    batch_layout = make_layout(layout, sequences)
    if batch_layout is not None:
        batch["layout"] = batch_layout
    return batch


def filled(positions: I64, labels: I64, size: int | None = None) -> tuple[Tensor, Tensor]:
    """Pad positions with 0 and labels with -100 to `size`, or a multiple of `PREDICTIONS`.

    Args:
        positions, labels: int64 [M].
    """
    if size is None:
        size = max(1, -(-len(positions) // PREDICTIONS)) * PREDICTIONS
    filler = max(0, size - len(positions))
    return (
        torch.from_numpy(np.pad(positions, (0, filler))),
        torch.from_numpy(np.pad(labels, (0, filler), constant_values=IGNORE_INDEX)),
    )


def empty_batch(*, pad: int, directions: AttentionModes = BIDIRECTIONAL) -> Batch:
    """Return a batch of one row of padding without predictions: its loss and gradients are zero.

    A rank with fewer rows than the others runs it to take part in the same collectives.
    """
    positions, labels = torch.zeros(1, dtype=torch.int64), torch.full((1,), IGNORE_INDEX)
    batch: Batch = {
        "input_ids": torch.full((1, MULTIPLE), pad),
        "attention_mask": torch.zeros(1, MULTIPLE, dtype=torch.bool),
        "token_type_ids": torch.zeros(1, MULTIPLE, dtype=torch.int64),
        "masked_positions": positions,
        "masked_labels": labels,
        "pair_labels": torch.full((1,), IGNORE_INDEX),
    }
    if directions.causal_share:
        batch["causal_positions"], batch["causal_labels"] = positions, labels
    if directions.before:
        batch["prediction_positions"] = positions
    return batch if directions.transform is None else directions.transform.empty(batch)


# Prefetching: while the model computes, a thread reads, collates and pins the next batches.

Item = TypeVar("Item")


def prefetch_batches(batches: Iterable[AnyBatch], device: torch.device) -> Prefetch[AnyBatch]:
    """Prefetch batches, pinned if `device` is a GPU; the caller moves them to the device."""
    return Prefetch(pin(batch, device) for batch in batches)


class Prefetch(Generic[Item]):
    """Iterator over `source` that a thread fills, at most `depth` items ahead.

    An error of the source is raised in place of its item. Leaving the context ends the thread.
    """

    def __init__(self, source: Iterable[Item], depth: int = 4) -> None:
        self._read: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._room, self._closed = threading.Semaphore(depth), False
        # A daemon: a source that waits for input must not keep a process that fails.
        self._thread = threading.Thread(
            target=self._fill, args=(iter(source),), name="prefetch", daemon=True
        )
        self._thread.start()

    def _fill(self, items: Iterator[Item]) -> None:
        more, item = True, cast(Any, None)
        while more:
            self._room.acquire()
            if self._closed:
                return
            try:
                item = next(items)
            except BaseException as error:
                more, item = False, None if isinstance(error, StopIteration) else error
            self._read.put((more, item))

    def __iter__(self) -> Iterator[Item]:
        while (entry := self._read.get())[0]:
            self._room.release()
            yield entry[1]
        if entry[1] is not None:
            raise entry[1]

    def __enter__(self) -> Prefetch[Item]:
        return self

    def close(self) -> None:
        """End the thread after the item that it reads; does not wait for it."""
        self._closed = True
        self._room.release()

    def __exit__(self, *_: object) -> None:
        self.close()
        self._thread.join()
