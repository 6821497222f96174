"""search and answer-corpus: the passages of an index, by words and by vectors, with sources."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.artifacts import artifact
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.labs.embed import EmbeddingPipeline
from cloze.labs.retrieval.passages import Passage, best
from cloze.labs.retrieval.search import SMOOTHING, CorpusAnswers, Reading, Search, Searcher
from cloze.labs.retrieval.stages import AnswerCorpusConfig, SearchConfig
from cloze.labs.selection.stages import VECTORS, VectorsConfig
from cloze.labs.serving.predictors import QuestionAnsweringPipeline
from cloze.labs.vectors import vectors_file_name
from cloze.model import checkpoint
from cloze.model.use.request import Request
from tests.labs.retrieval.test_index import index
from tests.pipeline.corpus.corpora import write_corpus
from tests.tiny_models import tiny_config, tiny_model, write_checkpoint, write_tokenizer

DOCUMENTS = [
    ("cats", ["the cat sat on the mat.", "a cat ran in the park."]),
    ("dogs", ["a dog walked in paris.", "the dog sat."]),
    ("capitals", ["paris is the capital of a park."]),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of an index, and of vectors of its passages, next to their checkpoint."""
    base = tmp_path_factory.mktemp("search")
    corpus = write_corpus(base / "corpus", DOCUMENTS, 2)
    index(corpus, base / "index", words=6)
    tuned = base / "pretrain"
    write_checkpoint(tuned / "checkpoint", base / "scratch")
    manifest = artifact.Manifest(
        stage="pretrain",
        version=1,
        fingerprint="a" * 64,
        parents={},
        config={},
        files=artifact.hash_files(str(tuned), artifact.data_files(str(tuned))),
        summary={"checkpoint": "checkpoint"},
    )
    artifact.write_manifest(str(tuned), manifest)
    inputs = {"corpus": str(base / "index"), "checkpoint": str(tuned)}
    config = VectorsConfig(windows=1, precision="fp32", max_length=16)
    execution = Execution(device="cpu", threads=1)
    execute(VECTORS, config, inputs, str(base / "vectors"), execution=execution)
    return {name: str(base / name) for name in ("corpus", "index", "vectors", "pretrain")}


def results(path: str, query: str, **values: Any) -> list[dict[str, Any]]:
    config = SearchConfig(requests=({"query": query},), **values)
    search = Search(path, config)
    request = Request(index=0, fields={"query": query}, where="the query", typed=True)
    (answer,) = search.answer(search.encode([search.read(request)]))
    assert answer["query"] == query
    found: list[dict[str, Any]] = answer["results"]
    return found


def test_by_words(built: dict[str, str]) -> None:
    first, *others = results(built["index"], "capital of Paris", top_k=2)
    assert (first["title"], first["text"]) == ("capitals", "paris is the capital of a park.")
    assert first["score"] > others[0]["score"] > 0
    assert others[0]["text"] == "a dog walked in paris."
    assert results(built["index"], "xyzzy") == []


def test_by_vectors_and_both(built: dict[str, str]) -> None:
    searcher = Searcher(built["vectors"], "dense")
    texts = [searcher.index.passage(number).text for number in range(len(searcher.index))]
    pipeline = EmbeddingPipeline(built["pretrain"], normalize=True, max_length=16)
    vectors, (query,) = pipeline.embed(texts), pipeline.embed(["the cat"])
    cosines = vectors @ query
    (found,) = searcher.search(["the cat"], len(texts))
    assert [number for number, _ in found] == best(cosines, len(texts))
    assert np.allclose(
        [score for _, score in found], np.sort(cosines)[::-1][: len(found)], atol=1e-3
    )
    (fused,) = Searcher(built["vectors"]).search(["the cat"], len(texts))
    ranks = [best(searcher.index.scores("the cat"), 100), best(cosines, 100)]
    for number, score in fused:
        expected = sum(1 / (SMOOTHING + 1 + own.index(number)) for own in ranks if number in own)
        assert score == pytest.approx(expected)
    assert Searcher(built["vectors"], "bm25").search(["cat"], 3) == Searcher(built["index"]).search(
        ["cat"], 3
    )


