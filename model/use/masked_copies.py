"""Masked copies of sentences, and batches of them.

A masked language model gives no sentence probability. Its pseudo-log-likelihood is the sum over
tokens of the log-probability of each token when masked (Salazar et al. 2020, "Masked Language Model
Scoring", equation 2); [CLS] and [SEP] are context only. Visible tokens of the same word make rare
words score too high. Kauf and Ivanova (2023, "A Better Way to Do Masked Language Model Scoring")
therefore mask more of the word:

token: the token alone (Salazar et al.)
whole-word: all tokens of its word (their PLL-whole-word)
word-l2r: the token and later tokens of its word (their PLL-word-l2r)
None: no mask, for left-to-right models, which do not see the predicted token

Equal copies are scored once, such as those of a minimal pair that differs only in the masked token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.core.ragged import I64
from cloze.model.tasks.encode import evaluation_batches

Mask = Literal["token", "whole-word", "word-l2r"]
Bools = npt.NDArray[np.bool_]
# Masked positions of a batch are padded to a multiple: each new shape costs a CPU a new kernel.
FILLER = 16


class MaskedCopies(NamedTuple):
    """Masked copies of sentences, with T predictions.

    Attributes:
        copies: distinct token rows, int32 [L_i] each, with special tokens.
        copy: int64 [T], copy in which each token of the sentences is predicted.
        position: int64 [T], position in that copy.
        label: int64 [T], the token.
    """

    copies: Sequence[npt.NDArray[np.int32]]
    copy: I64
    position: I64
    label: I64


def masks(starts: Bools, mask: Mask) -> Bools:
    """Return the mask for each of n tokens: row t of bool [n, n] is used to score token t.

    Args:
        starts: bool [n], tokens that begin a word.
    """
    positions = np.arange(len(starts))
    word = positions if mask == "token" else np.cumsum(starts)
    same_word: Bools = word[:, None] == word
    rest_of_word: Bools = same_word & (positions >= positions[:, None])
    return rest_of_word if mask == "word-l2r" else same_word


def mask_sentences(
    sentences: Sequence[npt.NDArray[np.int32]],
    word_starts: Sequence[Bools],
    mask_id: int,
    mask: Mask | None,
    context: Sequence[int] | None = None,
) -> MaskedCopies:
    """Return the masked copies of sentences.

    Args:
        sentences: int32 [L_i] each, with one special token at each end.
        word_starts: bool [L_i - 2] each, tokens that begin a word; the first one always does.
        mask: None for left-to-right models: one unmasked copy, position t predicts token t + 1.
        context: leading tokens of each sentence that are not predicted; None: 0.
    """
    numbers: dict[bytes, int] = {}  # by content, in order
    copies: list[int] = []
    positions, labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    context = context or [0] * len(sentences)
    for ids, word_start, first in zip(sentences, word_starts, context, strict=True):
        inner_positions = np.arange(1 + first, len(ids) - 1)
        labels.append(ids[inner_positions].astype(np.int64))
        if mask is None:
            rows = ids[None].repeat(len(inner_positions), axis=0)
            positions.append(inner_positions - 1)
        else:
            starts = word_start.copy()
            starts[:1] = True
            rows = ids[None].repeat(len(inner_positions), axis=0)
            rows[:, 1:-1][masks(starts, mask)[first:]] = mask_id
            positions.append(inner_positions)
        copies += (numbers.setdefault(row.tobytes(), len(numbers)) for row in rows)
    return MaskedCopies(
        copies=[np.frombuffer(content, np.int32) for content in numbers],
        copy=np.array(copies, np.int64),
        position=np.concatenate(positions),
        label=np.concatenate(labels),
    )


class ScoringBatch(NamedTuple):
    """Batch of masked copies.

    Attributes:
        ids: int64 [B, L], padded.
        lengths: int64 [B], longest first.
        positions: int64 [M], distinct positions in the flattened B * L; filler is 0.
        rows: int64 [P], index in `positions` of each prediction, in order.
        predictions: int64 [P], index in the T predictions of `MaskedCopies`.
        label: int64 [P], the tokens.
    """

    ids: I64
    lengths: I64
    positions: I64
    rows: I64
    predictions: I64
    label: I64


def scoring_batches(copies: MaskedCopies, tokens: int, pad: int) -> Iterator[ScoringBatch]:
    """Iterate over batches of copies of similar length, longest first, with little padding.

    Args:
        tokens: maximum tokens per batch, padding included; a longer copy is a batch alone.
    """
    lengths = np.array([len(copy) for copy in copies.copies], np.int64)
    row = np.zeros(len(lengths), np.int64)  # of each copy in its batch
    for batch in evaluation_batches(lengths, tokens):
        row[batch] = np.arange(len(batch))
        ids = np.full((len(batch), lengths[batch[0]]), pad, np.int64)
        for number, index in enumerate(batch.tolist()):
            ids[number, : lengths[index]] = copies.copies[index]
        predictions = np.flatnonzero(np.isin(copies.copy, batch))
        flat = row[copies.copy[predictions]] * ids.shape[1] + copies.position[predictions]
        positions, rows = np.unique(flat, return_inverse=True)
        order = np.argsort(rows, kind="stable")
        yield ScoringBatch(
            ids=ids,
            lengths=lengths[batch],
            positions=np.pad(positions, (0, -len(positions) % FILLER)),
            rows=rows[order].astype(np.int64),
            predictions=predictions[order],
            label=copies.label[predictions[order]],
        )
