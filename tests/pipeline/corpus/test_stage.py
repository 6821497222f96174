"""The corpus stage: golden bytes, bytes that nothing but the text decides, counts that add up,
kills, bad input.
"""

from __future__ import annotations

import bz2
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cloze.core import random_keys
from cloze.core.artifacts import artifact
from cloze.core.artifacts.artifact import shard_name
from cloze.core.config import parse_config, resolve_paths
from cloze.core.errors import DataError, UsageError
from cloze.pipeline.corpus import sources
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.files.intermediate import CORPUS, shard_of, shard_position
from cloze.pipeline.corpus.stage import STAGE
from tests import warm
from tests.pipeline.corpus.corpora import make, rows
from tests.slices import few

GOLDEN = Path(__file__).resolve().parents[2] / "golden.json"


@pytest.fixture(scope="module")
def sample_corpus(samples, tmp_path_factory):
    return make(
        tmp_path_factory.mktemp("corpus") / "c",
        f"wikipedia={samples}/wikipedia",
        f"books={samples}/books",
    )


def test_golden(sample_corpus):
    """If this fails on purpose, raise `VERSION` in pipeline/corpus/stage.py and write the new hash
    to golden.json.
    """
    golden = json.loads(GOLDEN.read_text())["corpus"]
    assert {
        "version": STAGE.version,
        "content_sha256": sample_corpus.manifest.content_sha256,
    } == golden


def test_what_a_corpus_holds(sample_corpus):
    documents = rows(sample_corpus)
    summary = sample_corpus.manifest.summary
    assert summary["documents"] == sample_corpus.manifest.rows == len(documents) >= 50
    assert set(summary["sources"]) == {"wikipedia", "books"}
    assert sum(source["documents"] for source in summary["sources"].values()) == len(documents)
    assert summary["bytes"] == sum(len(" ".join(d["sentences"]).encode()) for d in documents)
    assert summary["heldout_documents"] == sum(d["split"] == "heldout" for d in documents)
    assert [d["key"] for d in documents] == sorted(d["key"] for d in documents)
    for document in documents:
        assert document["key"] == random_keys.document_key(document["id"])
        starts = document["paragraphs"]
        assert starts[0] == 0
        assert starts == sorted(set(starts))
        assert starts[-1] < len(document["sentences"])
        assert all(s and s == " ".join(s.split()) for s in document["sentences"])


def test_nothing_disappears(sample_corpus):
    counters = sample_corpus.manifest.counters
    dropped = {
        name.removeprefix("dropped/"): n
        for name, n in counters.items()
        if name.startswith("dropped/")
    }
    assert counters["read/documents"] == counters["kept/documents"] + sum(dropped.values())
    assert dropped == sample_corpus.manifest.summary["dropped"]
    assert {"redirect", "namespace", "disambiguation"} <= set(dropped)


def _same_text_otherwise(samples: Path, tmp_path: Path) -> list[str]:
    """The same files elsewhere, one by one, in another order, some of them twice."""
    for name in ("p", "q", "r"):
        (tmp_path / name).mkdir()
    shutil.copytree(samples / "wikipedia", tmp_path / "p" / "wiki")
    books = sorted((samples / "books").iterdir())
    for number, book in enumerate(books):
        shutil.copy(book, tmp_path / ("q" if number % 2 else "r"))
    shutil.copy(books[0], tmp_path / "q")
    return [f"books={tmp_path}/r", f"wikipedia={tmp_path}/p/wiki", f"books={tmp_path}/q"]


def test_order_places_and_workers_do_not_matter(sample_corpus, samples, tmp_path):
    other = make(tmp_path / "out", *_same_text_otherwise(samples, tmp_path), workers=2)
    assert other.manifest.content_sha256 == sample_corpus.manifest.content_sha256
    assert other.manifest.fingerprint == sample_corpus.manifest.fingerprint


