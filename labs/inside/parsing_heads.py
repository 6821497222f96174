"""Attention heads as parsers (Clark et al., "What Does BERT Look At?", 2019, section 4).

A head predicts, for each word, the other word that it attends to most, or the one that attends to
it most. Attention to a word is the sum over its tokens; attention from a word is the mean over its
tokens. Special tokens and the word itself are no candidates.

Shapes: B sentences, L tokens, W words, N heads, R relations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cloze.core.ragged import I64
from cloze.labs.inside.treebank import ROOT, Sentence

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
