"""How much of each source is taken: budgets, weights, temperature, repetitions; whatever the
order of files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.humanize import parse_count
from cloze.core.stages.execute import BuildResult
from cloze.pipeline.corpus import mixing
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.options import MixtureOptions
from tests.pipeline.corpus import mixtures as reference
from tests.pipeline.corpus.corpora import make, rows
from tests.pipeline.corpus.mixtures import choose_in_parts, sample_mixture

LOOSE = {"minimum_letters": 0.0, "dedup": "exact", "shard_bytes": 4096, "heldout_fraction": 0.2}
WORDS = 13  # of a sentence below


def written(directory: Path, count: int, first: int) -> Path:
    """Files of made-up words, 20 to 60 sentences each, no two alike."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        random = np.random.default_rng(number)
        lines = random.integers(0, 8, (int(random.integers(20, 60)), 10))
        words = [" ".join("abcdefgh"[n] * 3 + str(n) for n in line) for line in lines]
        (directory / f"b{number}.txt").write_text(
            "\n\n".join(f"So {line} it was." for line in words)
        )
    return directory


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    place = tmp_path_factory.mktemp("sources")
    return [f"books={written(place / 'books', 30, 0)}", f"text={written(place / 'text', 12, 100)}"]


@pytest.fixture(scope="module")
def whole(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    """All that there is."""
    return make(tmp_path_factory.mktemp("whole"), *sources, **LOOSE)


def words_of(found: Any, split: str = "train") -> dict[str, int]:
    counts: dict[str, int] = {}
    for document in rows(found):
        if document["split"] == split:
            counts[document["source"]] = counts.get(document["source"], 0) + sum(
                len(s.split()) for s in document["sentences"]
            )
    return counts


def test_a_budget_is_kept_and_the_rest_is_counted(
    sources: list[str], whole: BuildResult, tmp_path: Path
) -> None:
    some = make(tmp_path / "some", *sources, **LOOSE, max_words=4000)
    there, taken = words_of(whole), words_of(some)
    total = sum(taken.values())
    assert 4000 - 2 * 20 * WORDS < total <= 4000  # it lacks less than the shortest document of each
    for kind, count in taken.items():
        assert count == pytest.approx(4000 * there[kind] / sum(there.values()), abs=60 * WORDS)
    counters = some.manifest.counters
    dropped = {name: n for name, n in counters.items() if name.startswith("dropped/")}
    assert dropped["dropped/over_budget"] > 0
    assert counters["read/documents"] == counters["kept/documents"] + sum(dropped.values())
    ids = {document["id"] for document in rows(whole)}
    assert {document["id"] for document in rows(some)} < ids
    assert "over_budget" not in json.dumps(whole.manifest.counters)
    card = json.loads((Path(some.artifact) / "card.json").read_text())
    assert {one["name"]: one["words"] for one in card["mixture"]} == taken
    for source in card["sources"]:
        assert source["epochs"] == pytest.approx(
            taken[source["kind"]] / there[source["kind"]], abs=1e-4
        )
    assert sum(source["share"] for source in card["sources"]) == pytest.approx(1)
    assert "For training, as it was asked for" in (Path(some.artifact) / "card.html").read_text()


def test_order_and_places_of_files_do_not_matter(sources: list[str], tmp_path: Path) -> None:
    settings = {**LOOSE, "max_words": 5000, "mixture": {"books": 1, "text": 1}}
    one = make(tmp_path / "one", *sources, **settings)
    books = sorted(Path(sources[0].partition("=")[2]).iterdir())
    for name, part in (("p", books[::2]), ("q", books[1::2])):
        (tmp_path / name).mkdir()
        for file in part:
            (tmp_path / name / file.name).write_bytes(file.read_bytes())
    other = make(
        tmp_path / "other",
        f"books={tmp_path}/q",
        sources[1],
        f"books={tmp_path}/p",
        **settings,
    )
    assert other.manifest.content_sha256 == one.manifest.content_sha256
    assert other.manifest.fingerprint == one.manifest.fingerprint
    taken = words_of(one)
    assert taken["books"] == pytest.approx(2500, abs=20 * WORDS)
    assert taken["text"] == pytest.approx(2500, abs=20 * WORDS)


def test_what_is_repeated_has_ids_of_its_own_and_nothing_held_out_is(
    sources: list[str], whole: BuildResult, tmp_path: Path
) -> None:
    """A third of the text is wanted four times as much: twice whole, and a part once more."""
    there = words_of(whole)
    weights = {"books": there["books"], "text": 2.5 * there["text"]}
    asked = int(sum(weights.values()))
    found = make(
        tmp_path / "more", *sources, **LOOSE, max_words=asked, mixture=weights, mixture_epochs=3
    )
    taken = words_of(found)
    assert taken["books"] == pytest.approx(there["books"], abs=60 * WORDS)
    assert taken["text"] == pytest.approx(2.5 * there["text"], abs=60 * WORDS)
    documents = rows(found)
    assert (
        len({document["id"] for document in documents})
        == len({document["key"] for document in documents})
        == len(documents)
    )
    again = [document for document in documents if "#" in document["id"]]
    assert {document["id"].partition("#")[2] for document in again} == {"2", "3"}
    by_id = {document["id"]: document for document in documents}
    for document in again:
        first = by_id[document["id"].partition("#")[0]]
        assert document["sentences"] == first["sentences"]
        assert (document["split"], first["split"]) == ("train", "train")
        assert first["key"] == random_keys.document_key(first["id"])
    (text,) = (one for one in found.manifest.summary["mixture"] if one["name"] == "text")
    assert text["epochs"] == pytest.approx(2.5, abs=0.2)
    assert words_of(found, "heldout") == words_of(
        make(tmp_path / "plain", *sources, **LOOSE), "heldout"
    )


def test_by_temperature_and_without_a_budget() -> None:
    """Ten documents of 10 words, forty of 10: at 2 the shares are as roots, and the scarcer group
    is taken whole.
    """
    keys = random_keys.fold_in(7, np.arange(50))
    words, groups = np.full(50, 10), np.repeat([0, 1], [10, 40])
    options = MixtureOptions(mixture_temperature=2.0)
    found = choose_in_parts(keys, words, np.zeros(50, bool), groups, ["a", "b"], options)
    assert {one["name"]: one["words"] for one in found.groups} == {"a": 100, "b": 200}
    assert found.dropped == {"over_budget": 20}
    twice = choose_in_parts(
        keys,
        words,
        np.zeros(50, bool),
        groups,
        ["a", "b"],
        options.model_copy(update={"mixture_epochs": 2.0}),
    )
    assert {one["name"]: one["words"] for one in twice.groups} == {"a": 200, "b": 400}
    assert sorted(twice.numbers.tolist()) == sorted([*range(10), *range(50)])
    order = np.random.default_rng(0).permutation(50)
    other = choose_in_parts(
        keys[order], words, np.zeros(50, bool), groups[order], ["a", "b"], options
    )
    assert sorted(keys[order][other.numbers].tolist()) == sorted(keys[found.numbers].tolist())


def test_languages_are_weighed_and_others_are_dropped() -> None:
    keys = random_keys.fold_in(9, np.arange(30))
    options = MixtureOptions(mixture_by="language", language="auto", mixture={"de": 1, "fr": 1})
    groups = np.repeat([0, 1, 2], 10)
    found = choose_in_parts(
        keys, np.full(30, 10), np.zeros(30, bool), groups, ["de", "en", "fr"], options
    )
    assert {one["name"]: one["documents"] for one in found.groups} == {"de": 10, "fr": 10}
    assert found.dropped == {"not_in_mixture": 10}
    with pytest.raises(UsageError, match="weight for 'fr', but no documents"):
        choose_in_parts(
            keys, np.full(30, 10), np.zeros(30, bool), groups, ["de", "en", "it"], options
        )


@settings(deadline=None, max_examples=150)
@given(
    count=st.integers(1, 400),
    seed=st.integers(0, 1 << 30),
    parts=st.integers(1, 9),
    filling=st.sampled_from([1, 5, 1000]),
    budget=st.one_of(st.none(), st.integers(1, 5000)),
    epochs=st.sampled_from([1.0, 2.5]),
    weights=st.sampled_from(["none", "given", "by size"]),
    longest=st.sampled_from([1, 9, 2000]),
    deviations=st.sampled_from([0.01, 4]),
)
def test_any_parts_choose_what_one_process_did(
    count: int,
    seed: int,
    parts: int,
    filling: int,
    budget: int | None,
    epochs: float,
    weights: str,
    longest: int,
    deviations: float,
) -> None:
    """Documents of no words, equal keys, groups without text, windows that miss the end."""
    random = np.random.default_rng(seed)
    keys = random_keys.fold_in(seed, random.integers(0, max(2, 3 * count), count))
    words, heldout = random.integers(0, longest + 1, count), random.random(count) < 0.1
    words[random.random(count) < 0.05] *= 100
    groups = random.integers(0, 3, count) ** 2 // 2
    names = ["a", "b", "c"]
    options = MixtureOptions(
        max_words=budget,
        mixture={"a": 5.0, "c": 0.25} if weights == "given" else {},
        mixture_temperature=3.0 if weights == "by size" else 1.0,
        mixture_epochs=epochs if budget or weights != "none" else 1.0,
    )

    def told(choose: Any, *more: Any) -> Any:
        try:
            found = choose(keys, words, heldout, groups, names, options, *more)
        except UsageError as error:
            return str(error)
        pairs = sorted(zip(found.numbers.tolist(), found.copies.tolist(), strict=True))
        return pairs, found.groups, found.dropped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "FILLING", filling)
        patch.setattr(reference, "FILLING", filling)
        patch.setattr(mixing, "DEVIATIONS", deviations)
        expected = told(sample_mixture)
        assert told(choose_in_parts, random.integers(0, parts, count)) == expected


