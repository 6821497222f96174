"""From examples to batches: pieces, special tokens, truncation, the order of training, padding to the batch's longest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from model.data.batch import LAYOUT, Batch
from model.data.layouts import Kind, Sequences, make_layout
from model.tasks.table import Examples
from pipeline.core import random_keys
from pipeline.tokenizer.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]

POOL = 16  # batches among which training sorts by length: little padding, and still every batch is a random one
IGNORE = -100  # a label that takes no part in the loss
BLANK_LENGTH = 16
EVALUATION_BATCH = 64  # fixed, so that scores do not depend on a setting by a rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """Examples as the model reads them.

    Attributes:
        sequences: int32 [L_i] each: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
        second: where B starts in each sequence; its length if there is no B. int64 [n].
        labels: int64 [n], or None.
        truncated: how many examples lost pieces to `max_length`.
    """

    sequences: tuple[npt.NDArray[np.int32], ...]
    second: Ints
    labels: Ints | None
    truncated: int
    pad: int

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> Ints:
        return np.array([len(sequence) for sequence in self.sequences], dtype=np.int64)


def encode(examples: Examples, tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Tokenize, truncate and frame each example; at most `max_length` pieces, special tokens included."""
    first = tokenizer.encode_batch(list(examples.texts))
    other = tokenizer.encode_batch(list(examples.text_pairs)) if examples.text_pairs is not None else None
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    sequences, second, truncated = [], [], 0
    for i, pieces in enumerate(first):
        a, b = truncate(len(pieces), len(other[i]) if other is not None else 0, max_length - (2 if other is None else 3))
        sequence = [cls, *pieces[:a], sep]
        second.append(len(sequence))
        if other is not None:
            sequence += [*other[i][:b], sep]
        truncated += a < len(pieces) or (other is not None and b < len(other[i]))
        sequences.append(np.array(sequence, dtype=np.int32))
    return Encoded(
        sequences=tuple(sequences),
        second=np.array(second, dtype=np.int64),
        labels=None if examples.labels is None else np.array(examples.labels, dtype=np.int64),
        truncated=int(truncated),
        pad=tokenizer.special.pad,
    )


def truncate(first: int, second: int, room: int) -> tuple[int, int]:
    """How many pieces of each sequence stay, when the longer one loses pieces at its end until both fit into `room`.

    The rule of `_truncate_seq_pair` in google-research/bert's run_classifier.py: on a tie the second one loses.
    """
    if first + second <= room:
        return first, second
    shorter = min(first, second)
    if 2 * shorter < room:  # only the longer one loses
        return (room - second, second) if first > second else (first, room - first)
    return (room + 1) // 2, room // 2


def training_batches(lengths: Ints, batch_size: int, seed: int, epoch: int) -> list[Ints]:
    """The batches of one epoch, as indices: every example once, in an order that is a function of seed and epoch.

    Examples are shuffled, sorted by length within pools of `POOL` batches, cut, and the batches shuffled.
    """
    shuffled = np.argsort(random_keys.derive(seed, epoch, 0, np.arange(len(lengths))), kind="stable")
    size = batch_size * POOL
    batches: list[Ints] = []
    for start in range(0, len(shuffled), size):
        pool = shuffled[start : start + size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[at : at + batch_size] for at in range(0, len(pool), batch_size)]
    return [batches[i] for i in np.argsort(random_keys.derive(seed, epoch, 1, np.arange(len(batches))), kind="stable")]


def evaluation_batches(lengths: Ints) -> list[Ints]:
    """Batches of like length, longest first, so that memory is at its peak at once; indices into the examples."""
    order = np.argsort(-lengths, kind="stable")
    return [order[at : at + EVALUATION_BATCH] for at in range(0, len(order), EVALUATION_BATCH)]


def collate(data: Encoded, chosen: Sequence[int] | Ints, layout: Kind = "rows") -> Batch:
    """The batch of the examples `chosen`, padded to the longest of them.

    Returns:
        input_ids int64 [B, L], attention_mask bool [B, L], token_type_ids int64 [B, L], and labels int64 [B] if there are any;
        beside them the layout, as `model.data.collate` makes it.
    """
    lengths = np.array([len(data.sequences[i]) for i in chosen], np.int64)
    longest = int(lengths.max())
    ids = np.full((len(chosen), longest), data.pad, dtype=np.int64)
    for row, i in enumerate(chosen):
        ids[row, : len(data.sequences[i])] = data.sequences[i]
    places = np.arange(longest)
    real = places < lengths[:, None]
    segments = (places >= data.second[chosen][:, None]) & real
    arrays = {"input_ids": ids, "attention_mask": real, "token_type_ids": segments.astype(np.int64)}
    if data.labels is not None:
        arrays["labels"] = data.labels[chosen]
    batch: Batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    lies = make_layout(layout, Sequences.alone(lengths, longest))
    return batch if lies is None else {**batch, LAYOUT: lies}


def blank(data: Encoded) -> Batch:
    """A batch of one row with nothing to learn from: its loss and gradients are 0. For ranks that have fewer examples."""
    attention_mask = torch.zeros(1, BLANK_LENGTH, dtype=torch.bool)
    attention_mask[0, 0] = True
    return {
        "input_ids": torch.full((1, BLANK_LENGTH), data.pad),
        "attention_mask": attention_mask,
        "token_type_ids": torch.zeros(1, BLANK_LENGTH, dtype=torch.int64),
        "labels": torch.full((1,), IGNORE),
    }
