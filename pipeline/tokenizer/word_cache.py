"""A cache of words and their tokens, with exactly the results of the uncached tokenizer.

If a tokenizer never joins text across a space, the tokens of a text are those of its segments
between spaces, concatenated. Words repeat (Zipf), so the cache answers all but a few per cent of
the segments by a dictionary look-up and a gather in numpy. `word_split_rule` decides for which
tokenizers this is true, and why.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cloze.core.ragged import I64, offsets_of, ranges
from cloze.pipeline.tokenizer.special import flatten_sequence

U32 = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

MAX_WORDS = 1 << 18
MAX_CHARACTERS = 1 << 23  # of all cached words; at most about 75 MB with their tokens and the table

# Normalizers that work on single characters and the marks after them, and so never across a space.
LOCAL = {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase"}
# the local normalizers that neither create nor remove white space
BLANK_PRESERVING = {"NFC", "NFD", "Lowercase"}


# How a tokenizer's text can be split at spaces:
#   plain: a segment is encoded without its space.
#   marks: as plain, but texts are encoded whole if a segment begins or ends with a character that
#       might form a unit with a space.
#   blanks: a segment is encoded with the space before it, unless it starts the text. Texts with a
#       space inside a run of white space are encoded whole.
WordSplit = Literal["plain", "marks", "blanks"]


def word_split_rule(description: Mapping[str, Any]) -> WordSplit | None:
    """Return how to split text for the tokenizer in a `tokenizer.json`; None if none is proven.

    BertPreTokenizer, and WhitespaceSplit before Metaspace (ALBERT), split at every space and drop
    it. Their normalizers are local, except SentencePiece's own (Precompiled). It maps grapheme
    clusters, such as a space with the accent after it. So texts whose segments begin or end with
    such characters are encoded whole.

    GPT-2's pre-tokenizer splits before a space unless the space is in a run of white space. No
    alternative of its regex continues from visible characters to white space, and the space before
    a visible character is always left to that character. So a split is safe if the character before
    or after the space is visible.

    A model encodes each output of the pre-tokenizer alone, unless it is random (dropout). Added
    tokens that are not special are searched in the whole text.
    """
    if not all(token["special"] for token in description["added_tokens"]) or description[
        "model"
    ].get("dropout"):
        return None
    normalizers = list(flatten_sequence(description.get("normalizer")))
    splitters = list(flatten_sequence(description.get("pre_tokenizer")))
    kinds = [step["type"] for step in splitters]
    if kinds == ["ByteLevel"] and splitters[0].get("use_regex", True):
        return "blanks" if all(step["type"] in BLANK_PRESERVING for step in normalizers) else None
    if kinds == ["WhitespaceSplit", "Metaspace"] and splitters[1]["prepend_scheme"] in (
        "always",
        "never",
    ):
        pass
    elif kinds != ["BertPreTokenizer"]:
        return None
    if not all(_is_local(step) for step in normalizers):
        return None
    return "marks" if any(step["type"] == "Precompiled" for step in normalizers) else "plain"


def _is_local(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        if step["pattern"] == {"Regex": " {2,}"}:
            return bool(step["content"] == " ")
        return " " not in step["pattern"].get("String", " ")
    return step["type"] in LOCAL or step["type"] == "Precompiled"


class _Numbers(dict[str, int]):
    """Numbers words in the order of their first look-up, and lists the new ones."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[str] = []

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        self.new.append(word)
        return number


