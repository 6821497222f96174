"""Rows to batches, against a slow and obvious way of doing it; and shards that are not what they
should be.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError
from cloze.core.ragged import offsets_of
from cloze.model.data.batch import PREDICTIONS, Prefetch, collate, empty_batch, move, pin
from cloze.model.data.layouts import LayoutKind
from cloze.model.data.shards import ShardedRows, verify
from cloze.model.families.models import new_model
from cloze.model.families.registry import FAMILIES
from cloze.model.train.evaluate.scoring import PretrainModule
from tests.model.datasets import SPECIAL, write_dataset
from tests.tiny_models import tiny_config

SMALL = {"electra": {"embedding_size": 8}, "albert": {"embedding_size": 8}}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", rows=50, length=29, shards=3)


def _plain(dataset: str) -> list[dict[str, object]]:
    """The rows as Python objects, by pyarrow alone."""
    files = sorted(Path(dataset).glob("train-*.arrow"))
    return [
        row
        for file in files
        for row in pa.ipc.open_file(pa.memory_map(str(file))).read_all().to_pylist()
    ]


@pytest.mark.parametrize("fixed", [None, 7])
def test_a_batch_is_what_the_rows_say(dataset: str, fixed: int | None) -> None:
    shards, plain = ShardedRows(dataset), _plain(dataset)
    assert len(shards) == len(plain) == 50
    rows = np.array([49, 0, 17, 17, 33])
    copies = np.array([0, 1, 0, 1, 1])
    batch = {
        name: tensor.numpy()
        for name, tensor in collate(
            shards.take(rows, copies), pad=0, longest=29, fixed_predictions=fixed
        ).items()
    }
    length = batch["input_ids"].shape[1]
    longest = max(len(plain[row]["input_ids"]) for row in rows)
    assert length == (29 if fixed else min(29, -(-longest // 16) * 16))
    expected = []
    for place, (row, copy) in enumerate(zip(rows.tolist(), copies.tolist(), strict=True)):
        ids, mask = plain[row]["input_ids"], plain[row]["masks"][copy]
        shown = list(ids)
        for position, replacement in zip(mask["positions"], mask["input_ids"], strict=True):
            shown[position] = replacement
            expected.append((place * length + position, ids[position]))
        padding = length - len(ids)
        assert batch["input_ids"][place].tolist() == shown + [0] * padding
        assert batch["attention_mask"][place].tolist() == [True] * len(ids) + [False] * padding
        start = plain[row]["segment_start"]
        assert (
            batch["token_type_ids"][place].tolist()
            == [0] * start + [1] * (len(ids) - start) + [0] * padding
        )
        assert batch["pair_labels"][place] == plain[row]["pair_label"]
    found = list(
        zip(batch["masked_positions"].tolist(), batch["masked_labels"].tolist(), strict=True)
    )
    filler = 5 * fixed - len(expected) if fixed else -len(expected) % PREDICTIONS
    assert found == expected + [(0, -100)] * filler
    assert shards.most_predictions() == max(
        len(mask["positions"]) for row in plain for mask in row["masks"]
    )


def test_rows_without_pairs_have_no_pair_label(tmp_path: Path) -> None:
    shards = ShardedRows(write_dataset(tmp_path / "dataset", rows=4, pair_task=None))
    batch = collate(shards.take(np.arange(4), np.zeros(4, np.int64)), pad=0, longest=32)
    assert (batch["pair_labels"] == -100).all()
    assert (batch["token_type_ids"] == 0).all()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_blank_batch_teaches_nothing(family: str) -> None:
    config = tiny_config(family=family, **SMALL.get(family, {}))
    scoring = PretrainModule(
        new_model(config),
        config.default_objectives("nsp" if "pair" in config.heads else None),
        "fp32",
    ).train()
    batch = empty_batch(pad=SPECIAL.pad)
    assert scoring.count_targets(batch) == [0] * len(scoring.names)
    loss, *_ = scoring(batch, torch.ones(len(scoring.names)))
    loss.backward()
    assert loss == 0.0
    assert all(
        not parameter.grad.any() for parameter in scoring.parameters() if parameter.grad is not None
    )


def test_a_split_may_be_empty(dataset: str) -> None:
    assert len(ShardedRows(dataset, "validation")) == 0
    assert len(ShardedRows(dataset, HELDOUT, ShardedRows(dataset).info)) == 24


def test_a_cut_shard_is_named(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", rows=30)
    shard = sorted(Path(dataset).glob("train-*"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(DataError, match=shard.name):
        ShardedRows(dataset)
    with pytest.raises(DataError, match=rf"{shard.name} has \d+ bytes, the manifest says \d+"):
        verify(dataset)


def test_a_changed_byte_is_named_by_the_hash(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", rows=30)
    assert verify(dataset) == 4
    shard = sorted(Path(dataset).glob("train-*"))[0]
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=f"{shard.name} does not have the sha256"):
        verify(dataset)


def test_no_damage_reaches_the_model(tmp_path: Path) -> None:
    """Whatever a flipped byte does, opening and reading either work with ids and positions in
    range, or name the file.
    """
    dataset = write_dataset(tmp_path / "dataset", rows=16, shards=1, heldout=1)
    shard = next(Path(dataset).glob("train-*"))
    original = shard.read_bytes()
    rng, named, silent = np.random.default_rng(0), 0, 0
    for at in rng.integers(0, len(original), 300):
        content = bytearray(original)
        content[at] ^= int(rng.integers(1, 256))
        shard.write_bytes(content)
        try:
            shards = ShardedRows(dataset)
            rows = np.arange(len(shards))
            for copy in (0, 1):
                batch = collate(shards.take(rows, np.full_like(rows, copy)), pad=0, longest=32)
                assert int(batch["input_ids"].max()) < 64
                assert int(batch["masked_positions"].max()) < batch["input_ids"].numel()
        except DataError as error:
            named += shard.name in str(error)
            silent += shard.name not in str(error)
    assert named > 50
    assert not silent


@pytest.mark.parametrize("column", ["input_ids", "masks", "positions", "replacements"])
@pytest.mark.parametrize("value", [-1, -(1 << 31), 1 << 20, (1 << 31) - 1])
def test_an_offset_that_points_elsewhere_is_refused(
    tmp_path: Path, column: str, value: int
) -> None:
    """Offsets are what everything else is indexed with: one that leads out of its column names the
    file, and is not followed.
    """
    dataset = write_dataset(tmp_path / "dataset", rows=48, shards=1, heldout=1)
    shard = next(Path(dataset).glob("train-*"))
    mapped = pa.memory_map(str(shard))
    batch = pa.ipc.open_file(mapped).get_batch(1)
    masks = batch.column("masks")
    lists = {
        "input_ids": batch.column("input_ids"),
        "masks": masks,
        "positions": masks.values.field("positions"),
        "replacements": masks.values.field("input_ids"),
    }
    at = lists[column].buffers()[1].address - mapped.read_buffer().address
    content = bytearray(shard.read_bytes())
    content[at + 12 : at + 16] = value.to_bytes(4, "little", signed=True)
    shard.write_bytes(content)
    shards = ShardedRows(dataset)
    healthy = shards.take(np.arange(16), np.zeros(16, np.int64))
    assert int(healthy.ids.max()) < 64
    with pytest.raises(DataError, match=shard.name):
        for copy in (0, 1):
            shards.take(np.arange(48), np.full(48, copy))


def test_rows_of_many_files_come_in_the_order_asked_for(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", rows=60, shards=7)
    shards, plain = ShardedRows(dataset), _plain(dataset)
    order = np.random.default_rng(0).permutation(60)
    taken = shards.take(order, order % 2)
    starts, masks = offsets_of(taken.lengths), offsets_of(taken.counts)
    for place, row in enumerate(order.tolist()):
        mask = plain[row]["masks"][row % 2]
        assert taken.ids[starts[place] : starts[place + 1]].tolist() == plain[row]["input_ids"]
        assert taken.positions[masks[place] : masks[place + 1]].tolist() == mask["positions"]
        assert taken.replacements[masks[place] : masks[place + 1]].tolist() == mask["input_ids"]
        assert taken.segment_start[place] == plain[row]["segment_start"]
        assert taken.documents[place] == plain[row]["source"]["document"]


@pytest.mark.parametrize("kind", ["rows", "buckets", "packed"])
def test_a_batch_moves_with_its_layout(dataset: str, kind: LayoutKind) -> None:
    batch = collate(
        ShardedRows(dataset).take(np.arange(8), np.zeros(8, np.int64)),
        pad=0,
        longest=64,
        layout=kind,
    )
    assert pin(batch, torch.device("cpu")) == batch
    moved = move(batch, torch.device("meta"))
    assert moved.keys() == batch.keys()
    assert all(moved[name].device.type == "meta" for name in batch if name != "layout")
    if kind == "packed":
        layout = moved["layout"]
        tensors = (
            layout.flat_positions,
            layout.slots,
            layout.padding,
            layout.positions,
            layout.bounds,
        )
        assert {tensor.device.type for tensor in tensors} == {"meta"}
        assert layout.max_distance == batch["layout"].max_distance


@pytest.mark.parametrize("content", [b"", b"not arrow at all", b"ARROW1\0\0"])
def test_what_is_no_shard_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train-00000-of-00001.arrow").write_bytes(content)
    with pytest.raises(DataError, match=r"train-00000-of-00001\.arrow"):
        ShardedRows(str(tmp_path))


def test_an_arrow_file_of_something_else_is_refused(tmp_path: Path) -> None:
    table = pa.table({"text": ["a"]})
    with pa.ipc.new_file(str(tmp_path / "train-00000-of-00001.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="no Cloze dataset shard"):
        ShardedRows(str(tmp_path))


def test_shards_of_different_settings_do_not_mix(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", rows=10)
    other = write_dataset(tmp_path / "other", rows=10, vocab_size=65)
    (Path(dataset) / "train-00001-of-00002.arrow").write_bytes(
        (Path(other) / "train-00001-of-00002.arrow").read_bytes()
    )
    with pytest.raises(DataError, match="other settings"):
        ShardedRows(dataset)


def test_prefetch_keeps_order_and_brings_errors() -> None:
    def source() -> Iterator[int]:
        yield from range(20)
        raise DataError("here")

    found: list[int] = []
    with Prefetch(source(), depth=2) as prefetched, pytest.raises(DataError, match="here"):
        found.extend(iter(prefetched))
    assert found == list(range(20))


def test_leaving_a_prefetch_early_ends_its_thread() -> None:
    def endless() -> Iterator[int]:
        while True:
            yield 1

    before = threading.active_count()
    with Prefetch(endless(), depth=2) as prefetched:
        assert next(iter(prefetched)) == 1
    assert threading.active_count() == before


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_prefetch_reads_no_further_ahead_than_it_is_asked_to(depth: int) -> None:
    """One more item of a large batch may be what the memory lacks."""
    read, room = list[int](), threading.Semaphore(0)

    def source() -> Iterator[int]:
        for number in range(20):
            read.append(number)
            room.release()
            yield number

    with Prefetch(source(), depth=depth) as prefetched:
        items = iter(prefetched)
        for number in range(20 - depth):
            assert next(items) == number
            for _ in range(depth + 1 if number == 0 else 1):
                assert room.acquire(timeout=60)  # what it may read is read
            assert len(read) <= number + 1 + depth
