"""How rows are stored: length bins, compression, and other programs that read the shards."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import BuildResult
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.dataset import append, ranges
from cloze.pipeline.dataset.config import DatasetConfig
from cloze.pipeline.dataset.ranges import bin_borders
from cloze.pipeline.dataset.schema import ShardLayout
from cloze.pipeline.dataset.shards import batch_rows
from tests.pipeline.corpus.corpora import made_documents
from tests.pipeline.dataset.datasets import made_corpus, make, rows, tables, write_vocab


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vocab(tmp_path_factory.mktemp("vocab"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def made(corpus: str, vocab: str, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return make(corpus, vocab, tmp_path_factory.mktemp("dataset"))


@pytest.fixture(scope="module", params=["zstd", "lz4"])
def packed(
    request: pytest.FixtureRequest,
    corpus: str,
    vocab: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> BuildResult:
    return make(
        corpus,
        vocab,
        tmp_path_factory.mktemp(request.param),
        compression=request.param,
        mask_copies=10,
    )


@pytest.fixture(scope="module")
def plain(corpus: str, vocab: str, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return make(corpus, vocab, tmp_path_factory.mktemp("plain"), mask_copies=10)


def files(result: BuildResult) -> list[str]:
    return [str(path) for path in sorted(Path(result.artifact).glob("train-*.arrow"))]


def test_compressed_shards_hold_the_same_rows_in_fewer_bytes(
    plain: BuildResult, packed: BuildResult
) -> None:
    assert [table.to_pylist() for table in tables(packed)] == [
        table.to_pylist() for table in tables(plain)
    ]
    sizes = [sum(Path(file).stat().st_size for file in files(result)) for result in (packed, plain)]
    assert sizes[0] < 0.8 * sizes[1]
    assert packed.manifest.summary == plain.manifest.summary


def test_rows_of_a_shard_stand_in_bins_of_length(
    corpus: str, vocab: str, made: BuildResult, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(ranges, "BUCKET_TOKENS", 3000)
    result = make(corpus, vocab, tmp_path, length_bins=3)
    found = tables(result)
    assert max(map(len, found)) - min(map(len, found)) <= 1
    per_bin = []
    for table in found:
        layout = ShardLayout.from_schema(table.schema, "shard")
        assert layout is not None
        assert layout.bin_boundaries == (16, 32, 48)
        lengths = np.array([len(ids) for ids in table["input_ids"].to_pylist()])
        bins = np.searchsorted(layout.bin_boundaries, lengths)
        assert (np.diff(bins) >= 0).all()
        assert np.bincount(bins, minlength=3).tolist() == list(layout.rows)
        assert [len(chunk) for chunk in table["input_ids"].chunks] == layout.batches().tolist()
        for chunk in table["input_ids"].chunks:  # a record batch is of one bin
            places = np.searchsorted(layout.bin_boundaries, list(map(len, chunk.to_pylist())))
            assert np.ptp(places) == 0
        per_bin.append(layout.rows)
    assert (np.ptp(np.array(per_bin), axis=0) <= 1).all()

    def content(result: BuildResult) -> list[str]:
        return sorted(map(repr, rows(result)))

    assert content(result) == content(made)  # the same rows under the same masks, in another order


@given(length=st.integers(8, 65_535), copies=st.integers(1, 10_000))
def test_a_record_batch_is_never_too_large(length: int, copies: int) -> None:
    found = batch_rows(length, copies)
    assert 1 <= found <= 2048
    assert found & (found - 1) == 0
    assert found == 1 or found * length * copies <= 2048 * 128 * 10


@settings(max_examples=60)
@given(rows=st.lists(st.integers(0, 500), min_size=1, max_size=5), size=st.sampled_from([1, 8, 64]))
def test_a_layout_counts_its_record_batches(rows: list[int], size: int) -> None:
    layout = ShardLayout(
        bin_boundaries=tuple(range(1, len(rows) + 1)), rows=tuple(rows), batch_rows=size
    )
    sizes = layout.batches().tolist()
    assert all(0 < found <= size for found in sizes)
    for own in rows:  # the batches of a bin are full, but for the last one
        batches, sizes = sizes[: -(-own // size)], sizes[-(-own // size) :]
        assert sum(batches) == own
        assert all(found == size for found in batches[:-1])
    assert not sizes
    schema = pa.schema([], metadata=layout.to_metadata())
    assert ShardLayout.from_schema(schema, "x") == layout


def test_a_damaged_layout_is_named() -> None:
    for content in (
        b"{",
        b"{}",
        b'{"borders": [8], "rows": [1, 2], "batch_rows": 4}',
        b'{"borders": [8], "rows": [1], "batch_rows": 0}',
    ):
        with pytest.raises(DataError, match=r"shard-7 is damaged"):
            ShardLayout.from_schema(pa.schema([], metadata={b"cloze.layout": content}), "shard-7")


def test_borders_of_bins() -> None:
    assert bin_borders(128, 1) == (128,)
    assert bin_borders(128, 4) == (32, 64, 96, 128)
    assert bin_borders(10, 4) == (3, 5, 8, 10)


@pytest.mark.parametrize("bins", [0, 65, [64, 128]])
def test_bins_that_cannot_be(bins: object) -> None:
    with pytest.raises(UsageError, match=r"dataset\.length_bins"):
        parse_config(DatasetConfig, {"length": 128, "length_bins": bins}, "dataset")


def test_huggingface_datasets_reads_the_shards(
    plain: BuildResult, packed: BuildResult, tmp_path: Path
) -> None:
    datasets = pytest.importorskip("datasets")
    for number, result in enumerate((plain, packed)):
        loaded = datasets.load_dataset(
            "arrow", data_files=files(result), split="train", cache_dir=str(tmp_path / str(number))
        )
        assert loaded[:] == pa.concat_tables(tables(plain)).to_pydict()
    by_directory = datasets.load_dataset(plain.artifact, cache_dir=str(tmp_path / "whole"))
    assert len(by_directory["train"]) == plain.manifest.summary["rows"]


def test_polars_reads_the_shards(plain: BuildResult, packed: BuildResult) -> None:
    polars = pytest.importorskip("polars")
    expected = rows(plain)
    for result in (plain, packed):
        frame = polars.concat([polars.read_ipc(file) for file in files(result)])
        assert frame.to_dicts() == expected
        lazy = polars.scan_ipc(files(result)).select(
            polars.col("input_ids").list.len().sum(), polars.col("pair_label").mean()
        )
        found = lazy.collect()
        assert found["input_ids"][0] == result.manifest.summary["row_tokens"]
        labels = [row["pair_label"] for row in expected if row["pair_label"] is not None]
        assert found["pair_label"][0] == pytest.approx(np.mean(labels))


def test_duckdb_reads_the_shards(plain: BuildResult, packed: BuildResult) -> None:
    duckdb = pytest.importorskip("duckdb")
    expected = rows(plain)
    for result in (plain, packed):
        shards = pyarrow.dataset.dataset(files(result), format="ipc")
        with duckdb.connect() as connection:
            connection.register("shards", shards)
            query = (
                "select sum(len(input_ids)), count(*), count(pair_label), "
                "sum(len(masks[2].positions)) from shards"
            )
            [(tokens, count, labelled, masked)] = connection.execute(query).fetchall()
            found = connection.execute(
                "select * from shards where source.document % 2 = 0"
            ).fetchall()
        assert (tokens, count) == (result.manifest.summary["row_tokens"], len(expected))
        assert labelled == sum(row["pair_label"] is not None for row in expected)
        assert masked == sum(len(row["masks"][1]["positions"]) for row in expected)
        even = [tuple(row.values()) for row in expected if row["source"]["document"] % 2 == 0]
        assert sorted(found, key=repr) == sorted(even, key=repr)


def test_the_documents_are_listed(made: BuildResult) -> None:
    found = (
        pa.ipc.open_file(str(Path(made.artifact) / "documents.arrow")).read_all()["key"].to_pylist()
    )
    names = [name for name, _ in made_documents()] + [
        f"books/odd.txt/{number}" for number in (1, 2, 3)
    ]
    assert found == sorted(random_keys.document_key(name) for name in names)
    assert made.manifest.summary["documents"] == 43


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(0, (1 << 64) - 1), max_size=60, unique=True),
    st.integers(1, 9),
    st.integers(1, 9),
    st.data(),
)
def test_known_documents_are_found(
    tmp_path_factory, there: list[int], ranges: int, places: int, data: st.DataObject
) -> None:
    """Whatever the record batches of the file and the places of the exchange are."""
    directory = tmp_path_factory.mktemp("keys")
    half, build = len(there) // 2, BuildContext(str(directory), {}, Execution(), "f")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(append, "PLACE_KEYS", max(1, len(there) // places))
        patch.setattr(append, "BATCH_KEYS", max(1, len(there) // ranges))
        exchange = append.key_exchange(str(directory), 2, len(there))
        for number, part in enumerate((there[:half], [*there[half:], *there[:1]])):
            append.write_keys(exchange, number, np.array(part, np.uint64))
        exchange.connect(build, "connect")
        append.write_documents(str(directory / "documents.arrow"), exchange, len(there))
        count = max(1, -(-len(there) // append.BATCH_KEYS))
    starts = [-(-(number << 64) // count) for number in range(count + 1)]
    with pa.OSFile(str(directory / "documents.arrow")) as file:
        reader = pa.ipc.open_file(file)
        found = [reader.get_batch(n)["key"].to_pylist() for n in range(reader.num_record_batches)]
    assert found == [
        sorted(key for key in there if low <= key < high)
        for low, high in itertools.pairwise(starts)
    ]
    asked = data.draw(
        st.lists(
            st.one_of(st.integers(0, (1 << 64) - 1), *([st.sampled_from(there)] if there else []))
        )
    )
    is_known = append.known(
        np.array(asked, np.uint64), [str(directory / "documents.arrow")], str(directory)
    )
    assert is_known.tolist() == [key in there for key in asked]