def _books(directory: Path, count: int = 6, sentences: int = 40) -> Path:
    """Small books of made-up words, no two alike."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        random = np.random.default_rng(number)
        words = [
            " ".join("abcdefgh"[n] * 3 + str(n) for n in line)
            for line in random.integers(0, 8, (sentences, 12))
        ]
        (directory / f"b{number}.txt").write_text(
            "\n\n".join(f"So {line} it was." for line in words)
        )
    return directory


LOOSE = {"minimum_letters": 0.0, "dedup": "exact", "shard_bytes": 4096}


def test_shards_of_many_sizes_hold_the_same(tmp_path):
    source = f"books={_books(tmp_path / 'books')}"
    one = make(tmp_path / "one", source, **{**LOOSE, "shard_bytes": 1 << 30})
    many = make(tmp_path / "many", source, **LOOSE)
    assert one.manifest.summary["shards"] == 1
    assert many.manifest.summary["shards"] > 3
    assert sorted(rows(one), key=lambda d: d["key"]) == sorted(rows(many), key=lambda d: d["key"])
    count = many.manifest.summary["shards"]
    for number in range(count):
        found = pa.ipc.open_file(
            Path(many.artifact) / shard_name("corpus", number, count)
        ).read_all()
        assert found.schema.equals(CORPUS, check_metadata=True)
        assert set(shard_of(shard_position(found["key"].to_numpy()), count).tolist()) <= {number}


DRIVER = """
import os, signal, sys
from cloze.core import storage
from cloze.pipeline.corpus import sources
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.stage import STAGE
from cloze.core.stages.execute import execute
sources.run_bytes = lambda total, least: 0  # a part a file
left = int(sys.argv[3])
replace = os.replace
def dying(source, target):
    global left
    left -= "_building" not in str(target)
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)
os.replace = dying
config = CorpusConfig(sources=[{"kind": "books", "path": sys.argv[1]}], minimum_letters=0, dedup="exact", shard_bytes=4096)
execute(STAGE, config, {}, sys.argv[2])
"""


@pytest.mark.parametrize("writes", few([0, 4, 9, 18, 25, 30], 4, 18, 30))
def test_killed_anywhere_it_ends_with_the_same_bytes(tmp_path, monkeypatch, writes):
    """Killed before the given write is renamed: in a part, its references, a result, the plan, a
    shard, the card.
    """
    source = _books(tmp_path / "books")
    expected = make(tmp_path / "straight", f"books={source}", **LOOSE).manifest.content_sha256
    out = tmp_path / "killed"
    ended = subprocess.run(
        [warm.python(), "-c", DRIVER, str(source), str(out), str(writes)],
        capture_output=True,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()[-2000:]
    if writes == 18:
        assert not (out / "_scratch" / "plans" / "kept-00000.arrow").exists()
    if writes == 30:
        assert (out / "_scratch" / "plans" / "kept-00000.arrow").exists()
    assert not artifact.is_artifact(str(out))
    finished = (
        list((out / "_scratch" / "read").glob("*.json"))
        if (out / "_scratch" / "read").exists()
        else []
    )
    before = {
        path: path.stat().st_mtime_ns
        for path in (out / "_scratch" / "parts").glob("*")
        if finished and not path.name.startswith("_")
    }
    monkeypatch.setattr(sources, "run_bytes", lambda total, least: 0)
    seen = {}
    original = os.replace

    def watching(a, b):
        seen[Path(b)] = True
        original(a, b)

    os.replace = watching
    try:
        result = make(out, f"books={source}", **LOOSE)
    finally:
        os.replace = original
    assert result.manifest.content_sha256 == expected
    assert artifact.verify(str(out)).ok
    assert not [name for name in artifact.data_files(str(out)) if "tmp" in name]
    done = {path.stem for path in finished}
    assert not [
        path for path in before if path.name.split(".")[0] in done and path in seen
    ]  # what was done is not done again


def test_copies_across_sources(tmp_path):
    prose = [
        f"The {w} house stood by the {v} road, and the people of it were {w} and {v} all the year."
        for w in "old new red dry wet".split()
        for v in "long wide dark cold".split()
    ]
    text = "\n\n".join(prose)
    for name, content in {
        "a/x.txt": text,
        "a/z.txt": text.replace("The ", "THE ").replace(
            ",", " -"
        ),  # differs in case and punctuation alone
        "a/near.txt": text + "\n\nAnd one more sentence was added at the end of it.",
        "b/x.txt": text,  # the same file under the same name
        "b/y.txt": text,  # the same file under another name
        "c/x.txt": "\n\n".join(
            p.replace("house", "castle").replace("people", "lords").replace("year", "time")
            for p in prose
        ),  # another of one name
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    result = make(tmp_path / "out", *(f"books={tmp_path}/{d}" for d in "abc"))
    documents = rows(result)
    counters = result.manifest.counters
    assert counters["dropped_files/duplicate_file"] == 1
    assert counters["dropped/exact_duplicate"] == 1
    assert counters["dropped/near_duplicate"] == 1
    names = sorted(d["id"] for d in documents)
    assert names[0] == "books/near.txt/1"  # the longest of the three stays
    assert names[1].startswith("books/x.txt@")
    assert len(names) == 2
    turned = make(tmp_path / "turned", *(f"books={tmp_path}/{d}" for d in "cba"))
    assert turned.manifest.content_sha256 == result.manifest.content_sha256
    both = make(tmp_path / "kept", *(f"books={tmp_path}/{d}" for d in "abc"), dedup="none")
    assert both.manifest.rows == 4


def test_a_page_that_is_there_twice(tmp_path):
    sentences = [
        f"There are {n} things to say about this, and each of them is quite another one."
        for n in range(40)
    ]
    pages = "".join(
        (
            f"<page><title>A</title><ns>0</ns><id>5</id><revision><text>{' '.join(sentences[:n])}</"
            f"text></revision></page>"
        )
        for n in (20, 40, 30)
    )
    (tmp_path / "d.xml").write_text(f"<mediawiki>{pages}</mediawiki>")
    result = make(tmp_path / "out", f"wikipedia={tmp_path}/d.xml", dedup="exact")
    assert result.manifest.summary["dropped"] == {"duplicate_id": 2}
    assert len(rows(result)[0]["sentences"]) == 40


def test_heldout_is_decided_by_the_key(tmp_path):
    source = f"books={_books(tmp_path / 'books', count=60, sentences=12)}"
    few, many = (
        make(tmp_path / name, source, heldout_fraction=f, **LOOSE)
        for name, f in (("few", 0.1), ("many", 0.4))
    )
    held = [{d["id"] for d in rows(result) if d["split"] == "heldout"} for result in (few, many)]
    assert held[0] < held[1]
    assert 0 < len(held[0]) < 15
    assert 12 < len(held[1]) < 36


def test_damage_is_quarantined_on_request(tmp_path, samples):
    dump = (samples / "wikipedia" / "samplewiki-pages-articles.xml.bz2").read_bytes()
    (tmp_path / "wiki").mkdir()
    (tmp_path / "wiki" / "cut.xml.bz2").write_bytes(bz2.compress(bz2.decompress(dump))[:-500])
    _books(tmp_path / "books", count=2)
    (tmp_path / "books" / "empty.txt").write_text("")
    sources = [f"wikipedia={tmp_path}/wiki", f"books={tmp_path}/books"]
    with pytest.raises(DataError, match=r"cut\.xml\.bz2: the dump is truncated"):
        make(tmp_path / "out", *sources, minimum_letters=0.0)
    assert not artifact.is_artifact(str(tmp_path / "out"))
    (tmp_path / "wiki" / "whole.xml.bz2").write_bytes(dump)
    result = make(tmp_path / "other", *sources, on_error="quarantine", minimum_letters=0.0)
    assert result.manifest.summary["quarantined"] == {"empty_file": 1, "truncated": 1}
    lines = [
        json.loads(line)
        for line in (Path(result.artifact) / "unreadable.jsonl").read_text().splitlines()
    ]
    assert [(line["file"], line["reason"]) for line in lines] == [
        ("books/empty.txt", "empty_file"),
        ("wikipedia/cut.xml.bz2", "truncated"),
    ]
    assert str(tmp_path) not in json.dumps(lines)


@pytest.mark.parametrize(
    ("kind", "files", "words"),
    [
        ("wikipedia", {"a.xml": ""}, "contains no documents .*the dump holds no page"),
        ("wikipedia", {"a.xml": "<mediawiki></mediawiki>"}, "holds no page"),
        ("wikipedia", {"a.xml": (
            "<mediawiki><page><title>A</title><id>1</id><text>#REDIRECT [[B]]</text></page></"
            "mediawiki>"
        )}, "none is left .redirect 1"),
        ("books", {"a.pdf": "x"}, "contains no file of source books"),
        ("books", {"a.txt": ""}, "the file is empty"),
        ("books", {"a.txt": "Too short."}, "none is left .too_short 1"),
        ("books", {}, "does not exist"),
        ("wikiextractor", {"wiki_00": "no documents"}, "neither <doc"),
        ("docstrings", {"a.py": "x = 1"}, "contains no documents"),
    ],
)  # fmt: skip
def test_sources_with_nothing_to_read(tmp_path, kind, files, words):
    source = tmp_path / "source"
    for name, content in files.items():
        source.mkdir(exist_ok=True)
        (source / name).write_text(content)
    with pytest.raises(DataError, match=words) as error:
        make(tmp_path / "out", f"{kind}={source}")
    assert error.value.exit_code == 3
    assert not artifact.is_artifact(str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"sources": [{"kind": "wikipdia", "path": "x"}]},
            "unknown source kind; did you mean 'wikipedia'",
        ),
        (
            {"sources": [{"kind": "books", "path": "x", "pth": "y"}]},
            r"corpus\.sources\.0\.pth; did you mean 'path'",
        ),
        ({"sources": [{"kind": ["books"], "path": "x"}]}, "valid string"),
        ({"sources": []}, "sources"),
        (
            {"sources": [{"kind": "books", "path": "x"}], "minimum_char": 3},
            "did you mean 'minimum_characters'",
        ),
        (
            {"sources": [{"kind": "books", "path": "x"}], "heldout_fraction": 1.5},
            "heldout_fraction",
        ),
        ({"sources": [{"kind": "books", "path": "x"}], "on_error": "ignore"}, "on_error"),
    ],
)
def test_bad_config(values, words):
    with pytest.raises(UsageError, match=words):
        parse_config(CorpusConfig, resolve_paths(CorpusConfig, values, "/base"), "corpus")


def test_the_fingerprint_is_of_the_bytes(tmp_path):
    def fingerprint(path, **settings):
        return STAGE.fingerprint(
            CorpusConfig(sources=[{"kind": "books", "path": str(path)}], **settings), {}
        )

    first = _books(tmp_path / "one", count=3)
    second = _books(tmp_path / "two", count=3)
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(first, minimum_words=3)
    (second / "README.md").write_text("not read")
    assert fingerprint(first) == fingerprint(second)
    (second / "b1.txt").write_text("changed")
    assert fingerprint(first) != fingerprint(second)
    (first / "b1.txt").rename(first / "renamed.txt")
    (second / "b1.txt").write_text((first / "renamed.txt").read_text())
    assert fingerprint(first) != fingerprint(second)


def test_the_command_line_imports_it_without_weight():
    code = (
        "import sys, cloze.pipeline.corpus.stage; print([m for m in ('numpy', 'pyarrow', "
        "'apache_beam', 'lxml', 'sentencex') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.strip()
        == "[]"
    )
