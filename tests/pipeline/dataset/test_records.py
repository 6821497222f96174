"""What shards and their summary say of the rows: every field, and what a damaged one is told as."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cloze.core.arrow import write_arrow
from cloze.core.artifacts import artifact
from cloze.core.errors import DataError, UsageError
from cloze.core.ragged import Ragged, offsets_of
from cloze.pipeline.dataset import append, build, rows, schema, shards
from cloze.pipeline.dataset.append import BaseDataset, add_counts, prefix
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.masking.draw import Masks
from cloze.pipeline.dataset.masking.registry import RuleMarks
from cloze.pipeline.dataset.row_view import read_row
from cloze.pipeline.dataset.rows import RowBlock
from cloze.pipeline.dataset.schema import DatasetInfo, ShardLayout, dataset_schema, id_dtype
from cloze.pipeline.dataset.shards import batch_rows, count_rows, sum_counts
from cloze.pipeline.dataset.stage import headline
from cloze.pipeline.dataset.summary import new_counts, summarize
from cloze.pipeline.tokenizer.special import SpecialTokens

SPECIAL = SpecialTokens(pad=0, unk=1, cls=2, sep=3, mask=4)
INFO = DatasetInfo(
    recipe="bert", length=16, copies=2, vocab_size=99, special=SPECIAL, pair_task="nsp", seed=7,
    tokenizer="t", masks={"rule": "token"},
)  # fmt: skip


def block(lengths: list[int], labels: list[int]) -> RowBlock:
    count = len(lengths)
    return RowBlock(
        rank=np.arange(count, dtype=np.uint64),
        ids=Ragged(np.arange(sum(lengths), dtype=np.uint16), offsets_of(np.array(lengths))),
        segment_start=np.array(lengths, np.int32),
        pair_label=np.array(labels, np.int8),
        document=np.arange(count, dtype=np.uint64),
        offset=np.arange(count, dtype=np.int64),
    )


def test_the_metadata_of_a_shard_is_read_as_it_was_written() -> None:
    written = dataset_schema(INFO, id_dtype(INFO.vocab_size))
    assert DatasetInfo.from_schema(written, "x") == INFO
    content = json.loads(written.metadata[b"cloze.dataset"])
    assert content == {
        "recipe": "bert", "length": 16, "copies": 2, "drawings": 1, "vocab_size": 99,
        "special": {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}, "pair_task": "nsp", "seed": 7,
        "tokenizer": "t", "packed": False, "masks": {"rule": "token"}, "version": 1,
    }  # fmt: skip


@pytest.mark.parametrize(("drawings", "packed"), [(1, False), (2, True)])
def test_the_columns_of_a_shard(drawings: int, packed: bool) -> None:
    info = DatasetInfo.from_schema(dataset_schema(INFO, id_dtype(99)), "x")
    info = DatasetInfo(**{**vars_of(info), "drawings": drawings, "packed": packed})
    found = {
        field.name: (str(field.type), field.nullable)
        for field in dataset_schema(info, id_dtype(99))
    }
    drawing = ", drawing: int32" if drawings > 1 else ""
    expected = {
        "input_ids": ("list<item: uint16>", False),
        "segment_start": ("int32", False),
        "pair_label": ("int8", True),
        "masks": (
            "list<item: struct<positions: list<item: uint16>, input_ids: list<item: uint16>>>",
            False,
        ),
        "source": (f"struct<document: uint64, offset: int32{drawing}>", False),
    }
    if packed:
        expected["boundaries"] = ("list<item: uint16>", False)
    assert (list(found), found) == (list(expected), expected)


def vars_of(info: DatasetInfo) -> dict[str, Any]:
    return {name: getattr(info, name) for name in DatasetInfo.__dataclass_fields__}


def test_ids_are_as_wide_as_they_need_to_be() -> None:
    assert [id_dtype(size) for size in (1 << 16, (1 << 16) + 1)] == [np.uint16, np.uint32]


def test_a_file_of_others_or_of_another_version_is_told() -> None:
    with pytest.raises(DataError) as caught:
        DatasetInfo.from_schema(pa.schema([]), "a.arrow")
    assert str(caught.value) == (
        "a.arrow is no Cloze dataset shard (its schema lacks the key cloze.dataset); make one with "
        "`cloze dataset`"
    )
    other = pa.schema([], metadata={b"cloze.dataset": b'{"version": 9}'})
    with pytest.raises(DataError) as caught:
        DatasetInfo.from_schema(other, "a.arrow")
    assert str(caught.value) == (
        "a.arrow has dataset version 9, this program reads 1; make it again"
    )
    assert ShardLayout.from_schema(pa.schema([]), "a.arrow") is None


LAYOUT = {"borders": [8, 16], "rows": [1, 4], "batch_rows": 2}


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"borders": ["x"]}, "cannot be read"),
        ({"rows": 3}, "cannot be read"),
        ({"borders": [8]}, "contradicts itself"),
        ({"batch_rows": 0}, "contradicts itself"),
        ({"rows": [-1, 4]}, "contradicts itself"),
        ({"drawings": [[1, 0], [2, 1]]}, "contradicts itself"),
    ],
)
def test_a_layout_that_cannot_be_is_told(given: dict[str, Any], fault: str) -> None:
    content = {b"cloze.layout": json.dumps({**LAYOUT, **given}).encode()}
    with pytest.raises(DataError) as caught:
        ShardLayout.from_schema(pa.schema([], metadata=content), "a.arrow")
    assert str(caught.value) == f"a.arrow is damaged (its layout {fault}); make the dataset again"


@pytest.mark.parametrize("more", [{}, {"compression": "zstd", "drawings": ((1, 0), (2, 2))}])
def test_a_layout_is_stored_without_what_is_empty(more: dict[str, Any]) -> None:
    layout = ShardLayout(bin_boundaries=(8, 16), rows=(1, 4), batch_rows=2, **more)
    stored = json.loads(layout.to_metadata()[b"cloze.layout"])
    assert stored == {"compression": None, **LAYOUT, **json.loads(json.dumps(more))}
    assert layout.cells == (((1,), (4,)) if not more else ((1, 0), (2, 2)))
    assert ShardLayout.from_schema(pa.schema([], metadata=layout.to_metadata()), "x") == layout
    assert layout.batches().tolist() == [1, 2, 2]


@pytest.mark.parametrize(
    ("length", "copies", "count"),
    [(128, 10, 2048), (128, 11, 1024), (512, 10, 512), (8, 1, 2048), (65_535, 10_000, 1)],
)
def test_a_record_batch_has_a_power_of_two_of_rows(length: int, copies: int, count: int) -> None:
    assert batch_rows(length, copies) == count


def test_rows_are_counted_by_label_length_and_masks() -> None:
    masks = Masks(
        positions=np.zeros(7, np.uint16),
        input_ids=np.zeros(7, np.uint16),
        offsets=np.array([0, 0, 0, 3, 5, 6, 7]),  # two copies of three rows; the first has none
    )
    found = count_rows(block([1, 16, 8], [0, 1, -1]), masks, 16)
    histogram = np.bincount([0, 15, 7], minlength=16).tolist()
    total = {
        "rows": 3, "row_tokens": 25, "masked": 7, "unmasked_rows": 1, "labels": [1, 1, 1],
        "histogram": histogram,
    }  # fmt: skip
    assert sum_counts([shards.NO_ROWS, found]) == total
    assert sum_counts([found, found])["histogram"] == [2 * count for count in histogram]
    assert sum_counts([shards.NO_ROWS]) == {
        "rows": 0, "row_tokens": 0, "masked": 0, "unmasked_rows": 0, "labels": [0, 0, 0],
        "histogram": [0] * 16,
    }  # fmt: skip


COUNTERS = {"tokens/read": 80, "tokens/in_rows": 60, "tokens/truncated": 20, "tokens/again": 12}
WRITTEN = {
    "rows": 5, "row_tokens": 60, "masked": 12, "unmasked_rows": 1, "labels": [3, 2, 0],
    "histogram": [5] + [0] * 15,
}  # fmt: skip


def summary(base: Any = None, known: int = 0, **given: Any) -> tuple[Any, Counter[str]]:
    context = SimpleNamespace(counters=Counter(COUNTERS))
    new = new_counts(INFO, {"train": 10, "heldout": 2}, [WRITTEN, WRITTEN], 4, COUNTERS)
    config = ExampleConfig(length=16, mask_copies=2, drawings=1)
    made = summarize(config, INFO, context, {**new, "words": 40, **given}, base, known)  # type: ignore[arg-type]
    return made, context.counters


def test_the_summary_of_new_shards() -> None:
    made, _ = summary()
    assert (made.rows, made.tokens) == (10, 80)
    found = dict(made.summary)
    assert [warning.split(" of")[0] for warning in found.pop("warnings")] == ["25.0%", "20.0%"]
    assert found == {
        "rows": 10, "heldout_rows": 2, "tokens": 80, "row_tokens": 120, "masked": 24,
        "unmasked_rows": 2, "shards": 2, "documents": 4, "words": 40,
        "pair_labels": {"next": 6, "random": 4, "none": 0},
        "length_histogram": [10] + [0] * 15,
        "copies": 2, "drawings": 1, "length": 16, "vocab_size": 99,
        "masked_share": 0.1, "mean_length": 12.0, "padding_share": 0.25,
        "tokens_in_rows_share": 0.75, "tokens_used_again": 12,
        "tokens_by_reason": {
            "in_rows": {"tokens": 60, "share": 0.75}, "truncated": {"tokens": 20, "share": 0.25},
        },
        # of 72 tokens of text in 12 rows, half a word each, 10 rows are of the training split
        "words_per_token": 0.25,
    }  # fmt: skip
    assert summary(words=None)[0].summary["words_per_token"] is None


def test_the_summary_of_what_is_appended() -> None:
    old = dict(summary()[0].summary)
    base = SimpleNamespace(manifest=SimpleNamespace(summary=old, counters=COUNTERS))
    made, counters = summary(base, known=3)
    assert made.summary["appended"] == {
        "rows": 10, "heldout_rows": 2, "tokens": 80, "shards": 2, "documents": 4,
    }  # fmt: skip
    doubled = {name: 2 * old[name] for name in append.ADDED}
    assert {name: made.summary[name] for name in append.ADDED} == doubled
    assert made.summary["words"] == 80
    assert made.summary["words_per_token"] == 0.25
    assert made.summary["pair_labels"] == {"next": 12, "random": 8, "none": 0}
    assert made.summary["length_histogram"] == [20] + [0] * 15
    expected = {name: 2 * count for name, count in COUNTERS.items()}
    assert counters == {**expected, "dropped/already_in_dataset": 3}
    for one, other in ((None, 5), (5, None)):
        both = add_counts({**old, "words": one}, {**old, "words": other})
        assert both["words"] is None


def test_the_last_line_says_what_was_made() -> None:
    made = {"rows": 1000, "tokens": 1_234_567, "shards": 4}
    assert headline(made) == "1,000 rows, 1.23M tokens read, 4 shards"
    assert headline({**made, "rows": 999, "warnings": ["it is bad"]}) == (
        "999 rows, 1.23M tokens read, 4 shards; warning: it is bad; warning: only 999 rows to train "
        "on: see what the corpus dropped, or give it more text"
    )


# Datasets that are appended to.


def base_at(path: Path, names: list[str], **given: Any) -> str:
    path.mkdir(parents=True, exist_ok=True)
    for name in names:
        (path / name).write_bytes(b"x")
    files = artifact.hash_files(str(path), names)
    fields = {"stage": "dataset", "version": 4, "fingerprint": "f", "parents": {}, "config": {}}
    artifact.write_manifest(str(path), artifact.Manifest(**{**fields, "files": files, **given}))
    return str(path)


def test_generations_are_counted_and_their_files_are_found(tmp_path: Path) -> None:
    assert [prefix("train", number) for number in (0, 1, 12)] == [
        "train",
        "train-a001",
        "train-a012",
    ]
    names = ["train-00000-of-00001.arrow", "documents.arrow", "train-a001-00000-of-00001.arrow"]
    names += ["documents-a002.arrow", "documents-x.txt", "train-ab-1.arrow", "unigrams.arrow"]
    summary = {"rows": 9, "shards": 2}
    found = BaseDataset.open(base_at(tmp_path / "x", names, summary=summary), 4)
    assert found.generation == 3
    assert [Path(file).name for file in found.documents] == [
        "documents-a002.arrow",
        "documents.arrow",
    ]
    assert found.rows_a_shard == 4.5
    first = BaseDataset.open(
        base_at(tmp_path / "y", names[:2], summary={"rows": 1, "shards": 4}), 4
    )
    assert (first.generation, first.rows_a_shard) == (1, 1.0)


def test_what_cannot_be_appended_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        BaseDataset.open(base_at(tmp_path / "x", [], stage="export"), 4)
    assert str(caught.value) == (
        f"{tmp_path}/x contains an export artifact, not a dataset; --append takes one that `cloze "
        f"dataset` made"
    )
    with pytest.raises(UsageError) as caught:
        BaseDataset.open(base_at(tmp_path / "y", [], version=3), 4)
    assert str(caught.value) == (
        f"{tmp_path}/y was made by version 3 of the dataset stage, this program has version 4, "
        f"whose rows differ; make it again, then append"
    )


@pytest.mark.parametrize("change", ["", "info", "borders", "layout"])
def test_settings_of_the_old_shards_count(change: str, tmp_path: Path) -> None:
    name = "train-00000-of-00001.arrow"
    path = base_at(tmp_path / "x", ["heldout-00000-of-00001.arrow", name])
    layout = ShardLayout(bin_boundaries=(8, 16), rows=(0, 0), batch_rows=2)
    written = dataset_schema(INFO, id_dtype(99))
    metadata = {**written.metadata, **({} if change == "layout" else layout.to_metadata())}
    write_arrow(f"{path}/{name}", written.with_metadata(metadata), [])
    info = DatasetInfo(**{**vars_of(INFO), "seed": 8}) if change == "info" else INFO
    base = BaseDataset.open(path, 4)
    if not change:
        base.check(info, (8, 16))
        return
    with pytest.raises(DataError) as caught:
        base.check(info, (16,) if change == "borders" else (8, 16))
    assert str(caught.value) == (
        f"{path}/{name} was made with other settings or length_bins; use the same, or make the "
        f"dataset without append"
    )


def test_keys_have_a_place_for_each_eight_million() -> None:
    sizes = (0, (1 << 24) - 1, 1 << 24)
    assert [append.key_exchange("/a", 3, size).places for size in sizes] == [1, 1, 2]
    found = append.key_exchange("/a", 3, 5)
    assert (found.directory, found.runs) == ("/a/documents", 3)


# Faults of what is read.


def test_rows_and_copies_that_are_not_there_are_told(tmp_path: Path) -> None:
    written = dataset_schema(INFO, id_dtype(99))
    masks = Masks(
        positions=np.zeros(0, np.uint16), input_ids=np.zeros(0, np.uint16), offsets=np.zeros(5, int)
    )
    batch = shards.to_batch(block([3, 4], [0, -1]), masks, 2, written)
    for number in range(2):
        write_arrow(f"{tmp_path}/train-{number}.arrow", written, [batch, batch])
    told: list[str] = []
    for row, copy in ((8, 0), (-1, 0), (7, 2), (7, -1)):
        with pytest.raises(UsageError) as caught:
            read_row(str(tmp_path), row, copy=copy)
        told.append(str(caught.value))
    assert told == [
        "row (8) is not one of the 8 rows of the split train; use 0 to 7",
        "row (-1) is not one of the 8 rows of the split train; use 0 to 7",
        "copy (2) is not one of the 2 mask copies; use 0 to 1",
        "copy (-1) is not one of the 2 mask copies; use 0 to 1",
    ]
    view = read_row(str(tmp_path), 7)
    assert (Path(view.file).name, view.row, view.rows, view.split) == (
        "train-1.arrow",
        7,
        8,
        "train",
    )
    assert (view.document, view.offset, view.pair_label, view.drawing) == (1, 1, None, 0)
    assert (view.as_json()["document"], "texts" in view.as_json()) == ("1", False)
    assert read_row(f"{tmp_path}/train-1.arrow", 0).pair_label == "next"
    with pytest.raises(DataError) as missing:
        read_row(str(tmp_path), 0, split="heldout")
    assert str(missing.value) == (
        f"{tmp_path} has no shards of the split heldout (heldout-*.arrow); name a dataset that "
        f"`cloze dataset` made"
    )


def test_a_batch_beyond_arrows_offsets_is_refused() -> None:
    most = np.iinfo(np.int32).max
    lists = Ragged(np.zeros(0, np.uint16), np.array([0, most + 1]))
    with pytest.raises(UsageError) as caught:
        rows.list_array(lists)
    assert str(caught.value) == (
        f"a record batch of {most + 1:,} tokens is more than Arrow's lists hold; use smaller corpus "
        f"shards, or fewer copies"
    )


def test_marks_and_their_rule_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    own = RuleMarks("m:f", "salient", "give the marks of salient")
    monkeypatch.setattr(build, "rule_marks", lambda: [own])
    rules = {"token": SimpleNamespace(marks=None), "own": SimpleNamespace(marks=own)}
    monkeypatch.setattr(build, "RULES", rules)
    monkeypatch.setattr(build.fingerprints, "input_fingerprint", lambda path: f"of {path}")
    manifest = SimpleNamespace(parents={"corpus": "of c"})
    monkeypatch.setattr(build.artifact, "read_manifest", lambda path: manifest)
    told: list[str] = []
    build._check_marks("own", {"corpus": "c", "salient": "m"})
    build._check_marks("token", {"corpus": "c"})
    for rule, inputs in (
        ("own", {"corpus": "c"}),
        ("token", {"corpus": "c", "salient": "m"}),
        ("own", {"corpus": "d", "salient": "m"}),
    ):
        with pytest.raises(UsageError) as caught:
            build._check_marks(rule, inputs)
        told.append(str(caught.value))
    assert told == [
        "masking (own) and salient must come together (found none; give the marks of salient)",
        "masking (token) and salient must come together (found m)",
        "salient (m) is of another corpus than d",
    ]


def test_layouts_and_rows_have_their_names() -> None:
    assert schema.NO_PAIR == -100
    assert (build.MOST_SHARDS, build.HELDOUT_SHARE, shards.HISTOGRAM_BINS) == (99_999, 32, 16)
