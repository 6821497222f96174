"""Means over tokens of what attention heads attend to, attention rollout, and heads as parsers.

Clark et al., "What Does BERT Look At?", 2019, sections 3 and 4; Voita et al., "Analyzing Multi-Head
Self-Attention", 2019, section 5; Abnar and Zuidema, "Quantifying Attention Flow", 2020. Only real
tokens count, and only attention within their sequence: rows may be padded or packed.

As a parser, a head predicts for each word the other word that it attends to most, or the one that
attends to it most. Attention to a word is the sum over its tokens, attention from a word the mean
over its tokens. Special tokens and the word itself are no candidates. Sentences with dependencies
are read from CoNLL-U files (universaldependencies.org/format.html).

Shapes: B batch, L length, N heads, K kinds of attended tokens, V vocabulary, W words, R relations.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from cloze.core.errors import DataError
from cloze.core.ragged import I64
from cloze.labs.inside.attention import token_text
from cloze.model.layers.layout import BatchLayout
from cloze.model.tasks.formats.lines import text_lines
from cloze.pipeline.tokenizer.tokenizer import Tokenizer

REACH = 16  # maximum distance between tokens in the statistics
OFFSETS = range(-REACH, REACH + 1)  # of the attended token from the attending one
KINDS = ("first", "separator", "punctuation")
POSITIONAL = 0.9  # share of tokens whose maximum weight is at one offset (Voita et al.)
PADDING = -1  # `TokenRows.sequence` of padding


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRows:
    """A batch of rows without masks.

    Attributes:
        input_ids, token_type_ids: int64 [B, L].
        sequence: int64 [B, L], number of each token's sequence in the batch; PADDING at padding.
        layout: layout of packed rows; None: one sequence per row.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    sequence: Tensor
    layout: BatchLayout | None = None


