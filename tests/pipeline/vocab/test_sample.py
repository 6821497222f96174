"""The sample of a vocabulary is the same however the documents are spread over shards, and whatever
the shards tell first.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.files import shards
from cloze.pipeline.vocab import sample
from tests.object_store import Store
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.vocab.vocabularies import make

DOCUMENTS = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 50), st.booleans()),
    min_size=1, unique_by=lambda document: document[0],
)  # fmt: skip


def tables(documents: list[tuple[int, int, bool]], cuts: int) -> list[pa.Table]:
    return [
        pa.table(list(zip(*part, strict=True)), schema=sample.ORDER)
        for part in (documents[number::cuts] for number in range(cuts))
        if part
    ]


@given(DOCUMENTS, st.integers(1, 5), st.integers(1, 400))
def test_the_first_documents_of_all_shards_are_chosen(
    documents: list[tuple[int, int, bool]], cuts: int, target: int
) -> None:
    documents = [*documents, (5, 1, True)]
    chosen, _ = sample.choose("corpus", tables(documents, cuts), target)
    taken, size = 0, 0
    for _, own, is_train in sorted(documents):
        if is_train and size < target:
            taken, size = taken + 1, size + own
    assert (chosen.documents, chosen.size) == (taken, size)


def test_the_driver_keeps_no_more_than_the_sample() -> None:
    first = sample._FirstDocuments(1000)
    for seed in range(50):
        rank = np.random.default_rng(seed).integers(0, 2**63, 1000).astype(np.uint64)
        first.add(rank, np.full(1000, 10))
        assert first._rank.size == 100


@pytest.mark.parametrize("room", [0.0, 0.05, 1e9], ids=["nothing", "too little", "all"])
def test_what_shards_tell_first_does_not_change_the_vocabulary(
    corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float
) -> None:
    usual = make(corpus, tmp_path / "usual")
    monkeypatch.setattr(sample, "ROOM", room)
    assert make(corpus, tmp_path / "room").manifest.content_sha256 == usual.manifest.content_sha256


def test_units_of_many_shards_give_the_same_vocabulary_by_few_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    corpus = write_corpus(tmp_path / "corpus", made_documents(200), shards=20)
    few = make(corpus, store.path("vocab"))
    asked = [request for request in store.server.requests if "/_scratch/" in request.key]
    assert len(asked) <= 30  # 160 with a unit for each shard
    for most in (0, 20_000, 1 << 30):
        monkeypatch.setattr(shards, "run_bytes", lambda total, least, most=most: most)
        made = make(corpus, tmp_path / f"vocab-{most}")
        assert made.manifest.content_sha256 == few.manifest.content_sha256
