"""Corpus stage: what counts as a word, in scripts with spaces between words and in those without.

Between spaces a word is a run of non-blanks. Chinese characters and kana count as a word each, as in BERT's basic
tokenizer, and so does every run of four letters of Thai, Lao, Khmer, Burmese and Tibetan, which is about a word's
length there. Korean has spaces.
"""

from __future__ import annotations

import re

# Languages that put no space between words.
UNSPACED = frozenset({"zh", "wuu", "yue", "ja", "th", "lo", "km", "my", "bo", "dz"})

_IDEOGRAPHS = "\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_UNSPACED_SCRIPT = re.compile(rf"[{_IDEOGRAPHS}]|[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff]{{4}}")


def count_words(text: str) -> int:
    """The number of words of a text."""
    count = len(text.split())
    if text.isascii():
        return count
    inner = _UNSPACED_SCRIPT.findall(text)
    if not inner:
        return count
    return len(_UNSPACED_SCRIPT.sub(" ", text).split()) + len(inner)


def split_words(text: str) -> list[str]:
    """The words of a text, in their order."""
    if text.isascii() or _UNSPACED_SCRIPT.search(text) is None:
        return text.split()
    return _UNSPACED_SCRIPT.sub(r" \g<0> ", text).split()