def test_only_documents_near_the_end_of_a_budget_are_looked_at() -> None:
    """Of many documents some thousands, though their sizes differ as those of the web do."""
    count = 300_000
    random = np.random.default_rng(1)
    keys, words = random_keys.fold_in(3, np.arange(count)), random.lognormal(6, 1.2, count)
    columns = (keys, words.astype(np.int64), np.zeros(count, bool), np.zeros(count, np.int64))
    options = MixtureOptions(max_words=int(words.sum() / 3))
    looked: list[int] = []
    found = choose_in_parts(*columns, ["a"], options, looks=looked)
    assert found.groups == sample_mixture(*columns, ["a"], options).groups
    assert sum(looked) < 15_000


@pytest.mark.parametrize("lost", ["dropped", "held out"])
def test_a_weighted_source_without_documents_to_train_on_is_refused(lost: str) -> None:
    """The names of sources are known even if cleaning drops all documents of one."""
    keys, groups = random_keys.fold_in(9, np.arange(20)), np.repeat([0, 1], [10, 10])
    options = MixtureOptions(mixture={"books": 3, "text": 1})
    rows = slice(10 if lost == "dropped" else 20)
    with pytest.raises(UsageError, match="weight for 'text', but no documents"):
        choose_in_parts(
            keys[rows], np.full(20, 10)[rows], groups[rows] == 1, groups[rows], ["books", "text"],
            options,
        )  # fmt: skip


