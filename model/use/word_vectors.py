"""Vectors of words in context, and states of chosen layers, for the command embed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.model.layers.encoder import Encoder, layer_count, layer_states


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
