"""One file without splits, cut for cross-validation."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.core.random_keys import document_key


def in_fold(texts: Sequence[str], split: str, folds: int, fold: int) -> list[int]:
    """The examples of a split, as their numbers in order: dev is the part `fold`, train are all others.

    The different texts are ordered by a hash and cut into `folds` parts of as many texts (to within one). So examples with the same
    text stay together, and neither their order in the file nor the machine changes anything.

    Args:
        texts: of each example, what it must not share with one of another part.
        split: train or dev.
    """
    ranked = sorted(set(texts), key=lambda text: (document_key(text), text))
    part = {text: rank * folds // len(ranked) for rank, text in enumerate(ranked)}
    return [number for number, text in enumerate(texts) if (part[text] == fold) == (split == "dev")]