def test_a_budget_above_what_there_is_keeps_everything(
    sources: list[str], whole: BuildResult, tmp_path: Path
) -> None:
    some = make(tmp_path / "some", *sources, **LOOSE, max_words="10M")
    assert words_of(some) == words_of(whole)
    twice = make(tmp_path / "twice", *sources, **LOOSE, max_words="10M", mixture_epochs=2)
    card = json.loads((Path(twice.artifact) / "card.json").read_text())
    assert [source["epochs"] for source in card["mixture"]] == [2, 2]


@pytest.mark.parametrize(
    "weights", [{"mixture": {"books": 1, "text": 1}}, {"mixture_temperature": 2}]
)
def test_weights_that_need_more_than_there_is_are_refused(
    sources: list[str], tmp_path: Path, weights: dict[str, Any]
) -> None:
    with pytest.raises(
        UsageError,
        match=r"source books has [\d,]+ words for training, but the mixture needs [\d,]+",
    ):
        make(tmp_path / "out", *sources, **LOOSE, max_words="10M", **weights)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"max_words": "ten"}, "write it as 10M"),
        ({"max_words": 0}, "max_words"),
        (
            {"mixture": {"book": 1, "text": 1}},
            "weight for 'book', but no source is of that kind; did you mean 'books'",
        ),
        ({"mixture": {"books": 1}}, "no weight for 'text'"),
        ({"mixture": {"books": 1, "text": -1}}, "mixture"),
        ({"mixture": {"books": 1, "text": 1}, "mixture_temperature": 2}, "mutually exclusive"),
        ({"mixture_by": "language"}, "needs language: auto"),
        ({"mixture_epochs": 2}, "Set mixture, mixture_temperature or max_words"),
    ],
)
def test_bad_values_are_a_sentence(values: dict[str, Any], sentence: str) -> None:
    sources = [{"kind": "books", "path": "a"}, {"kind": "text", "path": "b"}]
    with pytest.raises(UsageError, match=sentence):
        parse_config(CorpusConfig, {"sources": sources, **values}, "corpus")


def test_a_config_that_was_written_down_is_read_back() -> None:
    for values in ({}, {"max_words": "2k", "mixture": {"books": 1}}):
        config = parse_config(
            CorpusConfig, {"sources": [{"kind": "books", "path": "a"}], **values}, "corpus"
        )
        assert parse_config(CorpusConfig, config.model_dump(mode="json"), "corpus") == config


def test_numbers_of_words_are_read_as_people_write_them() -> None:
    assert [parse_count(text) for text in ("10M", "2.5m", "800k", "10_000", "1G", "7")] == [
        10_000_000,
        2_500_000,
        800_000,
        10_000,
        1_000_000_000,
        7,
    ]
    assert [parse_count(text) for text in ("10,000", "1,000.5k", "2.3M", "300e9")] == [
        10_000,
        1_000_500,
        2_300_000,
        300_000_000_000,
    ]
    for text in ("10 apples", "2.5", "1,2", "1000,2000", "1,0000", "1.2345k"):
        assert parse_count(text) is None, text
