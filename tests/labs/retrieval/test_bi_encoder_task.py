"""Retrieval: the loss is the group's however the batch is split, metrics are scikit-learn's, and a
tuned encoder finds passages.
"""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import settings as trying
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from cloze.core.artifacts.artifact import HELDOUT
from cloze.core.errors import DataError, UsageError
from cloze.labs.retrieval.bi_encoder_task import (
    PairSamples,
    RetrievalTask,
    SplitEmbeddings,
    contrastive_loss,
)
from cloze.labs.retrieval.pairs import QueryPassages, ndcg, recall, relevant_ranks
from cloze.labs.retrieval.passages import PassageIndex, best
from cloze.labs.retrieval.tasks import BiEncoderOptions
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_backbone
from cloze.model.tasks.heads import new_network
from cloze.model.tasks.source import EpochSource
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.conftest import BAD, GOOD, NEUTRAL
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.pipeline.corpus.corpora import write_corpus

WORDS = [*GOOD, *BAD]


def examples(count: int, seed: int = 0) -> QueryPassages:
    """Queries with a word that stands in their passage; every third passage answers two."""
    draw = random.Random(seed)
    texts = [
        f"{' '.join(draw.choices(NEUTRAL, k=5))} {word} {other}"
        for word in WORDS
        for other in WORDS
    ][:count]
    pairs = [(number, number) for number in range(count)]
    queries = [
        f"{text.split()[-2]} {' '.join(draw.choices(NEUTRAL, k=2))} {number % 7 * 's '}"
        for number, text in enumerate(texts)
    ]
    for number in range(0, count, 3):
        pairs.append((len(queries), number))
        queries.append(f"with {texts[number]}")
    names = [str(number) for number in range(len(queries))]
    return QueryPassages(
        queries=queries,
        query_ids=names,
        passages=texts,
        passage_ids=names[:count],
        pairs=np.array(pairs, np.int64),
    )


def task(**options: Any) -> RetrievalTask:
    found = load_task("retrieval", options)
    assert isinstance(found, RetrievalTask)
    return found


@pytest.mark.parametrize(("symmetric", "hard"), [(False, 0), (True, 0), (False, 3), (True, 2)])
def test_the_loss_and_its_gradient_do_not_depend_on_how_a_batch_is_split(
    symmetric: bool, hard: int, pieces: Tokenizer, shape: ModelConfig
) -> None:
    kind = task(group=8, symmetric=symmetric, hard_negatives=hard)
    read = examples(30)
    samples = kind.encode(read, pieces, 24)
    meaning = kind.metadata(read)

    def step(micro_batch: int, ranks: int) -> tuple[float, torch.Tensor]:
        network = new_network(kind, shape, None, meaning, 0.0, 3).eval()
        source = EpochSource(samples, batch_size=20, seed=5, micro_batch=micro_batch)
        total = 0.0
        for rank in range(ranks):
            for part in source.step_batches(0, rank, ranks).micro_batches:
                if "blank" in part.batch:
                    continue
                loss = kind.loss(network(part.batch), part.batch).total / 20
                loss.backward()  # type: ignore[no-untyped-call]
                total += loss.item()
        word = network.get_parameter("encoder.embeddings.word.weight").grad
        assert word is not None
        return total, word

    whole, gradient = step(20, 1)
    for micro_batch, ranks in ((7, 1), (1, 1), (20, 3), (2, 2)):
        split, own = step(micro_batch, ranks)
        assert split == pytest.approx(whole, abs=1e-5)
        assert torch.allclose(own, gradient, atol=1e-6)


