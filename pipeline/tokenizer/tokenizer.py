"""What every stage sees of a tokenizer: text in, ids out, which ids are special, which pieces open a word.

The work is done by Hugging Face tokenizers; this class fixes what training data must not depend on: text never
makes a special token (a corpus that says "[MASK]" has three pieces there), and nothing is truncated or padded.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from pipeline.core.artifact import canonical_json
from pipeline.core.errors import DataError
from pipeline.core.ragged import I64, offsets_of
from pipeline.tokenizer.saving import save
from pipeline.tokenizer.special import SPECIAL_NAMES, SpecialTokens, leaves, word_starts
from pipeline.tokenizer.word_cache import WordMemory, cuts_of

BATCH = 4096  # texts that the backend encodes at once: its encodings are some 100 bytes a piece
GROUP = 256  # words that share an encoding
WORTH_A_MEMORY = 64  # fewer texts are encoded directly: touching the table would cost more than it saves

U32 = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer with its special tokens resolved.

    Attributes:
        backend: as its files say, special tokens in the text recognized; for inference.
        vocab_size: V, the largest id + 1.
        special: the ids of the five special tokens.
        word_start: bool [V], whether a piece opens a word: see `special.word_starts` for what a word is to each kind.
    """

    backend: tokenizers.Tokenizer
    vocab_size: int
    special: SpecialTokens
    word_start: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, name: str) -> Tokenizer:
        """Wrap `backend`; `name` is the file it came from, for messages.

        Raises:
            DataError: its vocabulary is empty or lacks a special token.
        """
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        if not vocab:
            raise DataError(f"{name} holds an empty vocabulary; point to a tokenizer that has pieces")
        found = {}
        for role, names in SPECIAL_NAMES.items():
            present = [token for token in names if token in vocab]
            if not present:
                raise DataError(
                    f"{name} has no {names[0]} token (nor {names[1]}); use a tokenizer made for masked language models"
                )
            found[role] = present[0]
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        backend.add_special_tokens([token for token in found.values() if token not in added])
        backend.no_truncation()
        backend.no_padding()
        size = max(vocab.values()) + 1
        return cls(
            backend=backend,
            vocab_size=size,
            special=SpecialTokens(**{role: vocab[token] for role, token in found.items()}),
            word_start=word_starts(json.loads(backend.to_str()), vocab, size, set(found.values())),
        )

    @cached_property
    def _description(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.backend.to_str())
        return content

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the canonical `tokenizer.json`: equal for tokenizers that do the same."""
        return hashlib.sha256(canonical_json(self._description).encode()).hexdigest()

    @cached_property
    def lowercase(self) -> bool:
        """Whether its normalizer lowercases."""
        steps = leaves(self._description.get("normalizer"))
        return any(step["type"] == "Lowercase" or step.get("lowercase", False) for step in steps)

    @cached_property
    def kind(self) -> str:
        """wordpiece | bpe | unigram | wordlevel: the model that cuts words into pieces."""
        return str(self._description["model"]["type"]).lower()

    @cached_property
    def _text_backend(self) -> tokenizers.Tokenizer:
        """A copy that takes the names of special tokens in text as the text they are."""
        literal = tokenizers.Tokenizer.from_str(self.backend.to_str())
        literal.encode_special_tokens = True
        return literal

    @cached_property
    def _memory(self) -> WordMemory | None:
        """The shortcut for tokenizers whose pieces never depend on anything beyond a space; else None."""
        cuts = cuts_of(self._description)
        return WordMemory(self._encode_words, self.encode_directly, cuts) if cuts else None

    def _encode_words(self, words: Sequence[str]) -> tuple[U32, I64]:
        """`encode_directly` for many short texts, at half its cost: 256 of them share one encoding."""
        pieces, lengths = [np.zeros(0, np.uint32)], np.zeros(len(words), np.int64)
        for start in range(0, len(words), GROUP):
            group = list(words[start : start + GROUP])
            encoding = self._text_backend.encode(group, add_special_tokens=False, is_pretokenized=True)
            lengths[start : start + len(group)] = np.bincount(np.array(encoding.word_ids, np.int64), minlength=len(group))
            pieces.append(np.array(encoding.ids, np.uint32))
        return np.concatenate(pieces), offsets_of(lengths)

    def encode_flat(self, texts: Sequence[str], after_space: Flags | None = None) -> tuple[U32, I64]:
        """The pieces of every text, end to end, without special tokens.

        Args:
            texts: n of them.
            after_space: bool [n], which texts go on behind a space, as the sentences of a document do behind the first: they
                are encoded as `" " + text`. A byte-level BPE writes a word otherwise there (`Ġthe`) than at the
                beginning (`the`). None: no text does.

        Returns:
            ids uint32 [T] and offsets int64 [n + 1]: text i has ids[offsets[i]:offsets[i + 1]].
        """
        if self._memory is None or len(texts) < WORTH_A_MEMORY:
            return self.encode_directly(texts, after_space)
        return self._memory.encode(texts, after_space)

    def encode_directly(self, texts: Sequence[str], after_space: Flags | None = None) -> tuple[U32, I64]:
        """`encode_flat` by the backend alone, which remembers nothing: the reference that the shortcut must equal."""
        if after_space is not None:
            texts = [f" {text}" if behind else text for text, behind in zip(texts, after_space.tolist(), strict=True)]
        pieces, lengths = [np.zeros(0, np.uint32)], np.zeros(len(texts), np.int64)
        for start in range(0, len(texts), BATCH):
            encodings = self._text_backend.encode_batch_fast(list(texts[start : start + BATCH]), add_special_tokens=False)
            ids = [encoding.ids for encoding in encodings]
            sizes = np.fromiter(map(len, ids), np.int64, len(ids))
            lengths[start : start + len(ids)] = sizes
            pieces.append(np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(sizes.sum())))
        return np.concatenate(pieces), offsets_of(lengths)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The pieces of every text, without special tokens."""
        ids, offsets = self.encode_flat(texts)
        return [ids[start:end].tolist() for start, end in itertools.pairwise(offsets.tolist())]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], I64]]:
        """The pieces of every text, without special tokens, and the characters of each, from and to, int64 [pieces, 2].

        Blanks that belong to a piece (`Ġthe`) are not among its characters. `text[from:to]` is what stands in the text, whatever the
        tokenizer makes of it.
        """
        found = []
        for start in range(0, len(texts), BATCH):
            part = list(texts[start : start + BATCH])
            for text, encoding in zip(part, self._text_backend.encode_batch(part, add_special_tokens=False), strict=True):
                trimmed = [_trimmed(text, begin, end) for begin, end in encoding.offsets]
                found.append((list(encoding.ids), np.array(trimmed, dtype=np.int64).reshape(-1, 2)))
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        text: str = self.backend.decode([int(token) for token in ids], skip_special_tokens=True)
        return text

    def save(self, directory: str) -> None:
        """Write what `load` and transformers' `AutoTokenizer` open: the same bytes for equal tokenizers."""
        save(self.backend, self._description, self.special, directory)


def _trimmed(text: str, begin: int, end: int) -> tuple[int, int]:
    """A part of a text without the blanks around it; empty at its end where there are only blanks."""
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end
