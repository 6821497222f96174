"""Means over tokens of what attention heads attend to, and attention rollout.

Clark et al., "What Does BERT Look At?", 2019, section 3; Voita et al., "Analyzing Multi-Head
Self-Attention", 2019, section 5; Abnar and Zuidema, "Quantifying Attention Flow", 2020. Only real
tokens count, and only attention within their sequence: rows may be padded or packed.

Shapes: B batch, L length, N heads, K kinds of attended tokens, V vocabulary.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cloze.labs.inside.attention import token_text
from cloze.model.layers.layout import PaddedLayout
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
    layout: PaddedLayout | None = None


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
