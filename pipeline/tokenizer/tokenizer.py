"""The tokenizer that all stages use: text to ids, special tokens, word starts."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from cloze.core.artifacts.artifact import canonical_json
from cloze.core.errors import DataError
from cloze.core.ragged import I64, offsets_of
from cloze.pipeline.tokenizer.backends import PairFrame, literal_backend, pair_frame
from cloze.pipeline.tokenizer.fast_bpe import FastBpe, fast_bpe
from cloze.pipeline.tokenizer.saving import save
from cloze.pipeline.tokenizer.special import (
    SPECIAL_NAMES,
    SpecialTokens,
    flatten_sequence,
    special_names,
    word_starts,
)
from cloze.pipeline.tokenizer.word_cache import WordCache, word_split_rule

# The tokenizer with its special tokens, word starts and encoders.

BATCH = 4096  # texts per call of the backend: encodings need some 100 bytes per token
GROUP = 256  # words that share an encoding
# fewer texts are encoded directly, because a cache look-up would cost more than it saves
MIN_CACHED_TEXTS = 64

U32 = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A tokenizer with its special tokens resolved."""

    # tokenizer as its files define it, which recognises special tokens in text
    backend: tokenizers.Tokenizer
    vocab_size: int  # V, the largest id + 1
    special: SpecialTokens  # ids of the five special tokens
    pair_frame: PairFrame  # special tokens around a pair of texts
    # bool [V], tokens that start a word; `special.word_starts` defines words
    word_start: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, name: str) -> Tokenizer:
        """Wrap `backend`; `name` is its file, for messages.

        Raises:
            DataError: the vocabulary is empty or lacks a special token.
        """
        vocab: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        if not vocab:
            raise DataError(f"{name} has an empty vocabulary; point to a tokenizer that has pieces")
        role_tokens = special_names(vocab)
        for role, token in role_tokens.items():
            if token not in vocab:
                raise DataError(
                    f"{name} has no {token} token (nor {SPECIAL_NAMES[role][1]}); use a tokenizer "
                    f"made for masked language models"
                )
        added = {token.content for token in backend.get_added_tokens_decoder().values()}
        backend.add_special_tokens([token for token in role_tokens.values() if token not in added])
        backend.no_truncation()
        backend.no_padding()
        size = max(vocab.values()) + 1
        return cls(
            backend=backend,
            vocab_size=size,
            special=SpecialTokens(**{role: vocab[token] for role, token in role_tokens.items()}),
            pair_frame=pair_frame(backend, role_tokens),
            word_start=word_starts(
                json.loads(backend.to_str()), vocab, size, set(role_tokens.values())
            ),
        )

    def frame_size(self, *, pair: bool) -> int:
        """Return the number of special tokens around a text or a pair."""
        return len(self.special.begins) + 1 + pair * len(self.pair_frame.separator)

    @cached_property
    def description(self) -> dict[str, Any]:
        """The parsed `tokenizer.json`."""
        content: dict[str, Any] = json.loads(self.backend.to_str())
        return content

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of the canonical `tokenizer.json`: equal for equivalent tokenizers."""
        return hashlib.sha256(canonical_json(self.description).encode()).hexdigest()

    @cached_property
    def lowercase(self) -> bool:
        """Return whether the normalizer lowercases text."""
        steps = flatten_sequence(self.description.get("normalizer"))
        return any(step["type"] == "Lowercase" or step.get("lowercase", False) for step in steps)

    @cached_property
    def strips_accents(self) -> bool:
        """Return whether the normalizer strips accents, and so the vowel signs of other scripts."""
        steps = list(flatten_sequence(self.description.get("normalizer")))
        bert_steps = [step for step in steps if step["type"] == "BertNormalizer"]
        return any(step["type"] == "StripAccents" for step in steps) or any(
            step["lowercase"] if step["strip_accents"] is None else step["strip_accents"]
            for step in bert_steps
        )

    @cached_property
    def kind(self) -> str:
        """The model type: wordpiece, bpe, unigram or wordlevel."""
        return str(self.description["model"]["type"]).lower()

    @cached_property
    def _text_backend(self) -> tokenizers.Tokenizer:
        """A copy of the backend for which names of special tokens in text are plain text."""
        return literal_backend(self.description, self.special.ids)

    def backend_naming(self, names: Collection[str]) -> tokenizers.Tokenizer:
        """Return a backend that recognises `names` alone: a mask to fill, sentinels of spans."""
        return literal_backend(self.description, self.special.ids, names)

    @cached_property
    def _memory(self) -> WordCache | FastBpe | None:
        """The encoder of many texts, for tokenizers that never join across a space; else None."""
        rule = word_split_rule(self.description)
        if rule == "blanks":
            literal = self._text_backend.to_str()
            if fast := fast_bpe(self.description, literal, self.encode_uncached):
                return fast
        return WordCache(self._encode_words, self.encode_uncached, rule) if rule else None

    @property
    def differing_texts(self) -> int:
        """Texts that gigatoken was not trusted with, since a sample differed; see `FastBpe`."""
        return self._memory.differing if isinstance(self._memory, FastBpe) else 0

    def _encode_words(self, words: Sequence[str]) -> tuple[U32, I64]:
        """Encode many short texts, 256 per encoding, at half the cost of `encode_uncached`."""
        pieces, lengths = [np.zeros(0, np.uint32)], np.zeros(len(words), np.int64)
        for start in range(0, len(words), GROUP):
            group = list(words[start : start + GROUP])
            encoding = self._text_backend.encode(
                group, add_special_tokens=False, is_pretokenized=True
            )
            lengths[start : start + len(group)] = np.bincount(
                np.array(encoding.word_ids, np.int64), minlength=len(group)
            )
            pieces.append(np.array(encoding.ids, np.uint32))
        return np.concatenate(pieces), offsets_of(lengths)

    def encode_flat(
        self, texts: Sequence[str], after_space: Flags | None = None
    ) -> tuple[U32, I64]:
        """Return the tokens of all texts, concatenated, without special tokens.

        Args:
            texts: n texts.
            after_space: bool [n], texts that follow a space, as all sentences of a document but the
                first do. They are encoded as `" " + text`: a byte-level BPE encodes a word
                differently after a space (`Ġthe`) and at the start (`the`). None: no text does.

        Returns:
            ids uint32 [T] and offsets int64 [n + 1]: text i has ids[offsets[i]:offsets[i + 1]].
        """
        if self._memory is None or len(texts) < MIN_CACHED_TEXTS:
            return self.encode_uncached(texts, after_space)
        return self._memory.encode(texts, after_space)

    def encode_uncached(
        self, texts: Sequence[str], after_space: Flags | None = None
    ) -> tuple[U32, I64]:
        """Implement `encode_flat` without the cache; results must be equal."""
        if after_space is not None:
            texts = [
                f" {text}" if follows_space else text
                for text, follows_space in zip(texts, after_space.tolist(), strict=True)
            ]
        pieces, lengths = [np.zeros(0, np.uint32)], np.zeros(len(texts), np.int64)
        for start in range(0, len(texts), BATCH):
            encodings = self._text_backend.encode_batch_fast(
                list(texts[start : start + BATCH]), add_special_tokens=False
            )
            ids = [encoding.ids for encoding in encodings]
            sizes = np.fromiter(map(len, ids), np.int64, len(ids))
            lengths[start : start + len(ids)] = sizes
            pieces.append(
                np.fromiter(itertools.chain.from_iterable(ids), np.uint32, int(sizes.sum()))
            )
        return np.concatenate(pieces), offsets_of(lengths)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, without special tokens."""
        ids, offsets = self.encode_flat(texts)
        return [ids[start:end].tolist() for start, end in itertools.pairwise(offsets.tolist())]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], I64]]:
        """Return the tokens of every text, not special ones, and their spans, int64 [tokens, 2].

        A span is the start and end in characters; a token's spaces (`Ġthe`) are excluded.
        `text[start:end]` is the original text, before normalization.
        """
        encoded = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            for text, encoding in zip(
                batch, self._text_backend.encode_batch(batch, add_special_tokens=False), strict=True
            ):
                trimmed = [_trimmed(text, begin, end) for begin, end in encoding.offsets]
                encoded.append(
                    (list(encoding.ids), np.array(trimmed, dtype=np.int64).reshape(-1, 2))
                )
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of `ids` without special tokens."""
        text: str = self.backend.decode([int(token) for token in ids], skip_special_tokens=True)
        return text

    def save(self, directory: str) -> None:
        """Write files for `load` and transformers' `AutoTokenizer`; equal for equal tokenizers."""
        save(self.backend, self.special, self.pair_frame, directory)


def _trimmed(text: str, begin: int, end: int) -> tuple[int, int]:
    """Return the span without surrounding white space; an empty span at its end if all is white."""
    while begin < end and text[begin].isspace():
        begin += 1
    while begin < end and text[end - 1].isspace():
        end -= 1
    return begin, end
