"""Stage semdedup: documents near one that stays go, whatever cuts the work; checked against a plain
search over all pairs.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.artifacts import artifact
from cloze.core.config import parse_config
from cloze.core.errors import DataError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.labs.selection import semantic_clusters as clustering
from cloze.labs.selection.semantic_clusters import (
    assign,
    centred,
    divide,
    find_similar,
    fit,
    mean_of,
)
from cloze.labs.selection.stages import (
    SEMDEDUP as STAGE,
)
from cloze.labs.selection.stages import (
    SemDedupConfig,
    clusters_for,
)
from cloze.labs.selection.stages import (
    semdedup_headline as headline,
)
from cloze.labs.vectors import (
    SCALE,
    WIDEST,
    cosines,
    quantize,
    read_vectors,
    vectors_batch,
    vectors_file_name,
)
from cloze.pipeline.corpus.files.intermediate import CORPUS
from tests import warm
from tests.pipeline.corpus.corpora import made_documents, rows, write_corpus
from tests.slices import few

WIDTH = 24


def made_vectors(count: int, groups: int, spread: float, seed: int = 1) -> np.ndarray:
    """int16 [count, WIDTH]: vectors around `groups` directions."""
    random = np.random.default_rng(seed)
    return quantize(
        random.normal(size=(groups, WIDTH))[random.integers(0, groups, count)]
        + spread * random.normal(size=(count, WIDTH))
    )


@pytest.mark.parametrize("width", [1, 7, 768, WIDEST])
def test_products_are_exact_in_any_order(width: int) -> None:
    """The worst vectors there are: all numbers equal, so that all roundings go one way."""
    random = np.random.default_rng(width)
    vectors = quantize(
        np.concatenate([np.ones((1, width)), random.normal(size=(50, width))])
    ).astype(np.float32)
    exact = vectors.astype(np.int64) @ vectors.astype(np.int64).T
    assert exact.max() < 1 << 24
    order = random.permutation(width)
    assert np.array_equal(vectors @ vectors.T, exact)
    assert np.array_equal(vectors[:, order] @ vectors[:, order].T, exact)
    assert np.abs(np.diag(cosines(vectors, vectors)) - 1).max() < 1e-6


def test_a_vector_of_no_length_stays_so() -> None:
    assert not quantize(np.zeros((2, 3))).any()


def _plain(vectors: np.ndarray, threshold: float) -> tuple[list[int], list[float]]:
    """The rule as it is written, a row at a time."""
    values = vectors.astype(np.float32)
    stay, of, best = list[int](), list[int](), list[float]()
    for row in range(len(values)):
        found = cosines(values[row : row + 1], values[stay])[0] if stay else np.zeros(0, np.float32)
        top = int(found.argmax()) if len(found) else -1
        best.append(float(found[top]) if stay else -1.0)
        if stay and found[top] >= threshold - 1e-6:
            of.append(stay[top])
        else:
            of.append(row)
            stay.append(row)
    return of, best


@given(st.integers(0, 60), st.integers(1, 8), st.floats(0.05, 1.0), st.floats(0.5, 1.0))
def test_within_a_cluster_it_is_the_plain_rule(
    count: int, groups: int, spread: float, threshold: float
) -> None:
    vectors = made_vectors(count, groups, spread)
    of, best = find_similar(vectors, threshold)
    plain_of, plain_best = _plain(vectors, threshold)
    assert of.tolist() == plain_of
    assert np.array_equal(best, np.array(plain_best, np.float32))


def test_clusters_are_those_of_the_directions() -> None:
    vectors = made_vectors(600, 5, 0.05)
    groups = (cosines(vectors.astype(np.float32), vectors.astype(np.float32)) > 0.5).argmax(
        axis=1
    )  # the first alike
    centres = fit(vectors[np.unique(groups)], 5, 10)
    found = assign(vectors, centres)
    assert len(set(zip(found.tolist(), groups.tolist(), strict=True))) == 5
    again = fit(vectors, 7, 30)
    assert again.shape == (7, WIDTH)
    assert np.array_equal(again, fit(vectors, 7, 30))
    mean = mean_of(vectors)
    assert (
        np.abs(mean_of(centred(vectors, mean)).astype(int)).max() < np.abs(mean.astype(int)).max()
    )


@given(
    st.integers(0, 80),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.integers(2, 9),
    st.integers(1, 5),
)
def test_no_cluster_is_larger_than_the_limit(
    count: int, groups: int, spread: float, largest: int, usual: int
) -> None:
    """Whatever the vectors are, copies of one text among them; each row is in one cluster."""
    vectors = made_vectors(count, groups, spread)
    ranks = random_keys.splitmix64(np.arange(count, dtype=np.uint64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "LARGEST", largest)
        patch.setattr(clustering, "CLUSTER", usual)
        parts = divide(vectors, ranks, 5)
    assert max(map(len, parts), default=0) <= largest
    assert sorted(np.concatenate(parts).tolist()) == list(range(count))
    assert all((np.diff(part) > 0).all() for part in parts)


@pytest.mark.parametrize("documents", [2_000, 8_000, 32_000, 128_000])
def test_the_work_and_what_is_read_grow_with_the_documents(
    documents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of vectors per document; a search of all pairs in 1,024 clusters would double."""
    products = 0

    def counting(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        nonlocal products
        products += len(left) * len(right)
        return cosines(left, right)

    vectors = np.random.default_rng(1).integers(-99, 99, (documents, 2)).astype(np.int16)
    ranks = random_keys.splitmix64(np.arange(documents, dtype=np.uint64))
    monkeypatch.setattr(clustering, "cosines", counting)
    parts = divide(vectors, ranks, 3)
    products += sum(len(part) ** 2 for part in parts)
    assert products <= 4_200 * documents


def _corpus(directory: Path, count: int = 120, shards: int = 3, schema: pa.Schema = CORPUS) -> str:
    documents = made_documents(count, sentences=4)
    return write_corpus(
        directory,
        documents,
        shards=shards,
        heldout=[name for name, _ in documents[:7]],
        schema=schema,
    )


def _vectors(directory: Path, corpus: str, groups: int = 30, spread: float = 0.03) -> str:
    """A vectors artifact with hand-made vectors: documents of one group say the same."""
    own = artifact.read_manifest(corpus)
    for entry in own.files:
        keys = read_arrow(f"{corpus}/{entry.path}")["key"].to_numpy()
        near = np.array(
            [
                made_vectors(1, 1, 0, seed=int(random_keys.splitmix64(key)) % groups)[0]
                for key in keys.tolist()
            ]
        )
        noise = np.array(
            [np.random.default_rng(int(key)).normal(size=WIDTH) for key in keys.tolist()]
        ).reshape(-1, WIDTH)
        batch = vectors_batch(keys, quantize(near.reshape(-1, WIDTH) / SCALE + spread * noise))
        write_arrow(f"{directory}/{vectors_file_name(entry.path)}", batch.schema, [batch])
    parents = {"corpus": own.fingerprint}
    artifact.write_manifest(
        str(directory),
        artifact.Manifest(
            stage="vectors",
            version=1,
            fingerprint=artifact.fingerprint("vectors", 1, {"groups": groups}, parents),
            parents=parents,
            config={},
            files=artifact.hash_files(str(directory), artifact.data_files(str(directory))),
        ),
    )
    return str(directory)


def _made(out: Path, corpus: str, vectors: str, workers: int = 1, **settings: Any) -> BuildResult:
    config = parse_config(SemDedupConfig, settings, "semdedup")
    inputs, execution = {"corpus": corpus, "vectors": vectors}, Execution(workers=workers)
    with warm.executable() if workers > 1 else nullcontext():
        return execute(STAGE, config, inputs, str(out), execution=execution)


def _expected(corpus: str, vectors: str, threshold: float) -> set[int]:
    """The keys that stay, by the plain rule over all documents at once."""
    documents = [
        row
        for path in sorted(Path(corpus).glob("corpus-*.arrow"))
        for row in read_arrow(str(path)).to_pylist()
    ]
    held = dict(
        zip(
            *(np.concatenate(one).tolist() for one in zip(*_read(vectors), strict=True)),
            strict=True,
        )
    )
    documents.sort(key=lambda row: (-sum(len(s.encode()) for s in row["sentences"]), row["key"]))
    of, _ = _plain(np.array([held[row["key"]] for row in documents], np.int16), threshold)
    return {row["key"] for number, row in enumerate(documents) if of[number] == number}


def _read(vectors: str) -> list[tuple[np.ndarray, np.ndarray]]:
    return [read_vectors(str(path)) for path in sorted(Path(vectors).glob("vectors-*.arrow"))]


def test_documents_near_a_longer_one_go_and_are_counted(tmp_path: Path) -> None:
    corpus = _corpus(tmp_path / "corpus")
    vectors = _vectors(tmp_path / "vectors", corpus)
    result = _made(tmp_path / "out", corpus, vectors, similarity=0.9, center=False, clusters=1)
    kept = rows(result)
    expected = _expected(corpus, vectors, 0.9)
    assert {row["key"] for row in kept} == expected
    assert 20 <= len(expected) <= 30
    counters, summary = result.manifest.counters, result.manifest.summary
    assert (
        counters["read/documents"]
        == 120
        == counters["kept/documents"] + counters["dropped/semantic_duplicate"]
    )
    assert summary["documents"] == len(expected) == result.manifest.rows
    assert summary["bytes"] == sum(len(" ".join(row["sentences"]).encode()) for row in kept)
    assert summary["heldout_documents"] == sum(row["split"] == "heldout" for row in kept)
    gone = read_arrow(f"{result.artifact}/semantic_duplicates.arrow").to_pylist()
    assert {row["key"] for row in gone} | expected == {row["key"] for row in rows_of(corpus)}
    assert all(row["of"] in expected and row["cosine"] >= 0.9 for row in gone)
    figures = json.loads((tmp_path / "out" / "semantic.json").read_text())
    assert sum(figures["highest_cosines"]["counts"]) == 120
    near = figures["recall"]  # one cluster hides nothing; all documents are asked
    assert near["sample"] == 120
    assert near["near"] == near["in_cluster"] > len(gone)
    assert f"{near['near']} have a similar one" in headline(summary)
    assert all(
        len(one["kept"]["text"]) >= len(one["dropped"]["text"]) for one in figures["examples"]
    )


def rows_of(corpus: str) -> list[dict[str, Any]]:
    return [
        row
        for path in sorted(Path(corpus).glob("corpus-*.arrow"))
        for row in read_arrow(str(path)).to_pylist()
    ]


@pytest.mark.parametrize("workers", few((1, 2), 1))
def test_workers_and_units_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Nor does a schema without the columns that came later, but for their emptiness."""
    corpus = _corpus(tmp_path / "corpus")
    vectors = _vectors(tmp_path / "vectors", corpus)
    one = _made(tmp_path / "one", corpus, vectors, similarity=0.9, clusters=6)
    monkeypatch.setattr("cloze.labs.selection.semantic_driver.UNIT_DOCUMENTS", 1)
    two = _made(tmp_path / "two", corpus, vectors, workers, similarity=0.9, clusters=6)
    assert one.manifest.content_sha256 == two.manifest.content_sha256
    assert one.manifest.summary["dropped"]["semantic_duplicate"] > 50
    names = [name for name in CORPUS.names if name not in ("url", "licence", "origin", "infobox")]
    old = _corpus(tmp_path / "old", schema=pa.schema([CORPUS.field(name) for name in names]))
    first = _made(
        tmp_path / "first", old, _vectors(tmp_path / "old-vectors", old), similarity=0.9, clusters=6
    )
    assert first.manifest.content_sha256 == one.manifest.content_sha256


def test_without_their_mean_vectors_are_as_those_that_had_none(tmp_path: Path) -> None:
    """Vectors that share a large part are all alike."""
    corpus = _corpus(tmp_path / "corpus")
    vectors = _vectors(tmp_path / "vectors", corpus)
    for path in Path(vectors).glob("vectors-*.arrow"):
        keys, own = read_vectors(str(path))
        batch = vectors_batch(keys.copy(), quantize(own + 40000 * np.eye(1, WIDTH)))
        write_arrow(str(path), batch.schema, [batch])
    plain = _made(tmp_path / "plain", corpus, vectors, similarity=0.9, center=False)
    assert plain.manifest.summary["documents"] == 1
    centred_out = _made(tmp_path / "centred", corpus, vectors, similarity=0.9)
    assert 20 <= centred_out.manifest.summary["documents"] <= 30


def test_vectors_of_another_corpus(tmp_path: Path) -> None:
    corpus, other = _corpus(tmp_path / "corpus"), _corpus(tmp_path / "other", count=50)
    vectors = _vectors(tmp_path / "vectors", other)
    with pytest.raises(DataError, match="has no vectors of the corpus in"):
        _made(tmp_path / "out", corpus, vectors)


@pytest.mark.parametrize("clusters", [2, 5, 12])
def test_what_clusters_hide_is_counted(tmp_path: Path, clusters: int) -> None:
    """The recall is that of a search over all pairs of the sample, which is the whole corpus."""
    corpus = _corpus(tmp_path / "corpus")
    vectors = _vectors(tmp_path / "vectors", corpus, groups=6, spread=0.2)
    result = _made(tmp_path / "out", corpus, vectors, similarity=0.6, clusters=clusters)
    found = result.manifest.summary["recall"]
    values = np.concatenate([one for _, one in _read(vectors)])
    values = centred(values, mean_of(values)).astype(np.float32)
    products = cosines(values, values)
    np.fill_diagonal(products, -1)
    assert found["near"] == int((products.max(axis=1) >= 0.6 - 1e-6).sum())
    assert 0 < found["in_cluster"] <= found["near"]


def test_how_many_clusters() -> None:
    counts = (0, 1999, 20_000, 2_000_000, 100_000_000)
    assert [clusters_for(count) for count in counts] == [1, 1, 10, 1000, 1024]
