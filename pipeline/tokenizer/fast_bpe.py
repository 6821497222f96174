"""Byte-level BPE by gigatoken (extra `fast`), where it is installed and gives the same ids.

The dataset stage takes a fifth less CPU time. The package is young, so it has to agree with the
tokenizer's own encoder on a probe; otherwise the word cache is used. Of each call one text in
`SAMPLE` is encoded by both. If one differs, the own encoder encodes all texts of the call.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cloze.core.ragged import I64, Ragged, offsets_of

U32 = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]
Encode = Callable[[Sequence[str]], tuple[U32, I64]]

# Its cache of words has no limit, and takes ten bytes a character of rare words. So it is built
# anew, in .1 s, after this many characters.
MAX_CHARACTERS = 1 << 26
SAMPLE = 512  # texts for each that both encode: less than 2 % of the dataset stage
_LOGGER = logging.getLogger(__name__)
PROBE = (
    "", " ", "  two  blanks ", "a\n\n b\t\u00a0c\u2003 d", "It's they'll I'M", "3.14 ²³ Ⅷ 12345",
    "naïve cafe\u0301 x\u0301 \u0301", "Ελλάδα Россия Հայաստան საქართველო", "ישראל العربية ܣܘܪܝܝܐ",
    "हिन्दी বাংলা தமிழ் ไทยน\u0e33", "བོད་ཡིག မြန်မာ", "日本語のテキスト、中文。", "한국어 \u3000",
    "😀 👩\u200d👩\u200d👧 🏳\ufe0f \ufeff", "<mask> <s>x</s> <pad>", "\x00\x01\x7f\x85", "a" * 300,
)  # fmt: skip


class FastBpe:
    """Encodes like `WordCache`; thread-safe."""

    def __init__(self, build: Callable[[], Any], reference: Encode) -> None:
        self._build, self._lock, self._reference = build, threading.Lock(), reference
        # differing: texts of calls in which `reference` gave other ids, which are the result
        self._inner, self._characters, self.differing = build(), 0, 0

    def encode(self, texts: Sequence[str], after_space: Flags | None = None) -> tuple[U32, I64]:
        """Return ids uint32 [T] and offsets int64 [n + 1]; see `Tokenizer.encode_flat`."""
        if after_space is not None:
            texts = [
                f" {text}" if follows else text
                for text, follows in zip(texts, after_space.tolist(), strict=True)
            ]
        encoded = self.encode_unchecked(texts)
        if _are_equal(encoded, self._reference(texts[::SAMPLE]), step=SAMPLE):
            return encoded
        with self._lock:
            self.differing += len(texts)
        _LOGGER.warning("gigatoken gives other ids than the tokenizer, which encodes instead")
        return self._reference(texts)

    def encode_unchecked(self, texts: Sequence[str]) -> tuple[U32, I64]:
        """Return what gigatoken gives."""
        with self._lock:
            if self._characters > MAX_CHARACTERS:
                self._inner, self._characters = self._build(), 0
            self._characters += sum(map(len, texts))
            layout = self._inner.encode_batch(list(texts), parallel=False).layout
        ends = np.asarray(layout.offsets, np.int64)
        ids = np.asarray(layout.content.data, np.uint32)[ends[0] : ends[-1]]
        return ids, offsets_of(np.diff(ends))


def _are_equal(found: tuple[U32, I64], expected: tuple[U32, I64], step: int = 1) -> bool:
    """Return whether every `step`-th text of `found` has the ids of `expected`."""
    sampled = Ragged(*found).take(np.arange(0, len(found[1]) - 1, step))
    ids, offsets = expected
    return np.array_equal(sampled.values, ids) and np.array_equal(sampled.offsets, offsets)


def fast_bpe(description: Mapping[str, Any], literal: str, reference: Encode) -> FastBpe | None:
    """Return an encoder for a byte-level BPE as GPT-2's; None if there is none with the same ids.

    Args:
        description: the parsed `tokenizer.json`, which `word_split_rule` splits before blanks.
        literal: `tokenizer.json` in which special tokens are plain text.
        reference: encodes the probe and the samples.
    """
    prefixed = description["pre_tokenizer"].get("add_prefix_space")
    if description.get("normalizer") or prefixed is not False:
        return None
    try:
        import gigatoken

        encoder = FastBpe(lambda: gigatoken.Tokenizer.from_json(literal), reference)
        is_same = _are_equal(encoder.encode_unchecked(PROBE), reference(PROBE))
    except Exception:  # not installed, or another version: whatever it raises, ours encodes
        return None
    return encoder if is_same else None