def plain_loss(
    samples: PairSamples,
    queries: torch.Tensor,
    passages: torch.Tensor,
    chosen: list[int],
    symmetric: bool,
) -> float:
    """The loss of one group, pair by pair."""
    pairs = [tuple(pair) for pair in samples.pairs[chosen].tolist()]
    total = 0.0
    for query, passage in pairs:
        score = float(queries[query] @ passages[passage]) / 0.5
        candidates = {p for _, p in pairs} | set(samples.negatives[chosen].ravel().tolist())
        others = candidates - samples.relevant[query]
        ways = [[score, *(float(queries[query] @ passages[p]) / 0.5 for p in others)]]
        if symmetric:
            ways.append(
                [
                    score,
                    *(
                        float(queries[q] @ passages[passage]) / 0.5
                        for q, _ in pairs
                        if passage not in samples.relevant[q]
                    ),
                ]
            )
        total += sum(-(score - float(torch.tensor(way).logsumexp(0))) for way in ways) / len(ways)
    return total


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_passage_that_answers_a_query_is_never_a_negative(
    symmetric: bool, pieces: Tokenizer
) -> None:
    read = examples(12)
    samples = task(group=64, symmetric=symmetric).encode(read, pieces, 24)
    chosen = np.arange(len(samples))[::-1].copy()
    batch = samples.batch(chosen, "rows")
    assert batch["allowed"].shape == (16, 12)  # equal passages once
    torch.manual_seed(1)
    queries, passages = torch.randn(16, 4), torch.randn(12, 4)
    own_queries = queries[samples.pairs[chosen][:, 0]]
    total, _ = contrastive_loss((own_queries, passages), batch, 0.5)
    assert float(total) == pytest.approx(
        plain_loss(samples, queries, passages, chosen.tolist(), symmetric), rel=1e-5
    )


@trying(max_examples=40)
@given(st.data())
def test_metrics_are_those_of_scikit_learn_ties_included(data: st.DataObject) -> None:
    queries, passages = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 15))
    values = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])
    scores = np.array(
        data.draw(st.lists(values, min_size=queries * passages, max_size=queries * passages)),
        np.float32,
    )
    scores = scores.reshape(queries, passages)
    relevant = np.zeros((queries, passages), int)
    for row in relevant:
        row[list(data.draw(st.sets(st.integers(0, passages - 1), min_size=1, max_size=4)))] = 1
    query, passage = np.nonzero(relevant)
    above, tied = relevant_ranks(scores[query], passage)
    assert ndcg(above, tied, query, queries, 10).mean() == pytest.approx(
        ndcg_score(relevant, scores, k=10)
    )
    for depth in (1, 10):
        found = recall(above, tied, query, queries, depth)
        for number in range(
            queries
            # in the first places: all that score more than the last one of them, and a share of its
            # equals
        ):
            last = np.sort(scores[number])[::-1][min(depth, passages) - 1]
            sure, maybe = scores[number] > last, scores[number] == last
            share = (min(depth, passages) - sure.sum()) / maybe.sum()
            expected = (relevant[number] * (sure + share * maybe)).sum() / relevant[number].sum()
            assert found[number] == pytest.approx(expected)


def test_vectors_that_say_nothing_are_worth_what_chance_is() -> None:
    read = examples(30)
    constant = SplitEmbeddings(np.ones((40, 3), np.float32), np.ones((30, 3), np.float32))
    found = task().score(read, constant)
    assert found["recall_at_1"] == pytest.approx(1 / 30)
    assert found["recall_at_10"] == pytest.approx(10 / 30)


def write_rows(directory: Path, read: QueryPassages, name: str) -> None:
    lines = [
        "query\tpassage",
        *(f"{read.queries[q]}\t{read.passages[p]}" for q, p in read.pairs.tolist()),
    ]
    (directory / name).write_text("\n".join(lines) + "\n")


