"""Special tokens' names in the families' vocabularies, and which pieces open a word."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

# The names that the families' vocabularies give each role, in the order in which they are looked for.
SPECIAL_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")  # the first four are ids 0 to 3, the mask is the last: fairseq
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
METASPACE = "▁"


def special_names(vocab: Collection[str]) -> dict[str, str]:
    """Each role's token: the first of its names that is in the vocabulary, else BERT's."""
    return {role: next((name for name in names if name in vocab), names[0]) for role, names in SPECIAL_NAMES.items()}


def leaves(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """The steps of a normalizer or pre-tokenizer of a `tokenizer.json`, sequences unpacked."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for inner in part.get("normalizers", part.get("pretokenizers", ())):
            yield from leaves(inner)
    else:
        yield part


def word_starts(
    description: Mapping[str, Any], vocab: Mapping[str, int], size: int, special: Collection[str]
) -> npt.NDArray[np.bool_]:
    """Which pieces open a word: bool [size].

    WordPiece: the pieces without `##`; marks of punctuation are words of their own, as BERT's pre-tokenizer cuts them.

    Byte-level BPE: the pieces whose text begins with white space (`Ġ`, and `Ċ` and its like), as fairseq's
    `is_beginning_of_word` for GPT-2's pieces. So words are those between spaces: a comma continues the word before it,
    and so does what follows an opening bracket. The first piece of a text has no space before it and looks like a continuation:
    whoever puts texts into rows encodes them as following a space, and takes what follows a special token as a start.

    Unigram: the pieces that begin with `▁`, so again the words between spaces. google-research/albert lets
    a lone mark of punctuation open a word too, and then counts the letters behind it as a part of that mark's word.

    Special tokens are words; but Unigram's <unk> stands for some characters of a word, not for the whole as WordPiece's does.
    Where a vocabulary marks nothing (other models), every piece is a word.
    """
    prefix = description["model"].get("continuing_subword_prefix")
    byte_level = any(step["type"] == "ByteLevel" for step in leaves(description.get("pre_tokenizer")))
    starts = np.zeros(size, np.bool_)
    for piece, number in vocab.items():
        if prefix:
            opens = not piece.startswith(prefix)
        elif byte_level:
            opens = text_of(piece)[:1].isspace()
        else:
            opens = piece.startswith(METASPACE)
        starts[number] = opens and piece not in special
    if not starts.any():
        starts[:] = True
    starts[[vocab[token] for token in special if token in vocab]] = True
    if description["model"]["type"] == "Unigram" and description["model"]["unk_id"] is not None:
        starts[description["model"]["unk_id"]] = False
    return starts


def text_of(piece: str) -> str:
    """The text of a byte-level piece; bytes that are no whole character become U+FFFD."""
    table = _bytes()
    if any(character not in table for character in piece):
        return piece
    return bytes(table[character] for character in piece).decode("utf-8", "replace")


@lru_cache(maxsize=1)
def _bytes() -> dict[str, int]:
    """GPT-2's letters of bytes (openai/gpt-2, encoder.py, bytes_to_unicode): visible ones stand for themselves, the rest from U+0100."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + number): byte for number, byte in enumerate(hidden)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Ids of the tokens with a meaning of their own. RoBERTa's <s>, </s> are `cls` and `sep`."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    @property
    def ids(self) -> tuple[int, ...]:
        return (self.pad, self.unk, self.cls, self.sep, self.mask)
