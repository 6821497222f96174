"""The stage index: passages, BM25 by its formula, and files that depend on their shard alone."""

from __future__ import annotations

import math
import shutil
import signal
import subprocess
import sys
import unicodedata
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.arrow import read_arrow, write_arrow
from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.labs.retrieval.passages import K1, B, PassageIndex, best, cut, words_of_text
from cloze.labs.retrieval.stages import INDEX as STAGE
from cloze.labs.retrieval.stages import IndexConfig
from tests import warm
from tests.pipeline.corpus.corpora import made_documents, write_corpus

SHARDS = 3


def index(
    corpus: str, out: Path, words: int = 20, workers: int = 1, append: Any = None
) -> BuildResult:
    inputs = {"corpus": corpus} | ({} if append is None else {"append": str(append)})
    execution = Execution(workers=workers)
    config = IndexConfig(passage_words=words)
    with warm.executable() if workers > 1 else nullcontext():
        return execute(STAGE, config, inputs, str(out), execution=execution)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    documents = [*made_documents(12, 8), ("Ünïcode", ["Ein Fluß, zwei Flüsse.", "日本語の文。"])]
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, SHARDS)


@pytest.fixture(scope="module")
def built(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    return index(corpus, tmp_path_factory.mktemp("index"))


def test_cut() -> None:
    sentences = ["a b c", "d e", "f", "g h i j k", "l"]
    assert list(cut(sentences, 5)) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert list(cut(sentences, 1)) == [(number, number + 1) for number in range(5)]
    assert list(cut(sentences, 99)) == [(0, 5)]
    assert list(cut([], 5)) == []


def test_text_without_spaces_is_cut_and_found() -> None:
    texts = ["东京是日本的首都，也是日本最大的城市。", "北京是中国的首都。", "Тихий Дон"]
    thai = "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย"
    assert words_of_text("iPhone手机壳15 水") == ["iphone", "手机", "机壳", "15", "水"]
    index = PassageIndex.of_texts([*texts, thai])
    for number, query in enumerate(["日本的首都是哪里？", "北京在哪里", "дон", "เมืองหลวงของไทย"]):
        assert best(index.scores(query), 1) == [number]
    assert list(cut(texts[:1] * 30, 50)) == [(first, first + 5) for first in range(0, 30, 5)]


def test_a_query_is_composed_as_the_corpus_is() -> None:
    index = PassageIndex.of_texts(["Hà Nội là thủ đô của Việt Nam."])
    query = unicodedata.normalize("NFD", "thủ đô Việt Nam")
    assert index.scores(query) == index.scores("thủ đô Việt Nam") > 0


def test_passages_are_the_corpus(corpus: str, built: BuildResult) -> None:
    sentences = {}
    for shard in sorted(Path(corpus).glob("corpus-*.arrow")):
        for row in read_arrow(str(shard)).to_pylist():
            sentences[row["key"]] = row["sentences"]
    found: dict[int, list[str]] = {key: [] for key in sentences}
    keys = []
    for shard in sorted(Path(built.artifact).glob("passages-*.arrow")):
        for row in read_arrow(str(shard)).to_pylist():
            assert row["first"] == len(found[row["document"]])
            found[row["document"]] += row["sentences"]
            assert row["words"] == len(words_of_text(" ".join([row["title"], *row["sentences"]])))
            keys.append(row["key"])
    assert found == sentences
    assert keys == sorted(set(keys))
    assert built.manifest.summary["passages"] == len(keys)
    assert built.manifest.summary["documents"] == 13


def test_bm25_is_its_formula(built: BuildResult) -> None:
    searched = PassageIndex.open(built.artifact)
    texts = [searched.passage(number) for number in range(len(searched))]
    words = [Counter(words_of_text(f"{text.title} {text.text}")) for text in texts]
    mean = sum(own.total() for own in words) / len(words)
    query = [*[*words[5]][:3], "nowhere", next(iter(words[5]))]
    expected = np.zeros(len(words))
    for word in query:
        frequency = sum(word in own for own in words)
        idf = math.log(1 + (len(words) - frequency + 0.5) / (frequency + 0.5))
        for number, own in enumerate(words):
            norm = K1 * (1 - B + B * own.total() / mean)
            expected[number] += idf * own[word] / (own[word] + norm)
    scores = searched.scores(" ".join(query).upper())
    assert np.allclose(scores, expected, rtol=1e-5)
    assert best(scores, 1) == [int(expected.argmax())]
    assert not searched.scores("nowhere").any()
    (number,) = best(searched.scores("flüsse"), 5)
    assert texts[number].title == "Ünïcode"
    memory = PassageIndex.of_texts([f"{text.title} {text.text}" for text in texts])
    assert np.allclose(memory.scores(" ".join(query)), expected, rtol=1e-5)


def test_best_breaks_ties_by_number() -> None:
    assert best(np.array([1, 3, 2, 3, 0, 3], np.float32), 3) == [1, 3, 5]
    assert best(np.array([1, 3, 2, 3, 0, 3], np.float32), 2) == [1, 3]
    assert best(np.array([0, 1], np.float32), 5) == [1]
    assert best(np.zeros(0, np.float32), 5) == []


def content(result: BuildResult) -> str:
    assert artifact.verify(result.artifact).ok
    return result.manifest.content_sha256


def test_the_same_bytes_with_two_workers(corpus: str, built: BuildResult, tmp_path: Path) -> None:
    assert content(index(corpus, tmp_path / "two", workers=2)) == content(built)


KILLED = """
import os, signal, sys
from pathlib import Path
from cloze.labs.retrieval import index_build as build
from tests.labs.retrieval.test_index import index
write, files = build.write_arrow, []
def write_or_die(path, *arguments):
    files.append(path)
    if len(files) == int(sys.argv[3]):
        Path(path).write_bytes(b"half a file")
        os.kill(os.getpid(), signal.SIGKILL)
    return write(path, *arguments)
build.write_arrow = write_or_die
index(sys.argv[1], Path(sys.argv[2]))
"""


def test_killed_and_built_again_to_the_same_bytes(
    corpus: str, built: BuildResult, tmp_path: Path
) -> None:
    out = tmp_path / "killed"
    arguments = [sys.executable, "-c", KILLED, corpus, str(out), "4"]  # in the second shard
    died = subprocess.run(arguments, cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not artifact.is_artifact(str(out))
    assert len(list(out.glob("p*.arrow"))) == 4
    assert content(index(corpus, out)) == content(built)


def test_unchanged_shards_are_reused(corpus: str, built: BuildResult, tmp_path: Path) -> None:
    documents = [*made_documents(12, 8), ("Ünïcode", ["Ein Fluß, zwei Flüsse.", "日本語の文。"])]
    grown = write_corpus(tmp_path / "grown", [*documents, ("new", ["A brandnewword."])], SHARDS)
    appended = index(grown, tmp_path / "appended", append=built.artifact)
    assert appended.manifest.summary["reused"] == SHARDS - 1
    assert content(appended) == content(index(grown, tmp_path / "whole"))
    assert len(best(PassageIndex.open(appended.artifact).scores("brandnewword"), 5)) == 1
    other = index(grown, tmp_path / "other", words=7, append=built.artifact)
    assert other.manifest.summary["reused"] == 0
    older = tmp_path / "older"
    shutil.copytree(built.artifact, older)
    artifact.write_manifest(str(older), replace(built.manifest, version=built.manifest.version - 1))
    assert index(grown, tmp_path / "newer", append=older).manifest.summary["reused"] == 0


def test_a_damaged_index_is_not_appended_to(
    corpus: str, built: BuildResult, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(built.artifact, damaged)
    passages = min(damaged.glob("passages-*"))
    passages.write_bytes(passages.read_bytes()[:-9] + b"?" + passages.read_bytes()[-8:])
    with pytest.raises(DataError, match=f"{passages.name} does not have the sha256"):
        index(corpus, tmp_path / "appended", append=damaged)


def test_a_corpus_of_few_columns(corpus: str, tmp_path: Path) -> None:
    few = tmp_path / "few"
    shutil.copytree(corpus, few)
    for shard in few.glob("corpus-*.arrow"):
        table = read_arrow(str(shard)).select(["key", "id", "split", "sentences"])
        write_arrow(str(shard), table.schema, table.to_batches())
    passages = PassageIndex.open(index(str(few), tmp_path / "index").artifact)
    assert len(best(passages.scores("Fluß"), 5)) == 1


def test_no_index(corpus: str) -> None:
    with pytest.raises(DataError, match="is no index; name one that `cloze index` made"):
        PassageIndex.open(corpus)


def test_best_keeps_negative_cosines_but_nothing_that_was_not_found() -> None:
    assert best(np.array([-0.2, -0.1, 0.0, 0.3], np.float32), 4) == [3, 1, 0]
