"""The plan of many references in partitions: byte for byte that of one process, whatever is held at
once.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.config import parse_config
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.duplicates import partitions, plan
from cloze.pipeline.corpus.duplicates.partitions import Sizes
from tests.pipeline.corpus.duplicates.plans import by_engine, by_lists, by_one
from tests.pipeline.corpus.duplicates.references import References, invented
from tests.pipeline.runners.units import build

NOTHING = {"sources": [{"kind": "text", "path": "x"}]}
LINKED = {"threshold": 0.0}
EXACT = {"minhash": None}
IDS = {"minhash": None, "exact": False}


def test_the_same_bytes_as_in_one_process(tmp_path: Path) -> None:
    """A mixture is chosen of what stays; a second run finds the finished steps."""
    references = invented(tmp_path, 500, seed=1)
    config = {**NOTHING, "max_words": 2000, "mixture_by": "language", "language": "auto"}
    mix = parse_config(CorpusConfig, config, "corpus")
    found = by_engine(tmp_path, references, mix=mix)
    assert found == by_one(tmp_path, references, mix=mix)
    reasons = ("duplicate_id", "exact_duplicate", "near_duplicate")
    assert min(found[0].dropped[reason] for reason in reasons) > 20
    assert {(kind, of) for kind, of, _ in found[0].pairs} == {
        (kind, of) for kind in ("books", "text") for of in ("books", "text")
    }
    assert 0 < sum(one["words"] for one in found[0].mixed) <= 2000
    assert by_engine(tmp_path, references, mix=mix) == found


SEARCHES = [{}, LINKED, EXACT, IDS, {"exact": False}]
NAMES = ["similar", "linked", "exact", "ids", "near alone"]


@given(
    st.sampled_from(SEARCHES),
    st.builds(
        partial,
        st.just(invented),
        count=st.integers(0, 250),
        seed=st.integers(0, 99),
        parts=st.integers(1, 5),
        batch=st.integers(7, 40),
        hot=st.just(0),
    ),
    st.integers(10, 150),
    st.integers(2, 60),
)
@settings(max_examples=10, deadline=None)
def test_the_same_bytes_whatever_is_held_at_once_and_wherever_it_stops(
    more: dict[str, Any], write: Callable[[Path], References], partition: int, stops: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        references = write(Path(name))
        found = by_lists(Path(name), references, Sizes(partition=partition), stops, **more)
        assert found == by_one(Path(name), references, **more)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8)), max_size=60), st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_groups_are_connected_components(links: list[tuple[int, int]], units: int) -> None:
    """Documents of any units that share any values, against the definition."""
    values: dict[int, set[int]] = {}
    for document, value in links:
        values.setdefault(document, set()).add(value)
    group = {document: document for document in values}
    for _ in group:
        for one, other in itertools.product(values, values):
            if values[one] & values[other]:
                group[one] = min(group[one], group[other])
    sizes = Counter(group.values())
    with tempfile.TemporaryDirectory() as name:
        table = _groups(name, values, units)
    number = {document: (document % units << 32) + document for document in values}
    members: dict[int, set[int]] = {}
    for row in table.to_pylist():
        members.setdefault(row["group"], set()).add(row["number"])
        assert row["size"] == sizes[group[row["number"] & 0xFFFFFFFF]]
    assert sorted(map(sorted, members.values())) == sorted(
        sorted(number[each] for each in group if group[each] == first)
        for first, size in sizes.items()
        if size > 1
    )


def _groups(directory: str, values: dict[int, set[int]], units: int) -> pa.Table:
    """Find the groups of documents by the steps of the module; a document's number has its unit."""

    def signatures(_: str, unit: int, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
        own = [each for each in values if each % units == unit]
        # columns hold a value each; a document without more has one of its own there
        columns = [
            [
                2**60 + (*sorted(values[each]), 100 + each)[min(at, len(values[each]))]
                for each in own
            ]
            for at in range(len(names))
        ]
        if own:
            numbers = pa.array([(unit << 32) + each for each in own], pa.int64())
            arrays = [numbers, *(pa.array(column, pa.uint64()) for column in columns)]
            yield pa.RecordBatch.from_arrays(arrays, names=["number", *names])

    def run(_: Any, step: str, each: list[tuple[str, int]], job: Any, **__: Any) -> list[Any]:
        return [job(unit) for _, unit in each]

    begun = build(Path(directory) / "out")
    with begun.cleanup, pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions, "read_signatures", signatures)
        patch.setattr(partitions, "fan_out", run)
        patch.setattr(partitions, "destination_count", lambda total, runs: 3)
        columns = tuple(f"c{number}" for number in range(9))
        exchange, _ = partitions._find_groups(begun, directory, columns, units, 10)
        tables = []
        for unit in range(units):
            with exchange.read(partitions.GROUPS, unit, unit + 1) as ranges:
                batches = list(ranges.batches(unit))
                tables.append(pa.Table.from_batches(batches, schema=partitions.GROUPS))
        return pa.concat_tables(tables).combine_chunks()


@pytest.mark.parametrize("most", [6, 2])
def test_a_group_that_is_too_large_is_compared_in_parts(most: int, tmp_path: Path) -> None:
    """Nothing but near duplicates stays for it, and the result depends on the limit alone."""
    references = invented(tmp_path, 300, seed=2, hot=80)
    whole = by_one(tmp_path, references)[0]
    found = by_lists(tmp_path, references, Sizes(partition=30, most=most))
    again = by_lists(tmp_path, references, Sizes(partition=200, most=most))
    assert found == again
    plan = found[0]
    assert 80 <= plan.split < 300
    assert whole.split == 0
    for reason in ("duplicate_id", "exact_duplicate"):
        assert plan.dropped[reason] == whole.dropped[reason] > 10
    assert 0 < plan.dropped["near_duplicate"] < whole.dropped["near_duplicate"]


def test_nothing_in_common_and_nothing_at_all(tmp_path: Path) -> None:
    for count in (30, 0):  # fewer than any group is made of
        place = tmp_path / str(count)
        place.mkdir()
        references = invented(place, count, seed=1, parts=3)
        found = by_lists(place, references)
        assert found == by_one(place, references)
        assert found[0].documents == count


@pytest.mark.soak
@pytest.mark.parametrize("more", SEARCHES, ids=NAMES)
def test_the_same_bytes_of_any_corpus_by_an_engine(more: dict[str, Any], tmp_path: Path) -> None:
    references = invented(tmp_path, 600, seed=10, batch=21)
    mix = parse_config(
        CorpusConfig,
        {**NOTHING, "max_words": 1000, "mixture_by": "language", "language": "auto"},
        "corpus",
    )
    assert by_engine(tmp_path, references, mix=mix, **more) == by_one(
        tmp_path, references, mix=mix, **more
    )


def test_a_corpus_of_any_size_has_a_bounded_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = invented(tmp_path, 300, seed=4)
    usual = by_one(tmp_path, references)[0]
    monkeypatch.setattr(plan, "even_count", lambda _: 3)
    bounded = by_one(tmp_path, references)[0]
    assert bounded.shards == 3 < usual.shards
    assert (bounded.documents, bounded.bytes) == (usual.documents, usual.bytes)
