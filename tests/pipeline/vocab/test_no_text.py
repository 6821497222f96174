"""A sample without text teaches no tokens, and one without letters the signs that it has."""

from __future__ import annotations

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.trainers import train_unigram


@pytest.mark.parametrize("texts", [[], [""], ["  ", "\n"]])
def test_no_text_is_one_sentence(texts: list[str]) -> None:
    with pytest.raises(
        DataError,
        match=r"^the sample has no text to learn tokens from; give `cloze corpus` more$",
    ):
        train_unigram(
            lambda: iter(texts), VocabConfig(kind="unigram"), size=100, lowercase=True,
            strip_accents=True,
        )  # fmt: skip
