"""The plan of many references, by an engine's shuffle: byte for byte that of one process, whatever is held at once."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.config import parse_config
from pipeline.corpus.config import CorpusConfig
from pipeline.corpus.dedup.duplicates import repeated
from pipeline.corpus.dedup.shuffled import records
from pipeline.corpus.dedup.shuffled.firsts import Column, Links
from tests.pipeline.corpus.dedup.plans import SMALL, by_engine, by_lists, by_one
from tests.pipeline.corpus.dedup.references import invented

NOTHING = {"sources": [{"kind": "text", "path": "x"}]}
LINKED = {"threshold": 0.0}
EXACT = {"minhash": None}
IDS = {"minhash": None, "exact": False}


@pytest.mark.slow
def test_the_same_bytes_as_in_one_process(tmp_path: Path) -> None:
    references = invented(tmp_path, 500, seed=1)
    found = by_engine(tmp_path, references, most=60)
    assert found == by_one(tmp_path, references)
    assert min(found[0].dropped[reason] for reason in ("duplicate_id", "exact_duplicate", "near_duplicate")) > 20
    assert {(kind, of) for kind, of, _ in found[0].pairs} == {
        (kind, of) for kind in ("books", "text") for of in ("books", "text")
    }
    assert (tmp_path / "out" / "_scratch" / "dedup-lead-00").exists()
    assert (tmp_path / "out" / "_scratch" / "dedup-decided").exists()


SEARCHES = [{}, LINKED, EXACT, IDS, {"exact": False}]
NAMES = ["similar", "linked", "exact", "ids", "near alone"]


@pytest.mark.parametrize("more", SEARCHES, ids=NAMES)
@pytest.mark.parametrize("seeds", [range(20, 21), pytest.param(range(21, 27), marks=pytest.mark.soak)], ids=["one", "six"])
def test_the_same_bytes_whatever_is_held_at_once(more: dict[str, Any], seeds: range, tmp_path: Path) -> None:
    """Nothing is left to one process."""
    for seed in seeds:
        place = tmp_path / str(seed)
        place.mkdir()
        held = dataclasses.replace(
            SMALL, block=60 + 70 * (seed % 4), bucket=90 + 90 * (seed % 3), sampled=2 + seed % 5, rounds=60
        )
        references = invented(place, 200 + 50 * (seed % 3), seed, parts=1 + seed % 5, batch=7 + seed, hot=20)
        assert by_lists(place, references, held, **more) == by_one(place, references, **more)


@pytest.mark.parametrize("more", [{}, LINKED], ids=["similar", "linked"])
def test_what_rounds_leave_is_decided_in_one_process(
    more: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    references = invented(tmp_path, 800, seed=30, hot=200)
    held = dataclasses.replace(SMALL, rounds=1)
    assert by_lists(tmp_path, references, held, **more) == by_one(tmp_path, references, **more)
    assert "documents are undecided after 1 rounds; one process compares them" in caplog.text


def test_nothing_in_common_and_nothing_at_all(tmp_path: Path) -> None:
    for count in (30, 0):  # fewer than any group is made of
        place = tmp_path / str(count)
        place.mkdir()
        references = invented(place, count, seed=1, parts=3)
        found = by_lists(place, references)
        assert found == by_one(place, references)
        assert found[0].documents == count


@pytest.mark.slow
def test_of_a_few_duplicates_one_process_decides(tmp_path: Path) -> None:
    """And a mixture is chosen of what stays. Whoever asks again finds what is finished, though more may be compared now."""
    references = invented(tmp_path, 500, seed=2)
    mix = parse_config(CorpusConfig, {**NOTHING, "words": 2000, "mixture_by": "language", "language": "auto"}, "corpus")
    found = by_engine(tmp_path, references, most=10_000, mix=mix)
    assert found == by_one(tmp_path, references, mix=mix)
    assert 0 < sum(one["words"] for one in found[0].mixed) <= 2000
    assert not (tmp_path / "out" / "_scratch" / "dedup-ids").exists()
    assert by_engine(tmp_path, references, most=20_000, mix=mix) == found


@pytest.mark.soak
@pytest.mark.parametrize("more", SEARCHES, ids=NAMES)
def test_the_same_bytes_of_any_corpus_by_an_engine(more: dict[str, Any], tmp_path: Path) -> None:
    references = invented(tmp_path, 600, seed=10, batch=21)
    mix = parse_config(CorpusConfig, {**NOTHING, "words": 1000, "mixture_by": "language", "language": "auto"}, "corpus")
    assert by_engine(tmp_path, references, mix=mix, **more) == by_one(tmp_path, references, mix=mix, **more)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("more", [{}, LINKED], ids=["similar", "linked"])
def test_a_band_that_ten_thousand_share(more: dict[str, Any], tmp_path: Path) -> None:
    """A third of them are alike, so that they go in the first round; the others are no duplicates of anything, and one process tells."""
    references = invented(tmp_path, 20_000, seed=3, hot=10_000, batch=400)
    held = dataclasses.replace(SMALL, block=2500, bucket=4000, rounds=3)
    found = by_engine(tmp_path, references, most=1000, held=held, **more)
    assert found == by_one(tmp_path, references, **more)
    assert found[0].largest > 3000


def test_a_bucket_gets_one_record_a_block_of_what_everybody_has() -> None:
    links = Links(slices=1)
    column = Column.of(np.arange(10_000), np.full(10_000, 7, np.uint64))
    ((bucket, message),) = links.ask(3, [column])
    assert bucket == 0
    assert len(message) == 4 + 12
    messages = [message for block in range(50) for _, message in links.ask(block, [column])]
    answers = dict(links.match(0, messages))
    assert len(answers) == 50
    assert max(map(len, answers.values())) == 4 + 16
    ((first, shared),) = links.settle(9, [column], [answers[9]])
    assert set(first.tolist()) == {0}
    assert shared.all()


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12), min_size=1, max_size=5),
    st.booleans(),
    st.randoms(),
)
def test_firsts_against_one_process(blocks: list[list[tuple[int, int]]], wide: bool, random: Any) -> None:
    """As `repeated` finds them of all blocks together, whatever the order of messages."""
    links = Links(slices=2, wide=wide)
    columns, inboxes = [], {}
    for number, rows in enumerate(blocks):
        values, lower = np.array(rows, np.uint64).reshape(-1, 2).T
        columns.append(Column.of(np.arange(len(rows)), values << np.uint64(62), lower.copy() if wide else None))
        for bucket, message in links.ask(number, columns[-1:]):
            inboxes.setdefault(bucket, []).append(message)
    answers: dict[int, list[bytes]] = {}
    for bucket, messages in inboxes.items():
        random.shuffle(messages)
        for block, answer in links.match(bucket, messages):
            answers.setdefault(block, []).append(answer)
    together = np.array([value * 3 + (lower if wide else 0) for rows in blocks for value, lower in rows], np.uint64)
    ranks = np.concatenate([records.ranks_of(number, np.arange(len(rows))) for number, rows in enumerate(blocks)])
    expected, others = ranks.copy(), np.zeros(ranks.size, dtype=bool)
    later, first = repeated(together)
    expected[later] = ranks[first]
    others[later] = others[first] = True
    found = [next(links.settle(number, [column], answers.get(number, []))) for number, column in enumerate(columns)]
    assert np.concatenate([first for first, _ in found]).tolist() == expected.tolist()
    assert np.concatenate([shared for _, shared in found]).tolist() == others.tolist()


@given(st.integers(0, records.MOST_PARTS - 1), st.integers(0, records.MOST_BATCHES - 1))
def test_wheres_keep_their_order_and_come_apart(part: int, batch: int) -> None:
    where = records.where_of(part, batch, 3)
    assert [column.tolist() for column in records.places_of(where)] == [[part] * 3, [batch] * 3, [0, 1, 2]]
    if part:
        assert records.where_of(part - 1, records.MOST_BATCHES - 1, 1)[0] < where[0]
