"""The dataset stage: shards that are equal to the byte however they were made, and hold what the
schema says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core import random_keys
from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.core.words import count_words
from cloze.pipeline.dataset import ranges
from cloze.pipeline.dataset.config import DatasetConfig
from cloze.pipeline.dataset.masking.candidates import (
    MaskConfig,
    TokenProperties,
    UnmaskedRows,
    row_keys,
)
from cloze.pipeline.dataset.masking.draw import sample_masks
from cloze.pipeline.dataset.schema import DatasetInfo
from cloze.pipeline.dataset.stage import STAGE
from cloze.pipeline.tokenizer import load
from tests import warm
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import CONFIG, PIECES, made_corpus, make, tables, write_vocab

GOLDEN = Path(__file__).resolve().parents[2] / "golden.json"
DRIVER = """
import json, sys
from cloze.pipeline.dataset.config import DatasetConfig
from cloze.pipeline.dataset.stage import STAGE
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.pipeline.dataset import ranges
if __name__ == "__main__":
    corpus, vocab, out, workers, config = sys.argv[1:]
    ranges.BUCKET_TOKENS = 4000
    result = execute(STAGE, DatasetConfig(**json.loads(config)), {"corpus": corpus, "vocab": vocab}, out, execution=Execution(workers=int(workers)))
    print(result.manifest.content_sha256)