def test_a_tuned_encoder_finds_passages_and_evaluates_as_it_was_tuned(
    pretrained: str, tmp_path: Path
) -> None:
    write_rows(tmp_path, examples(60), "train.tsv")
    write_rows(tmp_path, examples(60, seed=1), "dev.tsv")
    config = settings(
        tmp_path,
        task="retrieval",
        epochs=6,
        global_batch=32,
        options={"pooling": "mean", "group": 16},
    )
    result = finetune(config, pretrained, tmp_path / "out")
    metrics = result.manifest.summary["metrics"]
    assert metrics["recall_at_10"] > 0.6  # chance is 1/6
    assert metrics.keys() == {"ndcg_at_10", "recall_at_1", "recall_at_10", "bm25", "from_scratch"}
    evaluated = evaluate(tmp_path / "out", tmp_path / "eval", data=str(tmp_path))
    assert evaluated.manifest.summary["metrics"] == {
        name: metrics[name] for name in ("ndcg_at_10", "recall_at_1", "recall_at_10")
    }
    low, high = evaluated.manifest.summary["interval"]["ndcg_at_10"]
    assert low < metrics["ndcg_at_10"] < high
    assert (tmp_path / "eval/run.trec").read_bytes() == (tmp_path / "out/run.trec").read_bytes()
    judged = {
        tuple(line.split()[::2]) for line in (tmp_path / "out/qrels.txt").read_text().splitlines()
    }
    first = [line.split() for line in (tmp_path / "out/run.trec").read_text().splitlines()]
    assert {len(row) for row in first} == {6}
    top = [(row[0], row[2]) for row in first if row[3] == "1"]
    assert np.mean([pair in judged for pair in top]) == pytest.approx(
        metrics["recall_at_1"], abs=1e-6
    )


def test_hard_negatives_are_the_best_wrong_passages(pieces: Tokenizer) -> None:
    read = examples(30)
    samples = task(group=64, hard_negatives=2).encode(read, pieces, 24)
    index = PassageIndex.of_texts(read.passages)
    for (query, _), negatives in zip(read.pairs.tolist(), samples.negatives.tolist(), strict=True):
        ranked = best(index.scores(read.queries[query]), 30)
        assert negatives == [p for p in ranked if p not in samples.relevant[query]][:2]
    chosen = np.array([0, 5, 9])
    batch = samples.batch(chosen, "rows")
    assert batch["allowed"].shape[1] > 3
    torch.manual_seed(1)
    queries, passages = torch.randn(len(read.queries), 4), torch.randn(30, 4)
    numbers = np.unique(np.append(read.pairs[chosen][:, 1], samples.negatives[chosen]))
    asked = queries[read.pairs[chosen][:, 0]]
    total, _ = contrastive_loss((asked, passages[numbers]), batch, 0.5)
    assert float(total) == pytest.approx(
        plain_loss(samples, queries, passages, chosen.tolist(), False), rel=1e-5
    )
    strange = dataclasses.replace(read, queries=["xyzzy"] * len(read.queries))
    own = task(hard_negatives=2).encode(strange, pieces, 24)
    assert own.negatives.tolist() == [[passage] * 2 for passage in read.pairs[:, 1].tolist()]


def test_sentences_and_their_passages(tmp_path: Path) -> None:
    text = [f"Sentence {number} has {'five words' * (number % 3)} here." for number in range(400)]
    documents = [(f"d{n}", text[20 * n : 20 * n + 20]) for n in range(20)]
    corpus = write_corpus(tmp_path / "corpus", [*documents, ("one", ["Alone."])], heldout=["d3"])
    kind = load_task("inverse-cloze")
    assert kind.source == "corpus"
    found = kind.read(corpus, "train", None)
    kept = 0
    for query, passage in found.pairs.tolist():
        sentence, around = found.queries[query], found.passages[passage]
        (number,) = (n for n, own in documents if sentence in own)
        own = dict(documents)[number]
        assert all(part in own for part in around.replace(". ", ".|").split("|"))
        kept += sentence in around
    assert 0 < kept < len(found) / 3
    assert found.dropped == {"empty": 1}  # of the only sentence nothing is left
    assert not any(sentence in documents[3][1] for sentence in found.queries)
    dev = kind.read(corpus, "dev", None)
    assert all(sentence in documents[3][1] for sentence in dev.queries)


