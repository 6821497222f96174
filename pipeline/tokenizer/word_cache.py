"""The tokenizer's shortcut: a word that was cut into pieces once is not cut again.

Where a tokenizer's pieces never depend on anything beyond a space, the pieces of a text are those of its stretches between spaces,
end to end. Text repeats its words (Zipf), so a table from such stretches to their pieces answers all but a few per cent of
them, and what remains is a dictionary look-up and a gather in numpy. The result is exactly the backend's.
`cuts_of` says for which tokenizers that holds, and why.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from pipeline.core.ragged import I64, offsets_of, ranges
from pipeline.tokenizer.special import leaves

U32 = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

MAX_WORDS = 1 << 18
MAX_CHARACTERS = 1 << 23  # of all remembered words; with their pieces and the table, some 75 MB at most

# Normalizers that work on single characters and the marks behind them, so never across a space, which is neither.
LOCAL = {"BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "StripAccents", "Lowercase"}
# Of these, the ones that make no white space and remove none.
KEEPS_BLANKS = {"NFC", "NFD", "Lowercase"}


@dataclass(frozen=True, slots=True)
class Cuts:
    """How a tokenizer's text falls apart at spaces.

    Attributes:
        with_space: a stretch is encoded with the space before it, unless it opens the text.
        but: the texts that must be encoded whole: where `blanks` adjoin (a space in the middle of a run of white space), where
            a stretch begins or ends with a `mark` (a character that might form one unit with a space), or none.
    """

    with_space: bool
    but: Literal["none", "blanks", "marks"]


def cuts_of(description: Mapping[str, Any]) -> Cuts | None:
    """The cuts of the tokenizer that a `tokenizer.json` describes; None where they are not proven.

    BertPreTokenizer, and WhitespaceSplit before Metaspace (ALBERT), cut at every space and drop it. Their normalizers
    are local, but for SentencePiece's own (Precompiled), which maps clusters of characters, as a space and the mark
    of an accent behind it are one; so texts whose stretches begin or end with such characters are encoded whole.

    GPT-2's pre-tokenizer cuts before a space unless the space lies in a run of white space: no alternative of its
    expression goes from visible characters on to white space, and the space before a visible one is always left to it. So a cut is
    right where the character before or behind the space is visible.

    A model cuts what the pre-tokenizer gives it, each alone, unless it draws at random (dropout). Added tokens that
    are no special ones are searched for in the whole text.
    """
    if not all(token["special"] for token in description["added_tokens"]) or description["model"].get("dropout"):
        return None
    normalizers = list(leaves(description.get("normalizer")))
    splitters = list(leaves(description.get("pre_tokenizer")))
    kinds = [step["type"] for step in splitters]
    if kinds == ["ByteLevel"] and splitters[0].get("use_regex", True):
        return Cuts(True, "blanks") if all(step["type"] in KEEPS_BLANKS for step in normalizers) else None
    if kinds == ["WhitespaceSplit", "Metaspace"] and splitters[1]["prepend_scheme"] in ("always", "never"):
        pass
    elif kinds != ["BertPreTokenizer"]:
        return None
    if not all(_is_local(step) for step in normalizers):
        return None
    return Cuts(False, "marks" if any(step["type"] == "Precompiled" for step in normalizers) else "none")


def _is_local(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Replace":
        if step["pattern"] == {"Regex": " {2,}"}:
            return bool(step["content"] == " ")
        return " " not in step["pattern"].get("String", " ")
    return step["type"] in LOCAL or step["type"] == "Precompiled"


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
    """Encodes like `encode`, asking it only for stretches between spaces that are not remembered.

    The memory forgets all when it is full. Nothing of it shows in the results. Safe to use from several threads.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[str]], tuple[U32, I64]],
        whole: Callable[[Sequence[str]], tuple[U32, I64]] | None = None,
        cuts: Cuts = Cuts(False, "none"),
        max_words: int = MAX_WORDS,
        max_characters: int = MAX_CHARACTERS,
    ) -> None:
        self._encode, self._whole, self._cuts = encode, whole or encode, cuts
        self._max_words, self._max_characters = max_words, max_characters
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._numbers, self._characters = _Numbers(), 0
        self._pieces = np.zeros(0, np.uint32)
        self._starts, self._lengths = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._front, self._back = np.zeros(0, np.bool_), np.zeros(0, np.bool_)

    def encode(self, texts: Sequence[str], after_space: Flags | None = None) -> tuple[U32, I64]:
        """Texts to ids uint32 [T] and offsets int64 [n + 1]; `after_space` as in `Tokenizer.encode_flat`."""
        if not texts:
            return np.zeros(0, np.uint32), np.zeros(1, np.int64)
        words = " ".join(texts).split(" ")
        texts_at = offsets_of(np.fromiter(map(str.count, texts, itertools.repeat(" ")), np.int64, len(texts)) + 1)
        if self._cuts.with_space:  # no stretch holds a space: one in front marks that which opens a text
            opening = texts_at[:-1] if after_space is None else texts_at[:-1][~after_space]
            for place in opening.tolist():
                words[place] = " " + words[place]
        with self._lock:
            numbers = np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))
            self._learn()
            lengths, starts = self._lengths[numbers], self._starts[numbers]
            whole = self._not_cut(numbers, texts_at)
            if len(whole):
                inside = ranges(texts_at[whole], np.diff(texts_at)[whole])
                lengths[inside] = 0
            ids, offsets = self._pieces[ranges(starts, lengths)], offsets_of(lengths)[texts_at]
            if len(self._numbers) > self._max_words or self._characters > self._max_characters:
                self._forget()
        return self._insert(ids, offsets, texts, after_space, whole) if len(whole) else (ids, offsets)

    def _not_cut(self, numbers: I64, texts_at: I64) -> I64:
        """The texts that must be encoded whole."""
        if self._cuts.but == "none":
            return np.zeros(0, np.int64)
        if self._cuts.but == "marks":
            found = np.flatnonzero(self._front[numbers] | self._back[numbers])
        else:
            adjoin = self._back[numbers[:-1]] & self._front[numbers[1:]]
            adjoin[texts_at[1:-1] - 1] = False  # from one text to the next
            found = np.flatnonzero(adjoin)
        return np.unique(np.searchsorted(texts_at, found, "right") - 1)

    def _insert(self, ids: U32, offsets: I64, texts: Sequence[str], after_space: Flags | None, whole: I64) -> tuple[U32, I64]:
        """Put the pieces of the texts that are encoded whole where they belong."""
        behind = np.zeros(len(texts), np.bool_) if after_space is None else after_space
        more, more_offsets = self._whole([" " * bool(behind[number]) + texts[number] for number in whole.tolist()])
        starts, lengths = offsets[:-1].copy(), np.diff(offsets)
        starts[whole], lengths[whole] = len(ids) + more_offsets[:-1], np.diff(more_offsets)
        return np.concatenate([ids, more])[ranges(starts, lengths)], offsets_of(lengths)

    def _learn(self) -> None:
        """Encode the words that are new. If that fails, they stay new, and nothing is half known."""
        new = self._numbers.new
        if not new:
            return
        shown = [word[1:] if word.startswith(" ") else " " + word for word in new] if self._cuts.with_space else new
        pieces, offsets = self._encode(shown)
        front, back = self._edges(new)
        starts = np.concatenate([self._starts, offsets[:-1] + len(self._pieces)])
        lengths = np.concatenate([self._lengths, np.diff(offsets)])
        pieces = np.concatenate([self._pieces, pieces])
        front, back = np.concatenate([self._front, front]), np.concatenate([self._back, back])
        self._characters += sum(map(len, new))
        self._starts, self._lengths, self._pieces, self._front, self._back = starts, lengths, pieces, front, back
        new.clear()

    def _edges(self, words: Sequence[str]) -> tuple[Flags, Flags]:
        """Whether the first and the last character of each word is one that `but` is about. An empty word is all blank."""
        test = str.isspace if self._cuts.but == "blanks" else _may_join
        empty = self._cuts.but == "blanks"
        stretches = [word.removeprefix(" ") for word in words]
        front = np.fromiter((test(stretch[0]) if stretch else empty for stretch in stretches), np.bool_, len(stretches))
        back = np.fromiter((test(stretch[-1]) if stretch else empty for stretch in stretches), np.bool_, len(stretches))
        return front, back


def _may_join(character: str) -> bool:
    """Whether a character might share a grapheme cluster with a space beside it: all but those of which it is known not to.

    Unicode 15, GraphemeBreakProperty.txt: nothing below U+0300 and none of these marks of General Punctuation extends or is prepended.
    """
    return not (character < "\u0300" or "\u2010" <= character <= "\u2027" or "\u2030" <= character <= "\u205e")
