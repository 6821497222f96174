"""Words of a text, their vectors in context, and states of chosen layers.

The word splitter is similar to CoNLL's. Words are separated by spaces; punctuation at their ends is
split off: `(Baghdad).` has four words. Punctuation inside stays (`AC-DC`, `3,000.5`, `1996-08-22`),
and so does the final stop of `U.N.`. English `'s` and `n't` are words (`Chelsea's`), `@` and `#`
before a name are not (`@paulwalk`). Each character of a script without spaces is a word (Chinese,
Japanese).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.core.words import IDEOGRAPHS
from cloze.model.layers.encoder import Encoder, layer_count, layer_states

Span = tuple[int, int]  # (start, end) in characters, end exclusive

BETWEEN = re.compile(r"\S+")
ALONE = re.compile(f"[{IDEOGRAPHS}]")  # written without spaces
CLITIC = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))$", re.IGNORECASE)
SIGNS = "@#"


def words_of(text: str) -> list[Span]:
    """Return the words of a text, in order."""
    return [
        word for match in BETWEEN.finditer(text) for word in _cut(text, match.start(), match.end())
    ]


def between_spaces(text: str) -> list[Span]:
    """Return the words of a text whose punctuation is already separated by spaces."""
    return [match.span() for match in BETWEEN.finditer(text)]


def _cut(text: str, start: int, end: int) -> Iterator[Span]:
    """Iterate over the words of a stretch without spaces."""
    begin = start
    for match in ALONE.finditer(text, start, end):
        yield from _peeled(text, begin, match.start())
        yield match.span()
        begin = match.end()
    yield from _peeled(text, begin, end)


def _peeled(text: str, start: int, end: int) -> Iterator[Span]:
    """Iterate over the words of a stretch without spaces and ideographs, punctuation split off."""
    trailing: list[Span] = []
    while (
        start < end
        and _is_mark(text[start])
        and not (text[start] in SIGNS and start + 1 < end and text[start + 1].isalnum())
    ):
        if CLITIC.fullmatch(text, start, end):
            break
        yield start, start + 1
        start += 1
    while start < end and _is_mark(text[end - 1]) and not _abbreviates(text[start:end]):
        trailing.append((end - 1, end))
        end -= 1
    clitic = CLITIC.search(text, start, end)
    if clitic and clitic.start() > start:
        yield start, clitic.start()
        start = clitic.start()
    if start < end:
        yield start, end
    yield from reversed(trailing)


def _abbreviates(word: str) -> bool:
    """Return True if the final stop belongs to an abbreviation: the word has another stop."""
    return word.endswith(".") and word[-2:-1].isalnum() and "." in word[:-1]


def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "PS"


class LayerMean(nn.Module):
    """An encoder whose states are the mean of those of several layers; takes padded rows.

    Args:
        encoder: encoder of n layers.
        layers: layers, from 0 (the embeddings) to n (the last one, with the final norm), or from
            the end: -1 is the last one.

    Raises:
        UsageError: a layer does not exist, or the model has a decoder.
    """

    def __init__(self, encoder: Encoder, layers: Sequence[int]) -> None:
        super().__init__()
        self.encoder, count = encoder, layer_count(encoder)
        for number in layers:
            if not -count - 1 <= number <= count:
                raise UsageError(f"layer ({number}) does not exist; the last one is {count}")
        self._layers = [number % (count + 1) for number in layers]

    def forward(self, *arguments: Any) -> Tensor:
        """Return the mean of the layers' states, float [B, L, D]; arguments as for `Encoder`."""
        states = layer_states(self.encoder, self._layers, lambda: self.encoder(*arguments))
        return torch.stack(states).mean(dim=0)


def words_of_tokens(
    words: Sequence[tuple[int, int]], spans: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return the word of each token, int64 [tokens]; blanks count to the word before them.

    Args:
        words: characters of each word, in order.
        spans: int64 [tokens, 2], characters of each token.
    """
    starts = np.array([start for start, _ in words], dtype=np.int64)
    return np.maximum(np.searchsorted(starts, spans[:, 0], side="right") - 1, 0)


def word_means(states: Tensor, words: Tensor, count: int) -> Tensor:
    """Return the mean state of each word's tokens, float [count, D]; words without tokens: 0.

    Args:
        states: float [tokens, D].
        words: int64 [tokens], word of each token.
    """
    sums = states.new_zeros(count, states.shape[1]).index_add_(0, words, states)
    sizes = torch.bincount(words, minlength=count).clamp(min=1)
    return sums / sizes[:, None]