class HeadStatistics:
    """Sums over tokens, by layer and head.

    Args:
        pieces: tokenizer of the rows.
        frequency: int64 [V], occurrences of each token in all rows.
    """

    def __init__(self, pieces: Tokenizer, frequency: Tensor) -> None:
        self._separator, self._frequency = pieces.special.sep, frequency
        self._special = torch.tensor(sorted(pieces.special.ids), device=frequency.device)
        self._punctuation = torch.tensor(
            [is_punctuation(pieces, token) for token in range(len(frequency))],
            device=frequency.device,
        )
        # by name, and with a head's sums also by layer
        self._sums: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._counts: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros(()).double())

    def begin(self, rows: TokenRows) -> None:
        """Compute what the layers of a batch share: the tokens of each kind, and their counts."""
        ids, sequence = rows.input_ids, rows.sequence
        self._real = sequence != PADDING
        # the separator is no word of the text: it counts neither as attending nor as attended
        self._words = self._real & (ids != self._separator)
        same = (sequence[:, :, None] == sequence[:, None]) & self._real[:, None]
        begins = sequence != pad(sequence, (1, 0), value=PADDING)[:, :-1]
        kinds = (begins, ids == self._separator, self._punctuation[ids])
        self._kinds = (torch.stack(kinds, -1) & self._real[:, :, None]).float()
        self._has_kind = (same.float() @ self._kinds > 0).float()
        rarest = self._rarest(ids, sequence)
        rare, words = (same.float() @ torch.stack([rarest, self._words], -1).float()).unbind(-1)
        self._rarest_tokens = rarest
        self._same = same
        word_pairs = same & self._words[:, :, None] & self._words[:, None]
        self._rollout: Tensor | None = None
        self._layer = 0
        self._count("tokens", self._real.sum())
        self._count("words", self._words.sum())
        self._count("kinds", self._has_kind.sum((0, 1)))
        self._count("offsets", torch.stack([_diagonal(same, one).sum() for one in OFFSETS]))
        at_offset = [_diagonal(word_pairs, one).sum() for one in OFFSETS]
        self._count("word_offsets", torch.stack(at_offset))
        self._count("rare_chance", (rare / words.clamp(min=1))[self._words].sum())

    def layer(self, maps: Tensor) -> None:
        """Add the next layer's probabilities, float [B, N, L, L]."""
        maps, real = maps.float(), self._real[:, None]
        words = self._words[:, None]
        mass = (maps @ self._kinds[:, None]) * self._has_kind[:, None]
        self._add("kinds", mass.sum((0, 2)))
        own = maps * self._same[:, None]  # only within the sequence
        at_offset = [_diagonal(own, one).sum((0, 2)) for one in OFFSETS]
        self._add("offsets", torch.stack(at_offset, -1))
        self._add("entropy", (_entropy(maps) * real).sum((0, 2)))
        weight, target = maps.masked_fill(~self._words[:, None, None], -1).max(-1)
        self._add("confidence", (weight.clamp(min=0) * words).sum((0, 2)))
        moved = target - torch.arange(maps.shape[-1], device=maps.device)
        hits = [((moved == one) & words).sum((0, 2)) for one in OFFSETS]
        self._add("word_offsets", torch.stack(hits, -1))
        rare = self._rarest_tokens[:, None].expand_as(target).gather(-1, target) & words
        self._add("rare", rare.sum((0, 2)))
        identity = torch.eye(maps.shape[-1], device=maps.device)
        step = (maps.mean(1) + identity) / 2
        self._rollout = step if self._rollout is None else step @ self._rollout
        to_first = self._rollout @ self._kinds[:, :, :1]
        self._add("rollout_first", to_first[..., 0][self._real].sum())
        self._add("rollout_entropy", _entropy(self._rollout)[self._real].sum())
        self._layer += 1

    def result(self) -> dict[str, Any]:
        """Return the means; lists by layer and head, unless they say otherwise.

        `offsets` and `maximum_at` are by offset, then by layer and head. A mean over the tokens of
        a kind that no row has is None.
        """
        tokens, words = self._counts["tokens"], self._counts["words"]
        by_kind = self._means("kinds", self._counts["kinds"])
        by_offset = self._means("offsets", self._counts["offsets"])
        maximum_at = self._means("word_offsets", self._counts["word_offsets"])
        names = {"previous": -1, "next": 1, "itself": 0}
        return {
            **{name: _part(by_offset, offset + REACH) for name, offset in names.items()},
            **{name: _part(by_kind, number) for number, name in enumerate(KINDS)},
            "entropy": _part(self._means("entropy", tokens)),
            "confidence": _part(self._means("confidence", words)),
            "rarest": _part(self._means("rare", words)),
            "rarest_by_chance": float(self._counts["rare_chance"] / words),
            "offsets": {str(offset): _part(by_offset, offset + REACH) for offset in OFFSETS},
            "maximum_at": {str(offset): _part(maximum_at, offset + REACH) for offset in OFFSETS},
            "rollout_to_first": [float(value) for value in self._means("rollout_first", tokens)],
            "rollout_entropy": [float(value) for value in self._means("rollout_entropy", tokens)],
        }

    def _rarest(self, ids: Tensor, sequence: Tensor) -> Tensor:
        """Return the least frequent tokens of each sequence, bool [B, L]; ties are all true."""
        known = self._real & ~torch.isin(ids, self._special)
        frequency = self._frequency[ids].where(known, torch.iinfo(torch.int64).max)
        index = sequence.clamp(min=0).flatten()
        lowest = torch.full_like(index, torch.iinfo(torch.int64).max)
        lowest = lowest.scatter_reduce(0, index, frequency.flatten(), "amin")
        return known & (frequency == lowest[index].view_as(ids))

    def _count(self, name: str, values: Tensor) -> None:
        self._counts[name] = self._counts[name] + values.double().cpu()

    def _add(self, name: str, values: Tensor) -> None:
        layers, values = self._sums[name], values.double().cpu()
        if self._layer == len(layers):
            layers.append(values)
        else:
            layers[self._layer] += values

    def _means(self, name: str, counts: Tensor) -> list[Tensor]:
        return [sums / counts for sums in self._sums[name]]


def is_punctuation(pieces: Tokenizer, token: int) -> bool:
    """Return whether a token is punctuation; special tokens are not."""
    if token in pieces.special.ids or pieces.backend.id_to_token(token) is None:
        return False
    text = token_text(pieces, token).strip(" ▁")
    return bool(text) and all(unicodedata.category(letter)[0] == "P" for letter in text)


