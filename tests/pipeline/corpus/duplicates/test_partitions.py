"""The plan of many references in partitions: byte for byte that of one process, whatever is held at
once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.duplicates import plan
from cloze.pipeline.corpus.duplicates.partitions import Sizes
from tests.pipeline.corpus.duplicates.plans import by_engine, by_lists, by_one
from tests.pipeline.corpus.duplicates.references import invented

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


@pytest.mark.parametrize("more", SEARCHES, ids=NAMES)
@pytest.mark.parametrize(
    "seeds",
    [range(20, 21), pytest.param(range(21, 27), marks=pytest.mark.soak)],
    ids=["one", "six"],
)
def test_the_same_bytes_whatever_is_held_at_once(
    more: dict[str, Any], seeds: range, tmp_path: Path
) -> None:
    for seed in seeds:
        place = tmp_path / str(seed)
        place.mkdir()
        held = Sizes(partition=15 + 40 * (seed % 4))
        references = invented(
            place, 200 + 50 * (seed % 3), seed, parts=1 + seed % 5, batch=7 + seed, hot=20
        )
        assert by_lists(place, references, held, **more) == by_one(place, references, **more)


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
    monkeypatch.setattr(plan, "MOST_SHARDS", 3)
    bounded = by_one(tmp_path, references)[0]
    assert bounded.shards == 3 < usual.shards
    assert (bounded.documents, bounded.bytes) == (usual.documents, usual.bytes)
