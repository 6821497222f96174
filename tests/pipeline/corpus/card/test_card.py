"""The data card: its figures against the documents themselves, and a page that needs nothing from
elsewhere.
"""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.pipeline.corpus.card.card import bins, largest, render
from cloze.pipeline.corpus.files.intermediate import CORPUS, compact_batch
from cloze.pipeline.corpus.statistics import DOCUMENT_BINS, SENTENCE_BINS, add_up, measure
from tests.pipeline.corpus.corpora import make, prose, rows, write_jsonl


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    base = tmp_path_factory.mktemp("card")
    nasty = "<script>alert('x')</script> & \"quotes\" of a title"
    texts = [*(prose(n) for n in range(12)), prose(1) + "\n\nOne line more.", prose(2), "Short."]
    lines = [
        json.dumps({"id": str(n), "title": f"{nasty} {n}", "text": f"{text} It says {nasty}."})
        for n, text in enumerate(texts)
    ]
    (base / "a.jsonl").write_text("\n".join(lines) + '\n{"text": \n')
    write_jsonl(
        base / "tasks.jsonl",
        "Another text of a task that is not in the corpus at all, but long enough.",
    )
    return make(
        base / "out",
        f"jsonl={base}/a.jsonl",
        decontaminate=str(base / "tasks.jsonl"),
        shard_bytes=4096,
        heldout_fraction=0.3,
    )


def card_of(result) -> dict:
    return json.loads((Path(result.artifact) / "card.json").read_text())


def test_the_figures_are_those_of_the_documents(made):
    card, documents = card_of(made), rows(made)
    text = [" ".join(row["sentences"]) for row in documents]
    assert (
        card["totals"]
        | {
            "documents": len(documents),
            "sentences": sum(len(row["sentences"]) for row in documents),
            "words": sum(len(t.split()) for t in text),
            "characters": sum(map(len, text)),
            "bytes": sum(len(t.encode()) for t in text),
            "heldout_documents": sum(row["split"] == "heldout" for row in documents),
            "shards": len(list(Path(made.artifact).glob("corpus-*.arrow"))),
        }
        == card["totals"]
    )
    assert card["totals"]["shards"] > 2
    totals = card["totals"]
    assert totals["read_documents"] == totals["documents"] + sum(card["dropped"].values())
    source = card["sources"][0]
    assert (
        source["read_documents"]
        == source["documents"] + source["dropped_reading"] + source["duplicates"]
    )
    assert sum(card["histograms"]["document_words"]["counts"]) == totals["documents"]
    assert sum(card["histograms"]["sentence_words"]["counts"]) == totals["sentences"]
    assert card["quarantined"]
    assert {pair["reason"] for pair in card["duplicates"]["pairs"]} == {
        "near_duplicate",
        "exact_duplicate",
    }
    assert all(pair["similarity"] > 0.6 for pair in card["duplicates"]["pairs"])
    assert card["decontamination"]["tasks"] == [{"name": "tasks.jsonl", "documents": 0}]
    assert card["languages"]["sampled"] == len(documents)
    assert {example["reason"] for example in card["examples"]} == {"too_short"}
    assert not any(
        "/" + "tmp" in value for value in re.findall(r'"[^"]*"', json.dumps(card["settings"]))
    )


class _Page(HTMLParser):
    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(made):
    page = (Path(made.artifact) / "card.html").read_text()
    parser = _Page()
    parser.feed(page)
    assert parser.open == []
    assert "script" not in parser.tags  # and what a title holds is text
    assert parser.links == []
    assert "url(" not in page
    assert "@import" not in page
    assert "&lt;script&gt;" in page
    assert made.artifact not in page


def test_the_page_follows_from_the_card_and_is_no_data(made):
    assert render(card_of(made)) == (Path(made.artifact) / "card.html").read_text()
    data = {entry.path: entry.data for entry in made.manifest.files}
    assert (data["card.json"], data["card.html"]) == (
        False,
        False,
    )  # another look is no other corpus


@pytest.mark.parametrize(
    "emptied",
    [
        "languages",
        "dropped",
        "dropped_lines",
        "quarantined",
        "examples",
        "samples",
        "tasks",
        "none",
    ],
)
def test_a_page_of_less(made, emptied):
    card = copy.deepcopy(card_of(made))
    if emptied == "tasks":
        card["decontamination"]["tasks"] = []
    elif emptied == "none":
        card["duplicates"] |= {"method": "none", "pairs": []}
    elif emptied == "languages":
        card["languages"] = {"sampled": 0, "shares": {}}
    else:
        card[emptied] = type(card[emptied])()
    parser = _Page()
    parser.feed(render(card))
    assert parser.open == []


TEXT = (
    st.text(alphabet="ab é日本ถ", min_size=1, max_size=20)
    .map(lambda text: " ".join(text.split()))
    .filter(bool)
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.lists(TEXT, min_size=1, max_size=5), max_size=12),
    st.lists(st.integers(0, 12), max_size=3),
)
def test_shards_add_up(documents, cuts):
    from cloze.core.words import count_words

    table = pa.Table.from_pylist(
        [
            {
                "key": int(random_keys.splitmix64(n)),
                "id": str(n),
                "source": f"k{n % 2}",
                "title": "",
                "url": "",
                "licence": "MIT" * (n % 3),
                "origin": "",
                "infobox": [{"box": "", "name": "a", "value": "b"}] * (n % 3),
                "split": "train",
                "sentences": s,
                "paragraphs": [0],
            }
            for n, s in enumerate(documents)
        ],
        schema=CORPUS,
    )
    edges = [0, *sorted(min(cut, len(documents)) for cut in cuts), len(documents)]
    pieces = [table.slice(a, b - a) for a, b in zip(edges[:-1], edges[1:], strict=True)]
    found = add_up(measure(compact_batch(piece, CORPUS), len(documents)) for piece in pieces)
    assert found == add_up([measure(compact_batch(table, CORPUS), len(documents))])
    sums = {
        name: sum(source[name] for source in found["sources"].values())
        for name in ("documents", "sentences", "bytes", "characters")
    }
    for name, total in sums.items():
        assert sum(origin[name] for origin in found["origins"]) == total
    joined = [" ".join(sentences) for sentences in documents]
    if documents:
        assert sums["documents"] == len(documents)
        assert sums["characters"] == sum(map(len, joined))
        assert sums["bytes"] == sum(len(text.encode()) for text in joined)
    lengths = [count_words(text) for sentences in documents for text in sentences]
    assert sum(source["words"] for source in found["sources"].values()) == sum(lengths)
    bins = np.bincount(np.searchsorted(SENTENCE_BINS, lengths), minlength=len(SENTENCE_BINS) + 1)
    assert found["sentences"] == bins.tolist()
    assert sum(found["documents"]) == len(documents)
    assert len(found["documents"]) == len(DOCUMENT_BINS) + 1


def test_the_largest_and_the_others():
    assert largest({}, 3) == []
    assert largest({"a": 1, "b": 0, "c": 2}, 3) == [("c", 2), ("a", 1)]
    assert largest({f"r{n}": n for n in range(6)}, 3) == [("r5", 5), ("r4", 4), ("3 others", 6)]


def test_a_histogram_has_an_open_bin():
    assert bins({"limits": [2, 4], "counts": [5, 0, 1]}) == [
        ("≤2", "1 to 2", 5),
        ("≤4", "3 to 4", 0),
        (">4", "more than 4", 1),
    ]
