"""Appending to a dataset: old shards stay as they are, new ones hold what is new, and all readers
see one dataset.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from cloze.core import random_keys
from cloze.core.artifacts import artifact
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import BuildResult
from cloze.flows.cli import main
from cloze.model.data.batch import collate
from cloze.model.data.shards import ShardedRows
from cloze.model.data.shards import verify as verify_shards
from cloze.pipeline.dataset.append import add_counts
from cloze.pipeline.dataset.row_view import read_row
from tests.pipeline.corpus.corpora import made_documents, write_corpus
from tests.pipeline.dataset.datasets import make, rows, tables, write_vocab

pytestmark = pytest.mark.usefixtures("warm")

OLD = made_documents(40)
NEW = [(f"new/{name}", list(reversed(text))) for name, text in made_documents(30)]
HELD_OLD, HELD_NEW = [name for name, _ in OLD[:5]], [name for name, _ in NEW[:3]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("append")


@pytest.fixture(scope="module")
def vocab(place: Path) -> str:
    return write_vocab(place)


@pytest.fixture(scope="module")
def old(place: Path, vocab: str) -> BuildResult:
    return make(
        write_corpus(place / "old-corpus", OLD, shards=3, heldout=HELD_OLD),
        vocab,
        place / "old",
        length_bins=2,
    )


@pytest.fixture(scope="module")
def new_corpus(place: Path) -> str:
    """New documents, and ten that the old corpus has, one of them held out there and not here."""
    return write_corpus(place / "new-corpus", [*NEW, *OLD[:10]], shards=2, heldout=HELD_NEW)


@pytest.fixture(scope="module")
def bigger(place: Path, old: BuildResult, new_corpus: str) -> BuildResult:
    return make(
        new_corpus,
        f"{old.artifact}/tokenizer",
        place / "bigger",
        append=old.artifact,
        length_bins=2,
    )


def documents(result: BuildResult, split: str) -> set[int]:
    return {row["source"]["document"] for row in rows(result, split)}


def of_names(names: list[str]) -> set[int]:
    return {random_keys.document_key(name) for name in names}


def test_old_shards_are_the_same_files(old: BuildResult, bigger: BuildResult) -> None:
    then = {entry.path: entry for entry in old.manifest.files}
    now = {entry.path: entry for entry in bigger.manifest.files}
    for name, entry in then.items():
        assert now[name] == entry
        assert os.path.samefile(f"{old.artifact}/{name}", f"{bigger.artifact}/{name}")
    assert {name for name in now if name not in then and name.startswith("train")} == {
        f"train-a001-{number:05d}-of-00003.arrow" for number in range(3)
    }
    assert artifact.verify(bigger.artifact).ok


def test_what_is_new_is_added_once(old: BuildResult, bigger: BuildResult) -> None:
    assert documents(bigger, "train") == of_names([name for name, _ in [*OLD[5:], *NEW[3:]]])
    assert documents(bigger, "heldout") == of_names([*HELD_OLD, *HELD_NEW])
    sources = [(row["source"]["document"], row["source"]["offset"]) for row in rows(bigger)]
    assert len(set(sources)) == len(sources) == bigger.manifest.summary["rows"]
    assert bigger.manifest.counters["dropped/already_in_dataset"] == 10
    assert bigger.manifest.summary["appended"]["documents"] == len(NEW)
    assert bigger.manifest.summary["documents"] == len(OLD) + len(NEW)


def test_the_summary_is_that_of_all_rows(old: BuildResult, bigger: BuildResult) -> None:
    summary = bigger.manifest.summary
    everything = rows(bigger)
    assert summary["rows"] == len(everything)
    assert summary["heldout_rows"] == len(rows(bigger, "heldout"))
    assert summary["row_tokens"] == sum(len(row["input_ids"]) for row in everything)
    assert summary["shards"] == len(tables(bigger)) == 7
    assert (
        sum(summary["pair_labels"].values()) == sum(summary["length_histogram"]) == len(everything)
    )
    assert summary["tokens"] == bigger.manifest.counters["tokens/read"]
    assert summary["words_per_token"] is None  # the corpora do not say how many words they have
    sizes = [len(table) for table in tables(bigger)]
    assert max(sizes[4:]) - min(sizes[4:]) <= 1
    assert 0.5 < np.mean(sizes[4:]) / np.mean(sizes[:4]) < 2


def test_words_are_added_if_both_are_known(old: BuildResult) -> None:
    counts = old.manifest.summary
    new = {**counts, "words": 5}
    assert add_counts({**counts, "words": 7}, new)["words"] == 12
    unknown = {name: value for name, value in counts.items() if name != "words"}
    assert add_counts(unknown, new)["words"] is None


def test_lineage_names_both(old: BuildResult, bigger: BuildResult, new_corpus: str) -> None:
    assert bigger.manifest.parents["append"] == old.manifest.fingerprint
    assert bigger.manifest.parents["corpus"] == artifact.read_manifest(new_corpus).fingerprint


def test_readers_see_one_dataset(old: BuildResult, bigger: BuildResult) -> None:
    assert verify_shards(bigger.artifact) == 11
    shards, plain = ShardedRows(bigger.artifact), rows(bigger)
    assert shards.bins is not None
    assert len(shards) == len(plain)
    assert shards.info == ShardedRows(old.artifact).info
    last = np.arange(len(shards) - 5, len(shards))
    batch = collate(shards.take(last, np.ones_like(last)), pad=0, longest=48)
    for place, row in enumerate(last.tolist()):
        assert batch["input_ids"][place, plain[row]["segment_start"]] in (
            4,
            *plain[row]["input_ids"],
        )
        assert read_row(bigger.artifact, row).document == plain[row]["source"]["document"]
    held, before = ShardedRows(bigger.artifact, "heldout"), ShardedRows(old.artifact, "heldout")
    first = np.arange(len(before))
    assert np.array_equal(
        held.take(first, first * 0).ids, before.take(first, first * 0).ids
    )  # scored first, as before


def test_appending_again_and_again(place: Path, bigger: BuildResult) -> None:
    third = write_corpus(
        place / "third", [*NEW[:4], *((f"3/{name}", text) for name, text in made_documents(6))]
    )
    result = make(
        third,
        f"{bigger.artifact}/tokenizer",
        place / "biggest",
        append=bigger.artifact,
        length_bins=2,
    )
    assert result.manifest.summary["appended"]["documents"] == 6
    assert (Path(result.artifact) / "train-a002-00000-of-00001.arrow").exists()
    assert len(documents(result, "train")) == len(documents(bigger, "train")) + 6
    names = sorted(path.name for path in Path(result.artifact).glob("train-*"))
    assert names[-1].startswith("train-a002")
    again = make(
        third,
        f"{bigger.artifact}/tokenizer",
        place / "biggest",
        append=bigger.artifact,
        length_bins=2,
    )
    assert again.cached


def test_copies_where_links_are_impossible(
    place: Path, old: BuildResult, new_corpus: str, bigger: BuildResult, monkeypatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    result = make(
        new_corpus,
        f"{old.artifact}/tokenizer",
        place / "copied",
        append=old.artifact,
        length_bins=2,
    )
    assert result.manifest.content_sha256 == bigger.manifest.content_sha256
    assert not os.path.samefile(
        f"{old.artifact}/documents.arrow", f"{result.artifact}/documents.arrow"
    )


def test_on_an_object_store(old: BuildResult, new_corpus: str, bigger: BuildResult) -> None:
    """Another filesystem by URL: uploaded from a disk, then copied inside of the store."""
    first = make(
        new_corpus,
        f"{old.artifact}/tokenizer",
        "memory://append/first",
        append=old.artifact,
        length_bins=2,
    )
    assert first.manifest.content_sha256 == bigger.manifest.content_sha256
    more = write_corpus(
        "memory://append/corpus", [(f"x/{name}", text) for name, text in made_documents(4)]
    )
    second = make(
        more,
        f"{first.artifact}/tokenizer",
        "memory://append/second",
        append=first.artifact,
        length_bins=2,
    )
    assert artifact.verify(second.artifact).ok
    assert len(ShardedRows(second.artifact)) == second.manifest.summary["rows"]


def test_the_command_takes_all_settings_from_the_old_dataset(
    place: Path, old: BuildResult, new_corpus: str, bigger: BuildResult, capfd
) -> None:
    command = [
        "dataset",
        "--append",
        old.artifact,
        "--corpus",
        new_corpus,
        "--out",
        str(place / "by-command"),
        "--json",
    ]
    assert main(command) == 0
    output = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert output["rows"] == bigger.manifest.summary["rows"]
    assert output["fingerprint"] == bigger.manifest.fingerprint
    for refused in (
        ["--recipe", "roberta"],
        ["--tokenizer", str(place)],
        ["--set", "mask_copies=3"],
        ["--length-bins", "4"],
    ):
        assert main([*command[:-2], str(place / "no"), *refused]) == 2
        assert f"leave out {refused[0]}" in capfd.readouterr().err
    assert not (place / "no").exists()


def test_bad_bases(
    place: Path, old: BuildResult, new_corpus: str, vocab: str, tmp_path: Path, capfd
) -> None:
    assert (
        main(
            [
                "dataset",
                "--append",
                new_corpus,
                "--corpus",
                new_corpus,
                "--out",
                str(tmp_path / "a"),
            ]
        )
        == 2
    )
    assert "is the artifact of a corpus, not of a dataset" in capfd.readouterr().err
    with pytest.raises(DataError, match="gives no rows that .*old lacks"):
        same = write_corpus(tmp_path / "same", OLD)
        make(same, f"{old.artifact}/tokenizer", tmp_path / "b", append=old.artifact, length_bins=2)
    with pytest.raises(DataError, match="made with other settings"):
        make(
            new_corpus,
            f"{old.artifact}/tokenizer",
            tmp_path / "c",
            append=old.artifact,
            length_bins=2,
            seed=9,
        )
    with pytest.raises(DataError, match="made with other settings or length_bins"):
        make(new_corpus, f"{old.artifact}/tokenizer", tmp_path / "f", append=old.artifact)

    own = make(write_corpus(tmp_path / "own-corpus", OLD[:8]), vocab, tmp_path / "own")
    manifest = json.loads((tmp_path / "own" / "manifest.json").read_text())
    (tmp_path / "own" / "manifest.json").write_text(json.dumps({**manifest, "version": 1}))
    with pytest.raises(
        UsageError, match=r"version 1 of the dataset stage, this program has version \d"
    ):
        make(new_corpus, vocab, tmp_path / "d", append=own.artifact)
    (tmp_path / "own" / "manifest.json").write_text(json.dumps(manifest))
    shard = tmp_path / "own" / "train-00001-of-00004.arrow"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match=r"train-00001-of-00004\.arrow does not have the sha256"):
        make(new_corpus, f"{own.artifact}/tokenizer", tmp_path / "e", append=own.artifact)
