"""Datasets of several drawings: what is stored, counted and said, and what a text does to pairs."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.stages.execute import BuildResult
from cloze.pipeline.dataset import ranges
from cloze.pipeline.dataset.masking.candidates import (
    DRAWING_BIT,
    MaskConfig,
    TokenProperties,
    UnmaskedRows,
    row_keys,
)
from cloze.pipeline.dataset.masking.draw import sample_masks
from cloze.pipeline.dataset.row_view import read_row
from cloze.pipeline.dataset.schema import DatasetInfo, ShardLayout
from cloze.pipeline.dataset.stage import headline
from cloze.pipeline.tokenizer import load
from tests import warm
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import CONFIG, made_corpus, make, rows, tables, write_vocab
from tests.pipeline.dataset.test_stage import DRIVER

D = 3


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory: Path = tmp_path_factory.mktemp("inputs")
    return made_corpus(directory / "corpus"), write_vocab(directory)


@pytest.fixture(scope="module")
def made(inputs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return make(*inputs, tmp_path_factory.mktemp("made"), drawings=D)


def by_drawing(result: BuildResult) -> list[list[dict[str, Any]]]:
    found = rows(result)
    return [[row for row in found if row["source"]["drawing"] == number] for number in range(D)]


def test_the_first_drawing_is_the_dataset_of_one(
    inputs: tuple[str, str], made: BuildResult, tmp_path: Path
) -> None:
    one = make(*inputs, tmp_path / "one")
    drawings = by_drawing(made)
    for row in drawings[0]:
        del row["source"]["drawing"]
    assert sorted(map(repr, drawings[0])) == sorted(map(repr, rows(one)))
    assert len(rows(made, "heldout")) == len(rows(one, "heldout"))  # drawn once
    texts = [{tuple(row["input_ids"]) for row in drawing} for drawing in drawings]
    assert len(texts[0] & texts[1]) < 0.2 * len(texts[0])
    assert len(texts[1] & texts[2]) < 0.2 * len(texts[1])


def test_rows_are_in_the_order_of_their_drawings(made: BuildResult) -> None:
    order = [row["source"]["drawing"] for row in rows(made)]
    assert order == sorted(order)
    total: Counter[int] = Counter()
    for number, table in enumerate(tables(made)):
        info = DatasetInfo.from_schema(table.schema, "shard")
        layout = ShardLayout.from_schema(table.schema, "shard")
        assert layout is not None
        assert (info.drawings, info.copies) == (D, CONFIG["mask_copies"])
        own = Counter(row["drawing"] for row in table["source"].to_pylist())
        assert layout.drawings == (tuple(own[drawing] for drawing in range(D)),), number
        total += own
    assert [len(drawing) for drawing in by_drawing(made)] == [total[d] for d in range(D)]
    view = read_row(made.artifact, len(order) - 1)
    assert (view.drawing, view.drawings) == (D - 1, D)


def test_stored_masks_follow_from_source(inputs: tuple[str, str], made: BuildResult) -> None:
    table, config = TokenProperties.of(load(inputs[1])), MaskConfig(max_predictions=8)
    seen = {}
    for row in rows(made):
        ids, source = np.array(row["input_ids"], np.uint16), row["source"]
        key = row_keys(7, source["document"], source["offset"] + (source["drawing"] << DRAWING_BIT))
        assert int(key) not in seen
        seen[int(key)] = row
        unmasked = UnmaskedRows(
            keys=np.array([key]),
            input_ids=ids,
            offsets=np.array([0, len(ids)]),
            segment_start=np.array([row["segment_start"]]),
        )
        masks = sample_masks(unmasked, config, table, [1])
        assert masks.positions.tolist() == row["masks"][1]["positions"]


def test_workers_and_buckets_do_not_matter(
    inputs: tuple[str, str], made: BuildResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scrambled = made_corpus(tmp_path / "scrambled", scrambled=True)
    command = [warm.python(), "-c", DRIVER, scrambled, inputs[1], str(tmp_path / "two"), "2"]
    config = json.dumps({**CONFIG, "drawings": D})
    found = subprocess.run([*command, config], check=True, capture_output=True, text=True).stdout
    assert found.split()[-1] == made.manifest.content_sha256
    monkeypatch.setattr(ranges, "BUCKET_TOKENS", 3000)
    bins = make(*inputs, tmp_path / "bins", drawings=D, length_bins=3, shards=5)
    assert sorted(map(repr, rows(bins))) == sorted(map(repr, rows(made)))
    for table in tables(bins):
        layout = ShardLayout.from_schema(table.schema, "shard")
        assert layout is not None
        cells = Counter(
            (min(2, (len(ids) - 1) // 16), source["drawing"])
            for ids, source in zip(
                table["input_ids"].to_pylist(), table["source"].to_pylist(), strict=True
            )
        )
        assert layout.cells == tuple(tuple(cells[b, d] for d in range(D)) for b in range(3))


def test_new_documents_are_drawn_as_often(
    inputs: tuple[str, str], made: BuildResult, tmp_path: Path
) -> None:
    more = write_corpus(tmp_path / "more", [(f"new/{n}", t) for n, t in made_documents(6, 9)])
    both = make(more, inputs[1], tmp_path / "both", append=made.artifact, drawings=D)
    old = {row["source"]["document"] for row in rows(made)}
    new = [row["source"]["drawing"] for row in rows(both) if row["source"]["document"] not in old]
    assert sorted(set(new)) == [0, 1, 2]
    assert new == sorted(new)
    assert both.manifest.summary["unmasked_rows"] == 0


# What a text does to pairs: said in the last line.


def words(count: int, seed: int = 0) -> str:
    return " ".join(("ba", "mo", "gu", "ti")[(seed + n * n) % 4] for n in range(count))


def few_rows(result: BuildResult) -> Iterator[str]:
    """Parts of the last line, without the warning of few rows."""
    return (part for part in headline(result.manifest.summary).split("; ") if "only" not in part)


CASES: dict[str, tuple[dict[str, Any], list[list[int]], str | None]] = {
    "ordinary": ({}, [[8] * 60] * 30, None),
    "no end marks": ({}, [[5000], [4000]], None),
    "paragraphs": ({}, [[90, 300, 150, 220]] * 12, None),
    "sentences as long as a row": ({}, [[44] * 30] * 8, "% of the tokens are in no row"),
    "one sentence": ({}, [[20]] * 60, "100.0% of the nsp labels are random, not 50%"),
    "two sentences": ({}, [[14, 15]] * 90, "% of the nsp labels are random, not 50%"),
    "one document": ({}, [[8] * 300], "0.0% of the nsp labels are random, not 50%"),
    "albert, one sentence": ({"recipe": "albert"}, [[30]] * 60, "100.0% of the rows have no sop"),
    "albert": ({"recipe": "albert"}, [[8] * 60] * 30, None),
    "short documents": ({"recipe": "spanbert"}, [[3]] * 90, "rows have 5 of 48 tokens on average"),
    "electra": ({"recipe": "electra"}, [[40] * 30] * 8, "% of the tokens are in no row"),
    "another share": ({"random_next_prob": 0.9}, [[8] * 60] * 30, None),
    "no pairs": ({"pairing": "full"}, [[30]] * 90, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_last_line_says_what_a_text_does_to_pairs(
    inputs: tuple[str, str], tmp_path: Path, case: str
) -> None:
    values, sizes, expected = CASES[case]
    text = [
        (f"d{number}", [words(size, number + at) for at, size in enumerate(document)])
        for number, document in enumerate(sizes)
    ]
    values = {"recipe": "bert", "drawings": None, "mask_copies": None} | values
    result = make(write_corpus(tmp_path / "corpus", text), inputs[1], tmp_path / "out", **values)
    said = " ".join(few_rows(result)).split("warning: ")[1:]
    assert len(said) == (expected is not None), said
    assert expected is None or expected in said[0]
    summary = result.manifest.summary
    share = summary["tokens_by_reason"]["truncated"]["share"]
    assert (share > 0.05) == ("in no row" in " ".join(said))
    assert summary["drawings"] * summary["copies"] in (10, 40)


def test_rows_without_masks_are_counted(inputs: tuple[str, str], tmp_path: Path) -> None:
    foreign = [(f"d{n}", ["漢字 仮名 文字。"] * 20) for n in range(20)]
    mixed = foreign[:10] + [(f"e{n}", [words(9)] * 20) for n in range(90)]
    for name, text, share in (("all", foreign, 1.0), ("some", mixed, 0.0)):
        corpus = write_corpus(tmp_path / name, text)
        result = make(corpus, inputs[1], tmp_path / f"{name}-out", pairing="document")
        bare = sum(not any(mask["positions"] for mask in row["masks"]) for row in rows(result))
        assert result.manifest.summary["unmasked_rows"] == bare > 0
        said = [part for part in few_rows(result) if "have no masks" in part]
        assert bool(said) == (bare > 0.05 * len(rows(result)))
        assert share < 1 or "100.0% of the rows" in said[0]
