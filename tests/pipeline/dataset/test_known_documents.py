"""The keys of a dataset's documents: written in ranges of the key space, found again in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.arrow import open_arrow
from cloze.pipeline.dataset import append

FEWEST, MOST = 0, (1 << 64) - 1


def written(place: Path, runs: list[np.ndarray[Any, Any]], total: int) -> str:
    exchange = append.key_exchange(str(place), len(runs), total)
    for number, keys in enumerate(runs):
        append.write_keys(exchange, number, keys)
    exchange.connect_block(0)
    file = str(place / "documents.arrow")
    append.write_documents(file, exchange, total)
    return file


@pytest.mark.parametrize(
    ("place_keys", "batch_keys", "batches"),
    [(1 << 23, 1 << 20, 1), (16, 10, 10), (50, 7, 15), (7, 33, 4)],
)
def test_keys_are_sorted_once_each_and_cut_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place_keys: int, batch_keys: int, batches: int
) -> None:
    monkeypatch.setattr(append, "PLACE_KEYS", place_keys)
    monkeypatch.setattr(append, "BATCH_KEYS", batch_keys)
    random = np.random.default_rng(3)
    keys = random.integers(0, 1 << 64, 98, np.uint64, endpoint=False)
    keys = np.concatenate([keys, np.array([FEWEST, MOST], np.uint64)])
    file = written(tmp_path, [keys[:60], keys[40:], keys[:0]], 100)
    reader = open_arrow(file)
    assert reader.schema == append.SCHEMA
    found = [
        reader.get_batch(number)["key"].to_numpy() for number in range(reader.num_record_batches)
    ]
    assert len(found) == batches
    assert np.concatenate(found).tolist() == sorted(keys.tolist())
    for number, part in enumerate(found):
        assert {int(key) * batches >> 64 for key in part.tolist()} <= {number}
    others = random.integers(0, 1 << 64, 50, np.uint64, endpoint=False)
    asked = random.permutation(np.concatenate([keys, others, keys[:3] + np.uint64(1)]))
    wanted = [key in set(keys.tolist()) for key in asked.tolist()]
    assert append.known(asked, [file], f"stamp-{batches}").tolist() == wanted
    assert not append.known(asked, [], "stamp").any()
    assert append.known(keys[:0], [file], f"stamp-{batches}").tolist() == []


def test_keys_of_several_files_are_all_known(tmp_path: Path) -> None:
    parts = [np.array(keys, np.uint64) for keys in ([1, 5, MOST], [2, 5])]
    files = []
    for number, keys in enumerate(parts):
        place = tmp_path / str(number)
        place.mkdir()
        files.append(written(place, [keys], len(keys)))
    files.append(written(tmp_path, [parts[0][:0]], 0))
    asked = np.array([5, 4, 3, 2, 1, 0, MOST], np.uint64)
    assert append.known(asked, files, "several").tolist() == [
        True,
        False,
        False,
        True,
        True,
        False,
        True,
    ]
    assert append.known(asked, files[1:], "several").tolist() == [
        True,
        False,
        False,
        True,
        False,
        False,
        False,
    ]


def test_places_are_of_so_many_documents() -> None:
    assert [append.key_exchange("/x", 3, n).places for n in (0, 1, (1 << 24) - 1, 1 << 24)] == [
        1,
        1,
        1,
        2,
    ]
    exchange = append.key_exchange("/x", 3, 0)
    assert (exchange.directory, exchange.runs, exchange.group) == ("/x/documents", 3, 1)


def test_names_of_shards_say_the_append() -> None:
    assert [append.prefix("train", number) for number in (0, 1, 12, 1000)] == [
        "train", "train-a001", "train-a012", "train-a1000",
    ]  # fmt: skip
    names = {
        "train-00000-of-00002.arrow": 0, "train-a001-00000-of-00002.arrow": 1, "documents.arrow": 0,
        "documents-a012.arrow": 12, "train-abc-1.arrow": 0, "train": 0, "train-b001-1.arrow": 0,
    }  # fmt: skip
    assert {name: append._generation(name) for name in names} == names


@pytest.mark.parametrize(
    ("before", "words"), [({"words": 7}, 10), ({"words": None}, None), ({}, None)]
)
def test_counts_of_appends_add_up(before: dict[str, Any], words: int | None) -> None:
    old = {name: number for number, name in enumerate(append.ADDED)}
    new = dict.fromkeys(append.ADDED, 100)
    more = {"pair_labels": {"a": 1, "b": 2}, "length_histogram": [1, 2, 3]}
    total = append.add_counts({**old, **more, **before}, {**new, **more, "words": 3})
    assert total == {
        **{name: 100 + number for number, name in enumerate(append.ADDED)},
        "words": words, "pair_labels": {"a": 2, "b": 4}, "length_histogram": [2, 4, 6],
    }  # fmt: skip
    assert list(total)[:8] == [
        "rows", "heldout_rows", "unmasked_rows", "shards", "documents", "tokens", "row_tokens", "masked",
    ]  # fmt: skip
