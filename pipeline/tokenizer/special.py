"""Names of special tokens in the families' vocabularies, and tokens that start a word."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core.words import UNSPACED_LETTER

# each role's names in the families' vocabularies, in search order
SPECIAL_NAMES = {
    "pad": ("[PAD]", "<pad>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
}
# T5 has no [CLS] and [MASK]; a vocabulary with its first sentinel uses these for them
T5_NAMES = {"cls": ("<pad>",), "mask": ("<extra_id_0>",)}
SENTINEL = "<extra_id_0>"
END_OF_TEXT = "<|endoftext|>"  # GPT-2's only special token; it has every role that no other has
# the first four have ids 0 to 3, the mask is last: fairseq
ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # ids 0 to 4
METASPACE = "▁"


def special_names(vocab: Collection[str]) -> dict[str, str]:
    """Return each role's token: the first of its names in the vocabulary, else BERT's."""
    others = T5_NAMES if SENTINEL in vocab else {}
    if END_OF_TEXT in vocab and not any(name in vocab for name in SPECIAL_NAMES["cls"]):
        others = dict.fromkeys(SPECIAL_NAMES, (END_OF_TEXT,))
    return {
        role: next((name for name in (*names, *others.get(role, ())) if name in vocab), names[0])
        for role, names in SPECIAL_NAMES.items()
    }


def flatten_sequence(part: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of a normalizer or pre-tokenizer in a `tokenizer.json`, flattened."""
    if part is None:
        return
    if part["type"] == "Sequence":
        for inner in part.get("normalizers", part.get("pretokenizers", ())):
            yield from flatten_sequence(inner)
    else:
        yield part


def word_starts(
    description: Mapping[str, Any], vocab: Mapping[str, int], size: int, special: Collection[str]
) -> npt.NDArray[np.bool_]:
    """Return the tokens that start a word: bool [size].

    WordPiece: tokens without `##`. Punctuation marks are words of their own, as BERT's
    pre-tokenizer splits them.

    Byte-level BPE: tokens whose text begins with white space (`Ġ`, `Ċ` and similar), as fairseq's
    `is_beginning_of_word` for GPT-2. So words are the text between spaces: a comma continues the
    word before it, and text continues an opening bracket. The first token of a text follows no
    space and looks like a continuation. Callers that build rows therefore encode texts as following
    a space, and treat the token after a special token as a start.

    Unigram: tokens that begin with `▁`, so again the text between spaces. In google-research/albert
    a lone punctuation mark starts a word, too, and the letters after it belong to that word.

    Scripts without spaces: in BPE and Unigram a token that begins with one of their letters starts
    a word, as in google-research/albert (_is_start_piece_sp).

    Special tokens are words, except Unigram's <unk>, which stands for some characters of a word. If
    a vocabulary marks no word starts (other models), every token is a word.
    """
    prefix = description["model"].get("continuing_subword_prefix")
    is_byte_level = any(
        step["type"] == "ByteLevel" for step in flatten_sequence(description.get("pre_tokenizer"))
    )
    starts = np.zeros(size, np.bool_)
    unspaced: list[int] = []
    for piece, number in vocab.items():
        if prefix:
            is_start = not piece.startswith(prefix)
        else:
            text = decode_byte_piece(piece) if is_byte_level else piece
            is_start = text[:1].isspace() if is_byte_level else text.startswith(METASPACE)
            if UNSPACED_LETTER.match(text):
                unspaced.append(number)
        starts[number] = is_start and piece not in special
    if not starts.any():
        starts[:] = True
    starts[unspaced] = True
    starts[[vocab[token] for token in special if token in vocab]] = True
    if description["model"]["type"] == "Unigram" and description["model"]["unk_id"] is not None:
        starts[description["model"]["unk_id"]] = False
    return starts


def decode_byte_piece(piece: str) -> str:
    """Return the text of a byte-level token; incomplete characters become U+FFFD."""
    table = _bytes()
    if any(character not in table for character in piece):
        return piece
    return bytes(table[character] for character in piece).decode("utf-8", "replace")


@lru_cache(maxsize=1)
def _bytes() -> dict[str, int]:
    """Return GPT-2's byte alphabet (openai/gpt-2, encoder.py, bytes_to_unicode).

    Visible bytes map to themselves, the others to characters from U+0100.
    """
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {
        chr(256 + number): byte for number, byte in enumerate(hidden)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Ids of the special tokens. RoBERTa's <s> and </s> are `cls` and `sep`.

    T5 begins texts with no token: `cls` is then `pad`, and `mask` the first sentinel. In GPT-2's
    own vocabulary all are the end of a text; attention hides the padding.
    """

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int

    @property
    def begins(self) -> tuple[int, ...]:
        """Ids before a text: [CLS], or none (T5)."""
        return () if self.cls == self.pad else (self.cls,)

    @property
    def ids(self) -> tuple[int, ...]:
        return (self.pad, self.unk, self.cls, self.sep, self.mask)
