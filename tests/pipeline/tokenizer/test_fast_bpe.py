"""Byte-level BPE by gigatoken: the same ids, and the word cache where it cannot be trusted."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.summary import DIFFERING, warnings
from cloze.pipeline.tokenizer import fast_bpe
from cloze.pipeline.tokenizer.fast_bpe import FastBpe
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from cloze.pipeline.tokenizer.word_cache import WordCache
from cloze.pipeline.vocab.config import VocabConfig
from cloze.pipeline.vocab.trainers import train_bpe
from tests.pipeline.corpus.script_texts import TEXTS
from tests.pipeline.tokenizer.texts import AWKWARD, TRAINING


def tokenizer(lowercase: bool = False) -> Tokenizer:
    texts = [*TRAINING, *TEXTS.values()]
    backend = train_bpe(
        lambda: iter(texts), VocabConfig(), size=600, lowercase=lowercase, strip_accents=False
    )
    return Tokenizer.of(backend, "made here")


class Ragged:
    """What gigatoken returns: ids and offsets."""

    def __init__(self, ids: Any, offsets: Any) -> None:
        self.layout = types.SimpleNamespace(
            content=types.SimpleNamespace(data=ids), offsets=offsets
        )


def install(
    monkeypatch: pytest.MonkeyPatch, encode: Callable[[list[str]], tuple[Any, Any]]
) -> None:
    """Install a package of this name that encodes as told."""
    stub = types.SimpleNamespace(
        encode_batch=lambda texts, parallel: Ragged(*encode(texts)),
    )
    package = types.ModuleType("gigatoken")
    package.Tokenizer = types.SimpleNamespace(from_json=lambda text: stub)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gigatoken", package)


def test_one_that_agrees_on_the_probe_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tokenizer()
    install(monkeypatch, lambda texts: ours.encode_uncached(texts))
    assert isinstance(ours._memory, FastBpe)
    texts = [*AWKWARD, *TEXTS.values()] * 4
    after = np.arange(len(texts)) % 2 == 1
    monkeypatch.setattr(fast_bpe, "MAX_CHARACTERS", 100)  # built anew for each call
    for follows in (None, after):
        ids, offsets = ours.encode_flat(texts, follows)
        expected_ids, expected_offsets = ours.encode_uncached(texts, follows)
        assert np.array_equal(ids, expected_ids)
        assert np.array_equal(offsets, expected_offsets)


def one_id_wrong(texts: list[str], ours: Tokenizer) -> tuple[Any, Any]:
    ids, offsets = ours.encode_uncached(texts)
    ids[-1] += 1
    return ids, offsets


def one_text_moved(texts: list[str], ours: Tokenizer) -> tuple[Any, Any]:
    ids, offsets = ours.encode_uncached(texts)
    offsets[3] += 1
    return ids, offsets


def fails(texts: list[str], ours: Tokenizer) -> tuple[Any, Any]:
    raise RuntimeError("panicked at src/lib.rs")


@pytest.mark.parametrize("encode", [one_id_wrong, one_text_moved, fails, None])
def test_any_other_is_not(monkeypatch: pytest.MonkeyPatch, encode: Any) -> None:
    ours = tokenizer()
    if encode is None:
        monkeypatch.setitem(sys.modules, "gigatoken", None)
    else:
        install(monkeypatch, lambda texts: encode(texts, ours))
    assert isinstance(ours._memory, WordCache)


def test_a_normalizer_is_not_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tokenizer(lowercase=True)
    install(monkeypatch, lambda texts: ours.encode_uncached(texts))
    assert isinstance(ours._memory, WordCache)


def test_the_package_itself_gives_the_same_ids() -> None:
    pytest.importorskip("gigatoken", reason="extra fast is not installed")
    ours = tokenizer()
    assert isinstance(ours._memory, FastBpe)
    texts = [*AWKWARD, *TEXTS.values()] * 4
    after = np.arange(len(texts)) % 2 == 1
    for follows in (None, after):
        ids, offsets = ours.encode_flat(texts, follows)
        expected_ids, expected_offsets = ours.encode_uncached(texts, follows)
        assert np.array_equal(ids, expected_ids)
        assert np.array_equal(offsets, expected_offsets)


@pytest.mark.parametrize("place", [0, 512, 1024])
def test_what_differs_beyond_the_probe_is_encoded_by_the_tokenizer_and_counted(
    monkeypatch: pytest.MonkeyPatch, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    ours = tokenizer()

    def wrong_at_times(texts: list[str]) -> tuple[Any, Any]:
        ids, offsets = ours.encode_uncached(texts)
        if place < len(texts) and texts[place].endswith("unheard-of"):
            ids[offsets[place]] += 1
        return ids, offsets

    install(monkeypatch, wrong_at_times)
    texts = ["a usual sentence"] * 1100
    assert np.array_equal(ours.encode_flat(texts)[0], ours.encode_uncached(texts)[0])
    assert ours.differing_texts == 0
    texts[place] = "something unheard-of"
    for found, expected in zip(ours.encode_flat(texts), ours.encode_uncached(texts), strict=True):
        assert np.array_equal(found, expected)
    assert ours.differing_texts == len(texts)
    assert "gigatoken" in caplog.text


def test_a_dataset_says_where_the_tokenizer_encoded_itself() -> None:
    (message,) = warnings(ExampleConfig(), {DIFFERING: 1100}, 10)
    assert "1,100 sentences" in message
    assert "uninstall gigatoken" in message
