"""From texts to samples: pieces, special tokens, truncation, padding to the batch's longest; and which samples a batch is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from model.data.batch import LAYOUT, Batch
from model.data.layouts import Kind, Sequences, make_layout
from model.tasks.task import Ints, Samples
from pipeline.core import random_keys
from pipeline.tokenizer.tokenizer import Tokenizer

POOL = 16  # batches among which training sorts by length: little padding, and still every batch is a random one
EVALUATION_BATCH = 64  # fixed, so that scores do not depend on a setting by a rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSamples:
    """A sample is one sequence: a text, or a pair of texts.

    Attributes:
        sequences: int32 [L_i] each: [CLS] A [SEP], or [CLS] A [SEP] B [SEP].
        second: where B starts in each sequence; its length if there is no B. int64 [n].
        truncated: how many examples lost pieces to the greatest length.
        pad: the id of padding.
        lost: how many answers no sample can give, by reason.
        targets: what the loss needs, by its name in a batch; one row a sample.
    """

    sequences: tuple[npt.NDArray[np.int32], ...]
    second: Ints
    truncated: int
    pad: int
    targets: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    lost: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sequences)

    @property
    def lengths(self) -> Ints:
        return np.array([len(sequence) for sequence in self.sequences], dtype=np.int64)

    def batch(self, chosen: Sequence[int] | Ints, layout: Kind = "rows") -> Batch:
        """The samples of these numbers, padded to the longest of them.

        Returns:
            input_ids int64 [B, L], attention_mask bool [B, L], token_type_ids int64 [B, L], and the targets; beside them the
            layout, as `model.data.collate` makes it.
        """
        lengths = np.array([len(self.sequences[i]) for i in chosen], dtype=np.int64)
        ids = np.full((len(chosen), lengths.max()), self.pad, dtype=np.int64)
        for row, i in enumerate(chosen):
            ids[row, : lengths[row]] = self.sequences[i]
        places = np.arange(ids.shape[1])
        real = places < lengths[:, None]
        segments = (places >= self.second[chosen][:, None]) & real
        arrays = {"input_ids": ids, "attention_mask": real, "token_type_ids": segments.astype(np.int64)}
        arrays |= {name: target[chosen] for name, target in self.targets.items()}
        batch: Batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
        made = make_layout(layout, Sequences.alone(lengths, ids.shape[1]))
        return batch if made is None else {**batch, LAYOUT: made}


def encode(
    texts: Sequence[str],
    text_pairs: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_length: int,
    targets: Mapping[str, npt.NDArray[Any]] | None = None,
) -> TextSamples:
    """Tokenize, truncate and frame each text or pair of texts; at most `max_length` pieces, special tokens included."""
    first = tokenizer.encode_batch(list(texts))
    other = tokenizer.encode_batch(list(text_pairs)) if text_pairs is not None else None
    return framed(first, other, tokenizer, max_length, targets)


def framed(
    first: Sequence[Sequence[int]],
    other: Sequence[Sequence[int]] | None,
    tokenizer: Tokenizer,
    max_length: int,
    targets: Mapping[str, npt.NDArray[Any]] | None = None,
) -> TextSamples:
    """The same of texts that are pieces already."""
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
    return TextSamples(
        sequences=tuple(sequences),
        second=np.array(second, dtype=np.int64),
        truncated=int(truncated),
        pad=tokenizer.special.pad,
        targets=targets or {},
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
    """The batches of one epoch, as numbers of samples: every sample once, in an order that is a function of seed and epoch.

    Samples are shuffled, sorted by length within pools of `POOL` batches, cut, and the batches shuffled.
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
    """Batches of like length, longest first, so that memory is at its peak at once; as numbers of samples."""
    order = np.argsort(-lengths, kind="stable")
    return [order[at : at + EVALUATION_BATCH] for at in range(0, len(order), EVALUATION_BATCH)]


def groups_of(samples: Samples) -> list[Ints]:
    """The numbers of the samples that may share a batch: all of them, or those of each of several tasks."""
    found: Sequence[Ints] | None = getattr(samples, "groups", None)
    return [np.arange(len(samples))] if found is None else list(found)
