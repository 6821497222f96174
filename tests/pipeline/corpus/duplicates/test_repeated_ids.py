"""Repeated ids: records are kept under ids of their own; versions of a page are duplicates."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.core import random_keys
from cloze.pipeline.corpus.duplicates import repeated_ids
from cloze.pipeline.corpus.duplicates.repeated_ids import number_repeated_ids
from cloze.pipeline.corpus.mixing import copied_id
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.corpora import make, rows
from tests.pipeline.corpus.duplicates.plans import by_lists, by_one
from tests.pipeline.corpus.duplicates.references import invented

LOOSE = {"minimum_letters": 0.0, "minimum_words": 1, "minimum_characters": 1}


def text(number: int) -> str:
    random = Random(number)
    words = ["".join(random.choices("abcdefghij", k=6)) for _ in range(40)]
    return f"Here {' '.join(words)} it stands."


def records(path: Path, order: list[int]) -> str:
    """Write 40 records whose ids are those of ten categories."""
    lines = [json.dumps({"id": number // 4, "text": text(number)}) for number in order]
    path.write_text("\n".join(lines))
    return f"jsonl={path}"


def found(result: Any) -> dict[str, str]:
    return {row["id"]: " ".join(row["sentences"]) for row in rows(result)}


@pytest.mark.parametrize("dedup", ["none", "exact", "minhash"])
def test_no_record_is_dropped_for_its_id(tmp_path: Path, dedup: str) -> None:
    source = records(tmp_path / "a.jsonl", list(range(40)))
    result = make(tmp_path / "out", source, dedup=dedup, **LOOSE)
    assert result.manifest.rows == 40
    assert result.manifest.counters["renamed/duplicate_id"] == 30
    assert "30 have the id of another document" in STAGE.headline(result.manifest.summary)
    documents = rows(result)
    names = {f"jsonl/a.jsonl/{number}" for number in range(10)}
    assert {row["id"] for row in documents} == names | {
        f"{name}#{copy}" for name in names for copy in (2, 3, 4)
    }
    assert len({row["key"] for row in documents}) == 40
    assert [row["key"] for row in documents] == sorted(row["key"] for row in documents)


def test_the_order_of_records_decides_nothing(tmp_path: Path) -> None:
    order = list(range(40))
    Random(5).shuffle(order)
    for name, numbers in (("x", list(range(40))), ("y", order)):
        (tmp_path / name).mkdir()
        records(tmp_path / name / "a.jsonl", numbers)
    first, second = (
        make(tmp_path / f"out{name}", f"jsonl={tmp_path}/{name}/a.jsonl", dedup="none", **LOOSE)
        for name in "xy"
    )
    assert first.manifest.content_sha256 == second.manifest.content_sha256


def test_a_mixture_repeats_renamed_documents_under_other_ids(tmp_path: Path) -> None:
    result = make(
        tmp_path / "out",
        records(tmp_path / "a.jsonl", list(range(40))),
        dedup="none",
        max_words=3000,
        mixture_epochs=2.0,
        heldout_fraction=0.0,
        **LOOSE,
    )
    documents = rows(result)
    assert len(documents) > 60
    assert len({row["id"] for row in documents}) == len(documents)
    assert len({row["key"] for row in documents}) == len(documents)
    assert len(set(found(result).values())) == 40


def test_equal_texts_of_one_id_are_kept_without_dedup(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a"] * 3, "text": [text(1)] * 3}), tmp_path / "a.parquet")
    source = f"parquet={tmp_path}/a.parquet"
    kept = make(tmp_path / "kept", source, dedup="none", **LOOSE)
    assert (kept.manifest.rows, kept.manifest.summary["dropped"]) == (3, {})
    once = make(tmp_path / "once", source, dedup="exact", **LOOSE)
    assert once.manifest.summary["dropped"] == {"exact_duplicate": 2}
    assert "renamed/duplicate_id" not in once.manifest.counters


def test_without_dedup_pages_of_one_id_are_kept_too(tmp_path: Path) -> None:
    pages = "".join(
        f"<page><title>A</title><ns>0</ns><id>5</id><revision><text>{text(n)}</text></revision>"
        "</page>"
        for n in range(3)
    )
    (tmp_path / "d.xml").write_text(f"<mediawiki>{pages}</mediawiki>")
    result = make(tmp_path / "out", f"wikipedia={tmp_path}/d.xml", dedup="none", **LOOSE)
    assert len(found(result)) == 3


@pytest.mark.parametrize("kind", ["jsonl", "books"])
def test_a_shuffle_gives_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(repeated_ids, "READERS", _Readers(kind == "jsonl"))
    for exact in (False, True):
        place = tmp_path / str(exact)
        place.mkdir()
        references = invented(place, 300, seed=3, hot=30)
        search = {"minhash": None, "exact": exact}
        one = by_one(place, references, **search)
        assert by_lists(place, references, **search) == one
        assert (one[0].renamed > 0) == (kind == "jsonl" or not exact)
        assert ("duplicate_id" in one[0].dropped) == (kind == "books" and exact)


class _Readers:
    """A table in which all kinds are one."""

    def __init__(self, has_columns: bool) -> None:
        self.has_columns = has_columns

    def find(self, _: str) -> _Readers:
        return self


def test_copies_are_numbered_by_text() -> None:
    numbers = np.array([7, 2, 9, 4], np.int64)
    keys, high = np.array([5, 5, 5, 8], np.uint64), np.array([3, 1, 2, 0], np.uint64)
    repeated = number_repeated_ids(numbers, keys, high, high)
    assert (repeated.numbers.tolist(), repeated.copies.tolist()) == ([7, 9], [2, 1])
    name = "jsonl/a.jsonl/5"
    assert random_keys.document_key(copied_id(name, 1)) != random_keys.document_key(name)