def test_what_cannot_be_searched(built: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"by \(dense\) needs vectors.*embed-corpus"):
        Searcher(built["index"], "dense")
    with pytest.raises(DataError, match="is no index"):
        Searcher(built["corpus"])
    shutil.copytree(built["vectors"], tmp_path / "alone" / "deep" / "vectors")
    (tmp_path / "alone" / "deep" / "vectors" / "_logs" / "job.json").unlink(missing_ok=True)
    with pytest.raises(DataError, match="neither where it was nor near it"):
        Searcher(str(tmp_path / "alone" / "deep" / "vectors"))
    with pytest.raises(UsageError, match="an empty 'query'"):
        results(built["index"], " ")
    assert vectors_file_name("passages-00000-of-00002.arrow") == "vectors-00000-of-00002.arrow"


def test_reading_leads_back_to_the_passage() -> None:
    passages = [
        Passage(document=name, title="", url="", licence="", text=name) for name in "ab cde".split()
    ]
    reading = Reading(passages)
    for begin, end, expected in ((0, 2, ("ab", 0, 2)), (5, 7, ("cde", 1, 3))):
        source = reading.source(begin, end)
        assert source is not None
        assert (source["passage"]["document"], source["start"], source["end"]) == expected
    assert reading.source(1, 5) is None  # of both


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A question-answering checkpoint of random weights."""
    base = tmp_path_factory.mktemp("reader")
    state = {
        name: tensor
        for name, tensor in tiny_model(max_position_embeddings=64).state_dict().items()
        if name.startswith("encoder.")
    }
    head = {
        "span.weight": tiny_model(3).state_dict()["encoder.layers.0.attention.query.weight"][:2]
    }
    path = str(base / "reader")
    checkpoint.save_weights(
        path,
        model=tiny_config(max_position_embeddings=64),
        state={**state, **head, "span.bias": head["span.weight"][:, 0]},
        tokenizer=write_tokenizer(base / "scratch"),
        heads={"span": {}},
        task={"name": "squad", "max_length": 24},
    )
    checkpoint.finalize(path)
    return path


def test_an_answer_behind_one_that_spans_passages_is_found(
    built: dict[str, str], reader: str
) -> None:
    questions = [f"{word} is the capital" for word in ("where", "cat", "dog", "paris", "a")]
    requests = [
        Request(index=0, fields={"question": question}, where="q", typed=True)
        for question in questions
    ]

    def answers(top_k: int) -> list[list[Any]]:
        config = AnswerCorpusConfig(
            requests=({"question": questions[0]},), corpus=built["index"], top_k=top_k
        )
        predictor = CorpusAnswers(reader, config)
        found = predictor.answer(predictor.encode([predictor.read(own) for own in requests]))
        return [own["predictions"] for own in found]

    many = answers(20)
    assert all(own[0]["answer"] for own in many)
    for count in (1, 2):
        assert answers(count) == [own[:count] for own in many]


def test_answers_from_a_corpus(built: dict[str, str], reader: str) -> None:
    question = "where is the capital"
    config = AnswerCorpusConfig(
        requests=({"question": question},), corpus=built["index"], passages=3, top_k=20
    )
    predictor = CorpusAnswers(reader, config)
    requests = [
        Request(index=0, fields={"question": question}, where="q", typed=True),
        Request(index=1, fields={"question": question, "passage": "a dog sat."}, where="q"),
    ]
    found, given = predictor.answer(predictor.encode([predictor.read(own) for own in requests]))
    searcher = Searcher(built["index"])
    (ranked,) = searcher.search([question], 3)
    texts = [searcher.index.passage(number).text for number, _ in ranked]
    assert found["predictions"]
    for answer in found["predictions"]:
        text = answer["passage"]["text"]
        assert text in texts
        assert text[answer["start"] : answer["end"]] == answer["answer"]
    # the best of all passages read as one text, unless it spans two
    whole = QuestionAnsweringPipeline(reader).answer(question, "\n\n".join(texts), 20)
    in_one = [row["answer"] for row in whole if "\n\n" not in row["answer"]]
    assert [row["answer"] for row in found["predictions"]] == in_one
    alone = QuestionAnsweringPipeline(reader).answer(question, "a dog sat.", 20)
    assert [row["answer"] for row in given["predictions"]] == [row["answer"] for row in alone]
    assert given["score"] == pytest.approx(alone[0]["score"], abs=1e-5)
    nowhere = Request(index=0, fields={"question": "xyzzy"}, where="q", typed=True)
    (nothing,) = predictor.answer(predictor.encode([predictor.read(nowhere)]))
    assert (nothing["answer"], nothing["passage"]) == ("", None)
