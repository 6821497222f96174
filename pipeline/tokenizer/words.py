"""The tokenizer's shortcut: a word that was cut into pieces once is not cut again.

BERT's normalizer works on single characters and their combining marks, its pre-tokenizer cuts at every space,
and WordPiece sees one word at a time, so the pieces of a text are those of its space-separated parts, end to end.
Text repeats its words (Zipf), so a table from such parts to their pieces answers all but a few per cent of
them, and what remains is a dictionary look-up and a gather in numpy. The result is exactly the backend's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pipeline.examples.ragged import I64, offsets_of, ranges

U32 = npt.NDArray[np.uint32]

MAX_WORDS = 1 << 19
MAX_CHARACTERS = 1 << 24  # of all remembered words; with their pieces and the table, some 150 MB at most


class _Numbers(dict[str, int]):
    """Numbers words in the order in which they are first asked for, and lists the new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


class WordMemory:
    """Encodes like `encode`, asking it only for space-separated parts that are not remembered.

    The memory forgets all when it is full. Nothing of it shows in the results. Safe to use from several threads.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], tuple[U32, I64]],
        max_words: int = MAX_WORDS,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self._encode, self._max_words, self._max_characters = encode, max_words, max_characters
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._numbers, self._characters = _Numbers(), 0
        self._pieces = np.zeros(0, np.uint32)
        self._starts, self._lengths = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def encode(self, texts: Sequence[str]) -> tuple[U32, I64]:
        """Texts to ids uint32 [T] and offsets int64 [n + 1]."""
        if not texts:
            return np.zeros(0, np.uint32), np.zeros(1, np.int64)
        words = " ".join(texts).split(" ")
        word_counts = np.fromiter((text.count(" ") + 1 for text in texts), np.int64, len(texts))
        with self._lock:
            numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
            self._learn()
            lengths = self._lengths[numbers]
            ids = self._pieces[ranges(self._starts[numbers], lengths)]
            if len(self._numbers) > self._max_words or self._characters > self._max_characters:
                self._forget()
        return ids, offsets_of(lengths)[offsets_of(word_counts)]

    def _learn(self) -> None:
        """Encode the words that are new. If that fails, they stay new, and nothing is half known."""
        new = self._numbers.new
        if not new:
            return
        pieces, offsets = self._encode(new)
        starts = np.concatenate([self._starts, offsets[:-1] + len(self._pieces)])
        lengths = np.concatenate([self._lengths, np.diff(offsets)])
        pieces = np.concatenate([self._pieces, pieces])
        self._characters += sum(map(len, new))
        self._starts, self._lengths, self._pieces = starts, lengths, pieces
        new.clear()