"""


@pytest.fixture(scope="module")
def vocab(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_vocab(tmp_path_factory.mktemp("vocab"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return made_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def made(corpus: str, vocab: str, tmp_path_factory: pytest.TempPathFactory):
    return make(corpus, vocab, tmp_path_factory.mktemp("dataset"))


def test_golden(made):
    """If this fails on purpose, raise `VERSION` in pipeline/dataset/stage.py and write the new hash
    to golden.json.
    """
    golden = json.loads(GOLDEN.read_text())["dataset"]
    assert {"version": STAGE.version, "content_sha256": made.manifest.content_sha256} == golden


def test_shards_are_balanced_and_typed(made):
    shards = tables(made)
    rows = [len(shard) for shard in shards]
    assert len(rows) == 4
    assert max(rows) - min(rows) <= 1
    assert sum(rows) == made.manifest.summary["rows"] > 100
    [heldout] = tables(made, "heldout")
    assert len(heldout) == made.manifest.summary["heldout_rows"] > 0
    info = DatasetInfo.from_schema(shards[0].schema, "shard")
    assert (info.recipe, info.length, info.copies, info.pair_task, info.seed) == (
        "bert",
        48,
        3,
        "nsp",
        7,
    )
    assert info.tokenizer == load(str(Path(made.artifact) / "tokenizer")).fingerprint
    assert shards[0].schema.field("input_ids").type == pa.list_(pa.uint16())


@pytest.mark.parametrize(
    "values",
    [
        {"pairing": "sentence-pair"},
        {"pairing": "full"},
        {"pairing": "sop", "length": 128},
        *(
            pytest.param(values, marks=pytest.mark.soak)
            for values in (
                {"length": 128},
                {"pairing": "sentence-pair", "random_next_prob": 0},
                {"pairing": "document", "length": 128},
            )
        ),
    ],
)
def test_the_plan_expects_as_many_rows_as_the_stage_makes(vocab, tmp_path, values):
    text = [sentence for _, document in made_documents() for sentence in document]
    corpus = write_corpus(tmp_path / "corpus", made_documents())
    result = make(corpus, vocab, tmp_path / "made", **values)
    summary = result.manifest.summary
    size = sum(map(len, text))
    inputs = {
        "corpus": {"bytes": size, "sentences": len(text), "documents": len(list(made_documents()))},
        "vocab": {"bytes_per_piece": size / summary["tokens"]},
    }
    config = DatasetConfig(**{**CONFIG, **values})
    expected = STAGE.cost_model.estimate(PlannedBuild(config, inputs, Execution(), MachineSpec()))
    assert expected.expected_metadata["rows"] == pytest.approx(summary["rows"], rel=0.2)
    length = expected.expected_metadata["mean_length"]
    assert length == pytest.approx(summary["mean_length"], rel=0.2)


def test_words_per_token_of_rows(vocab, tmp_path):
    corpus = made_corpus(tmp_path / "corpus")
    words = sum(count_words(sentence) for _, text in made_documents() for sentence in text)
    manifest = artifact.read_manifest(corpus)
    artifact.write_manifest(corpus, replace(manifest, summary={"words": words}))
    result = make(corpus, vocab, tmp_path / "made")
    rows = [row["input_ids"] for table in tables(result) for row in table.to_pylist()]
    special = load(vocab).special.ids
    text_tokens = sum(token not in special for ids in rows for token in ids)
    summary = result.manifest.summary
    assert summary["words"] == words
    expected = words / summary["tokens"] * text_tokens / sum(map(len, rows))
    assert summary["words_per_token"] == pytest.approx(expected, rel=0.02)


def test_rows_hold_the_text_and_masks_can_be_drawn_again(made, corpus, vocab):
    """From a shard alone: its rows and `source` give the keys, and these give the stored masks."""
    tokenizer = load(vocab)
    documents = {random_keys.document_key(name): text for name, text in made_documents()}
    table = TokenProperties(
        size=tokenizer.vocab_size, special=tokenizer.special, word_start=tokenizer.word_start
    )
    first_pieces = {
        key: [tokenizer.encode_batch([s])[0] for s in text] for key, text in documents.items()
    }
    for shard in tables(made):
        for row in shard.to_pylist():
            ids, start = row["input_ids"], row["segment_start"]
            assert 5 <= len(ids) <= 48
            assert (ids[0], ids[start - 1], ids[-1]) == (2, 3, 3)
            assert len(row["masks"]) == 3
            key = row_keys(7, [row["source"]["document"]], [row["source"]["offset"]])
            rows = UnmaskedRows(
                keys=key,
                input_ids=np.array(ids, np.uint16),
                offsets=np.array([0, len(ids)]),
                segment_start=np.array([start]),
            )
            again = sample_masks(rows, MaskConfig(max_predictions=8), table, range(3))
            for copy, mask in enumerate(row["masks"]):
                part = slice(again.offsets[copy], again.offsets[copy + 1])
                assert mask["positions"] == again.positions[part].tolist()
                assert mask["input_ids"] == again.input_ids[part].tolist()
            if row["source"]["document"] in documents:
                # a sentence longer than a row counts once for each of its parts, halves of a row
                parts = [
                    s[n * 45 // 2 : (n + 1) * 45 // 2] if len(s) > 45 else s
                    for s in first_pieces[row["source"]["document"]]
                    for n in range(-(-len(s) * 2 // 45) if len(s) > 45 else 1)
                ]
                text = [piece for s in parts[row["source"]["offset"] :] for piece in s]
                a = ids[1 : start - 1]
                assert any(text[i : i + len(a)] == a for i in range(len(text)))


def test_the_summary_adds_up(made):
    manifest, summary = made.manifest, made.manifest.summary
    counters = manifest.counters
    assert (
        sum(summary["pair_labels"].values()) == summary["rows"] == sum(summary["length_histogram"])
    )
    assert summary["pair_labels"]["none"] == 0
    assert len(summary["length_histogram"]) == 16
    assert (
        summary["tokens"]
        == counters["tokens/read"]
        == counters["tokens/in_rows"] + counters["tokens/truncated"]
    )
    everything = [
        row
        for split in ("train", "heldout")
        for shard in tables(made, split)
        for row in shard["input_ids"].to_pylist()
    ]
    specials = sum(3 for _ in everything)
    assert (
        sum(map(len, everything))
        == counters["tokens/in_rows"] + counters["tokens/again"] + specials
    )
    train = [len(row) for shard in tables(made) for row in shard["input_ids"].to_pylist()]
    assert summary["row_tokens"] == sum(train)
    assert counters["dropped/empty_document"] == 1
    assert counters["dropped/empty_sentence"] == 3
    masked = sum(min(8, max(1, round(length * 0.15))) for length in train)
    assert summary["masked_share"] == round(masked / sum(train), 6)


def test_heldout_text_stays_apart(made):
    train = {row["document"] for shard in tables(made) for row in shard["source"].to_pylist()}
    held = {
        row["document"] for shard in tables(made, "heldout") for row in shard["source"].to_pylist()
    }
    assert held == {random_keys.document_key(name) for name, _ in made_documents()[:6]}
    assert not train & held


def test_other_programs_open_the_shards(made):
    datasets = pytest.importorskip("datasets")
    files = [str(path) for path in sorted(Path(made.artifact).glob("train-*.arrow"))]
    loaded = datasets.load_dataset(
        "arrow", data_files=files, split="train", cache_dir=str(Path(made.artifact).parent / "hf")
    )
    expected = pa.concat_tables(tables(made))
    assert len(loaded) == len(expected)
    assert loaded[3] == expected.slice(3, 1).to_pylist()[0]


def test_workers_buckets_and_order_in_shards_do_not_matter(made, vocab, corpus, tmp_path):
    """Two worker processes, small buckets, and documents in another order within the corpus's
    shards: the same bytes.
    """
    scrambled = made_corpus(tmp_path / "scrambled", scrambled=True)
    command = [
        warm.python(),
        "-c",
        DRIVER,
        scrambled,
        vocab,
        str(tmp_path / "out"),
        "2",
        json.dumps(CONFIG),
    ]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]
    assert found == made.manifest.content_sha256


@pytest.mark.parametrize("when", ["rows", "shards"])
def test_killed_and_run_again(made, vocab, corpus, tmp_path, when):
    out = tmp_path / "out"
    command = [warm.python(), "-c", DRIVER, corpus, vocab, str(out), "1", json.dumps(CONFIG)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while (
        not list((out / "_scratch" / when).glob("*.json"))
        and process.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.002)
    warm.kill(process)
    if not artifact.is_artifact(str(out)):  # on a fast machine it may have ended before the kill
        with pytest.raises(DataError, match="no finished artifact"):
            artifact.verify(str(out))
    result = make(corpus, vocab, out)
    assert result.manifest.content_sha256 == made.manifest.content_sha256
    assert result.manifest.summary == made.manifest.summary
    assert result.manifest.counters == made.manifest.counters
    assert artifact.verify(str(out)).ok


def test_copies_extend_each_other_and_touch_nothing_else(made, corpus, vocab, tmp_path):
    more = make(corpus, vocab, tmp_path, mask_copies=5)
    for few, many in zip(tables(made), tables(more), strict=True):
        for name in ("input_ids", "segment_start", "pair_label", "source"):
            assert few[name] == many[name]
        for three, five in zip(few["masks"].to_pylist(), many["masks"].to_pylist(), strict=True):
            assert five[:3] == three


def test_many_shards_have_the_same_order_of_rows(made, corpus, vocab, tmp_path):
    result = make(corpus, vocab, tmp_path, shards=7)
    assert (
        pa.concat_tables(tables(result))["input_ids"].to_pylist()
        == pa.concat_tables(tables(made))["input_ids"].to_pylist()
    )


def test_one_document_has_no_random_pairs(vocab, tmp_path):
    corpus = write_corpus(tmp_path / "c", [("d", [*made_documents(1)[0][1], *["ba " * 45] * 2])])
    result = make(corpus, vocab, tmp_path / "out", shards=2)
    labels = result.manifest.summary["pair_labels"]
    assert labels["random"] == 0
    assert labels["none"] >= 1
    assert result.manifest.counters["rows/single_segment"] == labels["none"]
    rows = [row for shard in tables(result) for row in shard.to_pylist()]
    assert all(
        row["segment_start"] == len(row["input_ids"]) for row in rows if row["pair_label"] is None
    )
    assert [len(shard) for shard in tables(result, "heldout")] == [0]


def test_more_shards_than_rows(vocab, tmp_path):
    result = make(
        write_corpus(tmp_path / "c", [("d", ["bada.", "mona."])]), vocab, tmp_path / "out", shards=3
    )
    assert sorted(len(shard) for shard in tables(result)) == [0, 0, 1]


@settings(max_examples=60, deadline=None)
@given(
    parts=st.lists(st.integers(0, 60), min_size=1, max_size=6),
    shards=st.integers(1, 9),
    buckets=st.integers(1, 12),
)
def test_slices_cover_all_ranks_once(parts, shards, buckets):
    sorted_ranks = [
        np.sort(random_keys.fold_in(number, np.arange(size))) for number, size in enumerate(parts)
    ]
    counts = sum(np.diff(ranges.bucket_borders(part, buckets)) for part in sorted_ranks)
    merged = np.sort(np.concatenate(sorted_ranks))
    starts = np.concatenate([[0], np.cumsum(counts)])
    at = 0
    for part in ranges.plan_ranges(counts, ranges.shard_rows([len(merged)], shards)[0]):
        assert part.rows in (len(merged) // shards, -(-len(merged) // shards))
        if part.rows:
            assert starts[part.first] + part.skip == at
            assert part.skip < counts[part.first]
            assert starts[part.end] >= at + part.rows > starts[part.end - 1]
        at += part.rows
    assert at == len(merged)


@settings(max_examples=100, deadline=None)
@given(bins=st.lists(st.integers(0, 50), min_size=1, max_size=6), shards=st.integers(1, 9))
def test_shards_are_equal_in_all_and_in_each_bin(bins, shards):
    sizes = ranges.shard_rows(bins, shards)
    assert sizes.sum(axis=1).tolist() == bins
    assert np.ptp(sizes.sum(axis=0)) <= 1
    assert (np.ptp(sizes, axis=1) <= 1).all()


def test_a_large_vocabulary_has_wide_ids(corpus, tmp_path):
    big = tmp_path / "vocab.txt"
    big.write_text("".join(f"{piece}\n" for piece in [*PIECES, *(f"w{i}" for i in range(70_000))]))
    [shard] = tables(make(corpus, str(big), tmp_path / "out", shards=1))
    assert shard.schema.field("input_ids").type == pa.list_(pa.uint32())


def test_bad_inputs(corpus, vocab, tmp_path):
    with pytest.raises(DataError, match="no finished artifact"):
        make(str(Path(vocab).parent), vocab, tmp_path / "a")
    with pytest.raises(DataError, match="not a corpus"):
        wrong = make(write_corpus(tmp_path / "c", made_documents(2)), vocab, tmp_path / "d")
        make(wrong.artifact, vocab, tmp_path / "b")
    with pytest.raises(DataError, match="gives no rows"):
        make(write_corpus(tmp_path / "e", [("d", ["", " "])]), vocab, tmp_path / "f")
    damaged = Path(write_corpus(tmp_path / "g", made_documents(2)))
    shard = damaged / "corpus-00000-of-00001.arrow"
    shard.write_bytes(b"ARROW1\0\0")
    with pytest.raises(DataError, match="corpus-00000-of-00001.arrow is damaged"):
        make(str(damaged), vocab, tmp_path / "h")


def test_configs_are_light_to_import():
    """The command line reads them at every start."""
    heavy = {"numpy", "pyarrow", "tokenizers", "apache_beam"}
    code = (
        f"import sys, cloze.pipeline.dataset.stage, cloze.pipeline.vocab.stage; print({heavy} & "
        f"set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "set()"
    )