class WordCache:
    """Encodes like `encode`, which is called only for segments that are not cached.

    A full cache is cleared; results do not depend on the cache's state. Thread-safe.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], tuple[U32, I64]],
        whole: Callable[[Sequence[str]], tuple[U32, I64]] | None = None,
        split: WordSplit = "plain",
        max_words: int = MAX_WORDS,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self._encode, self._whole, self._split = encode, whole or encode, split
        self._max_words, self._max_characters = max_words, max_characters
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._numbers, self._characters = _Numbers(), 0
        self._tokens = np.zeros(0, np.uint32)
        self._starts, self._lengths = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._front, self._back = np.zeros(0, np.bool_), np.zeros(0, np.bool_)

    def encode(self, texts: Sequence[str], after_space: Flags | None = None) -> tuple[U32, I64]:
        """Return ids uint32 [T] and offsets int64 [n + 1]; see `Tokenizer.encode_flat`."""
        if not texts:
            return np.zeros(0, np.uint32), np.zeros(1, np.int64)
        words = " ".join(texts).split(" ")
        texts_at = offsets_of(
            np.fromiter(map(str.count, texts, itertools.repeat(" ")), np.int64, len(texts)) + 1
        )
        # segments have no spaces: a leading one marks the start of a text
        if self._split == "blanks":
            text_starts = texts_at[:-1] if after_space is None else texts_at[:-1][~after_space]
            for index in text_starts.tolist():
                words[index] = " " + words[index]
        with self._lock:
            numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
            self._learn()
            lengths, starts = self._lengths[numbers], self._starts[numbers]
            uncut = self._not_cut(numbers, texts_at)
            if len(uncut):
                uncut_segments = ranges(texts_at[uncut], np.diff(texts_at)[uncut])
                lengths[uncut_segments] = 0
            ids, offsets = self._tokens[ranges(starts, lengths)], offsets_of(lengths)[texts_at]
            if len(self._numbers) > self._max_words or self._characters > self._max_characters:
                self._forget()
        return (
            self._insert(ids, offsets, texts, after_space, uncut) if len(uncut) else (ids, offsets)
        )

    def _not_cut(self, numbers: I64, texts_at: I64) -> I64:
        """Return the indices of texts that must be encoded whole."""
        if self._split == "plain":
            return np.zeros(0, np.int64)
        if self._split == "marks":
            segments = np.flatnonzero(self._front[numbers] | self._back[numbers])
        else:
            adjoin = self._back[numbers[:-1]] & self._front[numbers[1:]]
            adjoin[texts_at[1:-1] - 1] = False  # from one text to the next
            segments = np.flatnonzero(adjoin)
        return np.unique(np.searchsorted(texts_at, segments, "right") - 1)

    def _insert(
        self, ids: U32, offsets: I64, texts: Sequence[str], after_space: Flags | None, whole: I64
    ) -> tuple[U32, I64]:
        """Insert the tokens of the texts that are encoded whole."""
        follows_space = np.zeros(len(texts), np.bool_) if after_space is None else after_space
        new_ids, new_offsets = self._whole(
            [" " * bool(follows_space[number]) + texts[number] for number in whole.tolist()]
        )
        starts, lengths = offsets[:-1].copy(), np.diff(offsets)
        starts[whole], lengths[whole] = len(ids) + new_offsets[:-1], np.diff(new_offsets)
        return np.concatenate([ids, new_ids])[ranges(starts, lengths)], offsets_of(lengths)

    def _learn(self) -> None:
        """Encode the new words; after an error they stay new, and the cache is consistent."""
        new = self._numbers.new
        if not new:
            return
        segments = (
            [word[1:] if word.startswith(" ") else " " + word for word in new]
            if self._split == "blanks"
            else new
        )
        tokens, offsets = self._encode(segments)
        front, back = self._edges(new)
        starts = np.concatenate([self._starts, offsets[:-1] + len(self._tokens)])
        lengths = np.concatenate([self._lengths, np.diff(offsets)])
        tokens = np.concatenate([self._tokens, tokens])
        front, back = np.concatenate([self._front, front]), np.concatenate([self._back, back])
        self._characters += sum(map(len, new))
        self._starts, self._lengths, self._tokens = starts, lengths, tokens
        self._front, self._back = front, back
        new.clear()

    def _edges(self, words: Sequence[str]) -> tuple[Flags, Flags]:
        """Return whether the first and the last character of each word matches `but`.

        An empty word counts as white space.
        """
        matches = str.isspace if self._split == "blanks" else _may_join
        is_empty_match = self._split == "blanks"
        segments = [word.removeprefix(" ") for word in words]
        front = [matches(segment[0]) if segment else is_empty_match for segment in segments]
        back = [matches(segment[-1]) if segment else is_empty_match for segment in segments]
        return np.array(front, np.bool_), np.array(back, np.bool_)


def _may_join(character: str) -> bool:
    """Return whether a character might share a grapheme cluster with an adjacent space.

    True unless known otherwise. Unicode 15, GraphemeBreakProperty.txt: nothing below U+0300 and
    none of these General Punctuation characters extends or prepends.
    """
    return not (
        character < "\u0300"
        or "\u2010" <= character <= "\u2027"
        or "\u2030" <= character <= "\u205e"
    )