def test_pairs_of_squad(samples: Path) -> None:
    found = load_task("squad-retrieval").read(str(samples / "tasks" / "squad"), "dev", None)
    content = json.loads((samples / "tasks/squad/dev-v1.1.json").read_text())
    asked = [
        (q["question"], p["context"])
        for a in content["data"]
        for p in a["paragraphs"]
        for q in p["qas"]
    ]
    assert [(found.queries[q], found.passages[p]) for q, p in found.pairs.tolist()] == list(
        dict.fromkeys(asked)
    )
    assert len(found.passages) == len({context for _, context in asked})


def test_titles_and_articles_of_a_corpus(tmp_path: Path) -> None:
    rows = [("a/1", "Cats", "train", ["The cat.", "It sat."]), ("a/2", "", "train", ["No title."])]
    rows += [("a/3", "Dogs", "train", ["The dog."]), ("a/4", "Held", HELDOUT, ["Out."])]
    columns = dict(
        zip(("id", "title", "split", "sentences"), map(list, zip(*rows, strict=True)), strict=True)
    )
    table = pa.table(columns)
    with (
        pa.OSFile(str(tmp_path / "corpus-00000-of-00001.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    kind = load_task("title-retrieval")
    assert kind.source == "corpus"
    found = kind.read(str(tmp_path), "train", None)
    assert [(found.queries[q], found.passages[p]) for q, p in found.pairs] == [
        ("Cats", "The cat. It sat."),
        ("Dogs", "The dog."),
    ]
    assert found.dropped == {"empty": 1}
    with pytest.raises(DataError, match="has 1 passages"):
        kind.read(str(tmp_path), "dev", None)
    with pytest.raises(DataError, match="no split 'test'"):
        kind.read(str(tmp_path), "test", None)


def test_what_the_limit_leaves_is_whole(tmp_path: Path) -> None:
    write_rows(tmp_path, examples(30), "train.tsv")
    found = task(limit=11).read(str(tmp_path), "train", None)
    assert len(found) == 11
    assert found.dropped["over_limit"] == 29
    assert set(found.pairs[:, 0]) == set(range(len(found.queries)))
    assert set(found.pairs[:, 1]) == set(range(len(found.passages)))
    with pytest.raises(UsageError, match="limit_per_class"):
        task().read(str(tmp_path), "train", 5)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("train.tsv", b"", "train.tsv is empty"),
        ("train.tsv", b"question\tpassage\na\tb\n", "no column 'query'"),
        ("train.tsv", b"query\tpassage\r\na\t \r\n", "line 2: the passage is empty"),
        ("train.tsv", b"query\tpassage\na\tb\0\n", "line 2: .*NUL"),
        ("train.csv", b'query,passage\na,"b\n', "train.csv"),
        ("train.jsonl", b'{"query": "a", "passage": "b"}\n{"query": 1', "train.jsonl, line 2"),
        ("train.tsv", b"query\tpassage\na\tb\nc\tb\n", "has 1 passages"),
    ],
)
def test_bad_pairs_are_told_with_file_and_line(
    name: str, content: bytes, fault: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=fault):
        task().read(str(tmp_path), "train", None)


def test_bad_options() -> None:
    for options, fault in (
        ({"group": 1}, "group"),
        ({"temperature": 0}, "temperature"),
        ({"pooling": "max"}, "pooling"),
    ):
        with pytest.raises(UsageError, match=fault):
            load_task("retrieval", options)
    assert BiEncoderOptions().group == 32


def test_a_network_keeps_its_pooler(shape: ModelConfig) -> None:
    network = task().network(
        new_backbone(shape), shape, {"pooling": "mean", "normalize": True}, 0.0
    )
    assert any(name.startswith("pooler.") for name in network.state_dict())
