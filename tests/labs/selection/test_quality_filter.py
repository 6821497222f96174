"""Learned filters: they tell unseen documents apart, do the same twice, and drop in a corpus what
they were shown as bad.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from cloze.core.artifacts import artifact
from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import execute
from cloze.labs.selection.quality_filter import DESCRIPTION, WEIGHTS, Filter, thresholds
from cloze.labs.selection.stages import FILTER as STAGE
from cloze.labs.selection.stages import FilterConfig
from tests.pipeline.corpus.corpora import make, rows, write_jsonl

GOOD = (
    "river mountain forest valley stone castle village harvest winter summer bridge garden".split()
)
BAD = "discount casino bonus click cheap offer voucher spin jackpot deposit betting winner".split()
SHARED = (
    "the and of with was near old every people told about where before their house road".split()
)


def document(words, number):
    chosen = random.Random(number)
    sentences = [
        " ".join(
            chosen.choice(words if chosen.random() < 0.3 else SHARED) for _ in range(12)
        ).capitalize()
        + "."
        for _ in range(12)
    ]
    return " ".join(sentences)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    write_jsonl(folder / "good.jsonl", *(document(GOOD, n) for n in range(80)))
    write_jsonl(folder / "bad.jsonl", *(document(BAD, n + 1000) for n in range(80)))
    write_jsonl(
        folder / "mixed.jsonl", *(document(GOOD if n % 3 else BAD, n + 2000) for n in range(60))
    )
    return folder


def train(texts, out, **values):
    sources = {
        "good": [{"kind": "jsonl", "path": f"{texts}/good.jsonl"}],
        "bad": [{"kind": "jsonl", "path": f"{texts}/bad.jsonl"}],
    }
    return execute(
        STAGE, parse_config(FilterConfig, {"bits": 14, **sources, **values}, "filter"), {}, str(out)
    )


@pytest.fixture(scope="module")
def linear(texts, tmp_path_factory):
    return train(texts, tmp_path_factory.mktemp("filter") / "linear")


def test_unseen_documents_are_told_apart(linear):
    summary = linear.manifest.summary
    assert summary["auc"] == 1.0
    assert summary["documents"] == {"good": 80, "bad": 80}
    assert summary["heldout_good"] + summary["heldout_bad"] in range(15, 50)
    assert set(summary["bad_dropped"].values()) == {1.0}
    assert artifact.verify(linear.artifact).ok
    found = Filter.read(linear.artifact)
    assert (
        found.score(document(GOOD, 5000)) > found.threshold(0.05) > found.score(document(BAD, 5000))
    )
    assert found.score(document(GOOD, 5000).upper().replace(".", " !")) == found.score(
        document(GOOD, 5000)
    )
    assert found.score("... !") is None


def test_the_same_examples_give_the_same_bytes(texts, linear, tmp_path):
    again = train(texts, tmp_path / "again")
    assert again.manifest.fingerprint == linear.manifest.fingerprint
    assert again.manifest.content_sha256 == linear.manifest.content_sha256
    other = train(
        texts, tmp_path / "other", bad=[{"kind": "jsonl", "path": f"{texts}/mixed.jsonl"}]
    )
    assert other.manifest.fingerprint != linear.manifest.fingerprint


def test_a_corpus_without_what_is_unlike(texts, linear, tmp_path):
    source = f"jsonl={texts}/mixed.jsonl"
    made = make(
        tmp_path / "filtered",
        source,
        quality_filter=linear.artifact,
        keep_dropped=True,
        heldout_fraction=0,
    )
    dropped = made.manifest.summary["dropped"]["low_quality"]
    assert dropped in range(20, 26)  # all 20 bad ones, and of the good ones about a twentieth
    assert made.manifest.summary["documents"] == 60 - dropped
    assert not any(
        word in text.lower() for row in rows(made) for text in row["sentences"] for word in BAD
    )
    whole = make(tmp_path / "whole", source, heldout_fraction=0)
    assert whole.manifest.summary["documents"] == 60
    assert len({whole.manifest.fingerprint, made.manifest.fingerprint}) == 2
    others = make(
        tmp_path / "others",
        source,
        quality_filter=linear.artifact,
        quality_filter_sources=["warc"],
        heldout_fraction=0,
    )
    assert others.manifest.summary["documents"] == 60
    stricter = make(
        tmp_path / "stricter",
        source,
        quality_filter=linear.artifact,
        quality_filter_loss=0.5,
        heldout_fraction=0,
    )
    assert 5 < stricter.manifest.summary["documents"] < 35


def test_thresholds_are_quantiles():
    found = Filter(
        bits=10,
        weights=np.zeros(1024, np.float32),
        bias=0.0,
        thresholds=thresholds(range(201)),
    )
    assert [found.threshold(share) for share in (0, 0.05, 0.5, 0.995)] == [0, 10, 100, 199]


def test_it_is_read_as_it_was_written(tmp_path):
    weights = np.random.default_rng(1).normal(size=1024).astype(np.float32)
    written = Filter(bits=10, weights=weights, bias=3.5, thresholds={0: 0.1, 100: 0.9})
    written.write(str(tmp_path))
    found = Filter.read(str(tmp_path))
    assert found.weights.tobytes() == weights.tobytes()
    assert (found.bits, found.bias, found.thresholds) == (10, 3.5, {0: 0.1, 100: 0.9})


def test_bad_input(texts, linear, tmp_path):
    with pytest.raises(UsageError, match="bad"):
        train(texts, tmp_path / "a", bad=[])
    write_jsonl(tmp_path / "few.jsonl", *(document(BAD, n) for n in range(5)))
    with pytest.raises(DataError, match="--bad has 5 documents"):
        train(texts, tmp_path / "b", bad=[{"kind": "jsonl", "path": f"{tmp_path}/few.jsonl"}])
    with pytest.raises(
        UsageError, match="quality_filter_loss and quality_filter_sources need quality_filter"
    ):
        make(tmp_path / "c", f"jsonl={texts}/mixed.jsonl", quality_filter_loss=0.1)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "x").write_text("x")
    with pytest.raises(DataError, match="contains no quality filter"):
        make(tmp_path / "d", f"jsonl={texts}/mixed.jsonl", quality_filter=str(tmp_path / "none"))
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in (DESCRIPTION, WEIGHTS):
        (broken / name).write_bytes((Path(linear.artifact) / name).read_bytes()[:-7])
    with pytest.raises(DataError, match="damaged filter"):
        Filter.read(str(broken))
