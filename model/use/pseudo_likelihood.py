"""What a model must be asked to score sentences: which copies of them, masked where, and what it is to say at which place. No torch.

A masked language model gives a sentence no probability; its pseudo-log-likelihood is the sum over its pieces of the log-probability of
each where it is masked and the others are seen (Salazar et al. 2020, "Masked Language Model Scoring", equation 2). The sum runs over
the sentence's own pieces; [CLS] and [SEP] are context. Where a word has several pieces, those of it that are seen give the masked one
away, and rare words score too high; Kauf and Ivanova (2023, "A Better Way to Do Masked Language Model Scoring") mask more of it:

    token        the piece alone (Salazar et al.)
    whole-word   all pieces of its word                                   (their PLL-whole-word)
    word-l2r     the piece and those to the right of it in its word       (their PLL-word-l2r)
    none         nothing: for left-to-right models, which do not see the piece that they name

Copies that are equal are asked about once: the good and the bad sentence of a minimal pair, for one, where they differ in the masked
piece alone, and the pieces of a word under `whole-word`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Mask = Literal["token", "whole-word", "word-l2r"]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
FILLER = 16  # masked positions of a batch are filled up to a multiple of it: every new shape costs a CPU the making of a kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """What is asked about some sentences.

    Attributes:
        copies: distinct rows as the model reads them, int32 [L_i] each, with special tokens.
        copy, position: int64 [T], of each piece of the sentences, one after the other: in which copy, and where in it, it is named.
        label: int64 [T]: the piece.
    """

    copies: Sequence[npt.NDArray[np.int32]]
    copy: Ints
    position: Ints
    label: Ints


def masks(starts: Bools, mask: Mask) -> Bools:
    """What to mask where each of n pieces is asked for.

    Args:
        starts: bool [n], which pieces open a word.

    Returns:
        bool [n, n]: row t is masked where piece t is asked for.
    """
    places = np.arange(len(starts))
    if mask == "token":
        alone: Bools = places[:, None] == places
        return alone
    word = np.cumsum(starts)
    same: Bools = word[:, None] == word
    later: Bools = same & (places >= places[:, None])
    return same if mask == "whole-word" else later


def questions(sentences: Sequence[npt.NDArray[np.int32]], word_start: Bools, mask_id: int, mask: Mask | None) -> Questions:
    """The copies of sentences that must be asked about.

    Args:
        sentences: int32 [L_i] each, with one special token before and one behind.
        word_start: bool [V], whether a piece opens a word; the first one of a sentence always does.
        mask: None for left-to-right models: one copy a sentence, nothing masked; position t names piece t + 1.
    """
    number: dict[bytes, int] = {}
    copies: list[npt.NDArray[np.int32]] = []
    copy: list[int] = []
    positions, labels = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]

    def asked(row: npt.NDArray[np.int32]) -> int:
        key = row.tobytes()
        if key not in number:
            number[key] = len(copies)
            copies.append(row)
        return number[key]

    for ids in sentences:
        inner = np.arange(1, len(ids) - 1)
        labels.append(ids[inner].astype(np.int64))
        if mask is None:
            copy += [asked(ids)] * len(inner)
            positions.append(inner - 1)
            continue
        starts = word_start[ids[inner]]
        starts[:1] = True
        rows = np.repeat(ids[None], len(inner), axis=0)
        rows[:, 1:-1][masks(starts, mask)] = mask_id
        copy += map(asked, rows)
        positions.append(inner)
    return Questions(
        copies=copies, copy=np.array(copy, np.int64), position=np.concatenate(positions), label=np.concatenate(labels)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A batch of copies, and what is read from it.

    Attributes:
        ids: int64 [B, L], padded.
        lengths: int64 [B].
        wanted: int64 [M], places among the flattened B * L, each once; what fills up is 0.
        one_each: whether these are one a row, in the order of the rows.
        place: int64 [P], for each answer, which of the M it is at.
        asked: int64 [P], which of the T pieces of `Questions` it is for.
    """

    ids: Ints
    lengths: Ints
    wanted: Ints
    one_each: bool
    place: Ints
    asked: Ints


def parts(asked: Questions, tokens: int, pad: int) -> Iterator[Part]:
    """The copies in batches of one length, or nearly so, the longest first: there is hardly any padding.

    Args:
        tokens: the most of a batch, padding included; a copy that is longer is a batch alone.
    """
    lengths = np.array([len(copy) for copy in asked.copies], np.int64)
    order = np.argsort(-lengths, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    by_rank = np.argsort(rank[asked.copy], kind="stable")
    ranks = rank[asked.copy][by_rank]
    begin = 0
    while begin < len(order):
        longest = int(lengths[order[begin]])
        end = min(len(order), begin + max(1, tokens // longest))
        own = lengths[order[begin:end]]
        ids = np.full((end - begin, longest), pad, np.int64)
        for row, copy in enumerate(order[begin:end].tolist()):
            ids[row, : own[row]] = asked.copies[copy]
        first, last = np.searchsorted(ranks, (begin, end))
        answers = by_rank[first:last]
        flat = (ranks[first:last] - begin) * longest + asked.position[answers]
        wanted, place = np.unique(flat, return_inverse=True)
        one_each = np.array_equal(wanted // longest, np.arange(len(own)))
        filled: npt.NDArray[Any] = wanted if one_each else np.pad(wanted, (0, -len(wanted) % FILLER))
        yield Part(ids=ids, lengths=own, wanted=filled, one_each=one_each, place=place.astype(np.int64), asked=answers)
        begin = end