def _diagonal(values: Tensor, offset: int) -> Tensor:
    """Return the values at key = query + offset, [..., L - |offset|]; empty if there are none."""
    length = values.shape[-1]
    return values.diagonal(max(-length, min(length, offset)), -2, -1)


def _entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy of the last dimension in nats."""
    entropy: Tensor = torch.special.entr(probabilities).sum(-1)
    return entropy


def _part(layers: list[Tensor], number: int | None = None) -> list[list[float | None]]:
    """Return numbers by layer and head: the tensors [N], or one column of [N, ...]."""
    heads = [layer if number is None else layer[:, number] for layer in layers]
    return [[value if value == value else None for value in layer.tolist()] for layer in heads]


ROOT = -1  # head of the root
COLUMNS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentence:
    """A sentence of n syntactic words.

    Attributes:
        text: the words, with the spaces of the original.
        spans: int64 [n, 2], characters of each word.
        heads: int64 [n], number of each word's head from 0; `ROOT` for the root.
        relations: n labels of the dependencies, such as nsubj or nsubj:pass.
    """

    text: str
    spans: I64
    heads: I64
    relations: tuple[str, ...]


def read_treebank(path: str) -> list[Sentence]:
    """Read all sentences of a CoNLL-U file.

    Multiword tokens (`3-4`) and empty nodes (`5.1`) are no words. The words of a multiword token
    are written without spaces, if that gives its form, as in `do` and `n't`.

    Raises:
        DataError: the file is missing or no CoNLL-U, or a sentence has an impossible head.
    """
    sentences, rows = [], list[list[str]]()
    for number, line in itertools.chain(text_lines(path, spreadsheet=True), [(0, "")]):
        if line.startswith("#"):
            continue
        if line.strip():
            rows.append(line.split("\t"))
            if len(rows[-1]) != COLUMNS:
                raise DataError(
                    f"{path}, line {number} has {len(rows[-1])} columns instead of {COLUMNS}; give "
                    f"a CoNLL-U file"
                )
        elif rows:
            try:
                sentences.append(_sentence(rows))
            except ValueError as error:
                where = f"{path}, sentence {len(sentences) + 1}"
                raise DataError(f"{where} {error}; correct the file") from None
            rows = []
    if not sentences:
        raise DataError(f"{path} has no sentences; give a CoNLL-U file")
    return sentences


def _sentence(rows: list[list[str]]) -> Sentence:
    """Build a sentence from the columns of its lines; raises ValueError with a verb phrase."""
    words = [row for row in rows if row[0].isdecimal()]
    if [row[0] for row in words] != [str(number) for number in range(1, len(words) + 1)]:
        raise ValueError("does not number its words from 1")
    heads = [int(row[6]) - 1 if row[6].isdecimal() else len(words) for row in words]
    if not words or max(heads) >= len(words) or any(map(int.__eq__, heads, range(len(words)))):
        raise ValueError("has a word whose head is none of its words")
    follows_space = _spaces(rows, words)
    text, spans = "", []
    for row, spaced in zip(words, follows_space, strict=True):
        text += " " if text and spaced else ""
        spans.append((len(text), len(text) + len(row[1])))
        text += row[1]
    return Sentence(
        text=text,
        spans=np.array(spans, np.int64),
        heads=np.array(heads, np.int64),
        relations=tuple(row[7] for row in words),
    )


def _spaces(rows: list[list[str]], words: list[list[str]]) -> list[bool]:
    """Return whether a space precedes each word."""
    spaced_after = ["SpaceAfter=No" not in row[9].split("|") for row in words]
    for row in rows:
        first, _, last = row[0].partition("-")
        if not last:
            continue
        if not (first + last).isdecimal() or not 1 <= int(first) <= int(last) <= len(words):
            raise ValueError(f"has a multiword token {row[0]!r} that is no range of its words")
        members = range(int(first) - 1, int(last))
        joins = "".join(words[member][1] for member in members) == row[1]
        for member in members[:-1]:
            spaced_after[member] = not joins
        spaced_after[members[-1]] = "SpaceAfter=No" not in row[9].split("|")
    return [True, *spaced_after[:-1]]


ALL = "all"  # all relations together
DIRECTIONS = ("to head", "from head")  # the dependent attends to its head; its head to it


class ParsingHeads:
    """Correct predictions by relation, direction, layer and head."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self._sentences = sentences
        names = {relation for sentence in sentences for relation in sentence.relations}
        self._names = [ALL, *sorted(names)]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._correct: list[Tensor] = []  # by layer: int64 [2, N, R]
        self._arcs: list[list[int]] = []  # relation, offset of the head from the dependent

    def begin(self, numbers: Sequence[int], words: Sequence[I64], length: int) -> None:
        """Read the dependencies of a batch.

        Args:
            numbers: B sentences.
            words: int64 [L_i] each, word of each token of the sequence; -1: none.
            length: L.
        """
        widest = max(len(self._sentences[number].heads) for number in numbers)
        member = torch.zeros(len(numbers), length, widest)
        arcs = []  # row, dependent, head, relation
        for row, (number, own) in enumerate(zip(numbers, words, strict=True)):
            positions = np.flatnonzero(own >= 0)
            member[row, positions, own[positions]] = 1
            sentence, has_tokens = self._sentences[number], np.unique(own)
            for word, (head, name) in enumerate(
                zip(sentence.heads.tolist(), sentence.relations, strict=True)
            ):
                if head != ROOT and {word, head} <= set(has_tokens.tolist()):
                    arcs.append((row, word, head, self._number[name]))
        self._member = member
        self._batch = torch.tensor(arcs, dtype=torch.int64).view(-1, 4)
        self._arcs += [[name, head - word] for _, word, head, name in arcs]
        self._layer = 0

    def layer(self, maps: Tensor) -> None:
        """Score the next layer's probabilities, float [B, N, L, L]."""
        member = self._member.to(maps.device)[:, None]
        sizes = member.sum(2)[..., None]  # [B, 1, W, 1]
        between = member.transpose(2, 3) @ maps.float() @ member / sizes.clamp(min=1)
        hidden = torch.eye(between.shape[-1], dtype=torch.bool, device=maps.device) | (sizes == 0)
        hidden = hidden | hidden.transpose(2, 3)
        between = between.masked_fill(hidden, -1)
        row, word, head, name = self._batch.to(maps.device).unbind(1)
        counts = torch.zeros(2, maps.shape[1], len(self._names), dtype=torch.int64)
        for direction, dimension in enumerate((3, 2)):
            predicted = between.argmax(dimension)[row, :, word]  # [arcs, N]
            correct = (predicted == head[:, None]).long().cpu()
            counts[direction].index_add_(1, name.cpu(), correct.T)
        counts[..., 0] = counts.sum(-1)
        if self._layer == len(self._correct):
            self._correct.append(counts)
        else:
            self._correct[self._layer] += counts
        self._layer += 1

    def result(self) -> list[dict[str, Any]]:
        """Return the best head and the best fixed offset of each relation, most frequent first.

        Returns:
            relation, count, accuracy, layer and head (from 1), direction, offset (words from the
            dependent to its head) and offset_accuracy.
        """
        arcs = np.array(self._arcs, np.int64).reshape(-1, 2)
        rows = []
        for number, name in enumerate(self._names):
            offsets = arcs[arcs[:, 0] == number, 1] if number else arcs[:, 1]
            if not len(offsets):
                continue
            values, counts = np.unique(offsets, return_counts=True)
            scores = [
                (int(correct), layer, head, direction)
                for layer, by_head in enumerate(self._correct, 1)
                for direction, heads in zip(DIRECTIONS, by_head[..., number].tolist(), strict=True)
                for head, correct in enumerate(heads, 1)
            ]
            correct, layer, head, direction = max(scores, key=lambda score: score[0])
            rows.append(
                {
                    "relation": name,
                    "count": len(offsets),
                    "accuracy": correct / len(offsets),
                    "layer": layer,
                    "head": head,
                    "direction": direction,
                    "offset": int(values[counts.argmax()]),
                    "offset_accuracy": int(counts.max()) / len(offsets),
                }
            )
        return sorted(rows, key=lambda row: -row["count"])
