"""Static vectors of a small corpus: the same in every run, as a checkpoint and in word2vec's format;
analogies; the nearest words and the nearest occurrences.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core import storage
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import execute
from cloze.core.stages.stage import NULL_REPORTER
from cloze.labs.before_bert.stages import STAGE, StaticVectorsConfig
from cloze.labs.before_bert.static_training import (
    Sentences,
    co_occurrences,
    score_analogies,
)
from cloze.labs.inside.neighbours import Neighbours
from cloze.labs.inside.stages import NeighboursConfig
from cloze.model import checkpoint
from cloze.model.use.request import Request
from cloze.pipeline import tokenizer
from tests.model.tasks.stages import finetune
from tests.model.tasks.stages import settings as finetuning
from tests.pipeline.corpus.corpora import write_corpus
from tests.pipeline.vocab.vocabularies import make
from tests.tiny_models import write_checkpoint

WORDS = "encoder.embeddings.word.weight"
DOCUMENTS = [
    ("cats", ["The cat sat on the mat.", "A cat ran in the park."]),
    ("dogs", ["A dog ran in the park.", "The dog sat on the mat, the cat ran."]),
    *((f"more{number}", ["the cat and the dog sat in the park"]) for number in range(4)),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    base = tmp_path_factory.mktemp("static")
    corpus = write_corpus(base / "corpus", DOCUMENTS, 2)
    make(corpus, base / "vocab", kind="words", min_frequency=2)
    return {"corpus": corpus, "vocab": str(base / "vocab")}


def train(made: dict[str, str], out: Path, **values: Any) -> Any:
    if values.get("method") != "glove":
        pytest.importorskip("gensim", reason="the extra vectors is not installed")
    config = StaticVectorsConfig(**{"size": 8, "epochs": 3, **values})
    return execute(STAGE, config, made, str(out))


def test_a_vocabulary_of_words_is_ordered_by_frequency(made: dict[str, str]) -> None:
    pieces = tokenizer.load(made["vocab"])
    vocab = pieces.backend.get_vocab()
    words = sorted(vocab, key=vocab.__getitem__)
    assert words[:7] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
    assert {"The", ".", "mat"} < set(words)
    assert "," not in vocab
    assert pieces.kind == "wordlevel"
    assert bool(pieces.word_start.all())
    ids = pieces.encode_batch(["The zebra sat, sat."])[0]
    assert [words[number] for number in ids] == ["The", "[UNK]", "sat", "[UNK]", "sat", "."]


def test_co_occurrences_are_weighted_by_distance_within_a_sentence(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [("a", ["x y z", "z z"])])
    make(corpus, tmp_path / "vocab", kind="words", min_frequency=1)
    pieces = tokenizer.load(str(tmp_path / "vocab"))
    counts = co_occurrences(Sentences(corpus, pieces, NULL_REPORTER), 2).to_dense()
    x, y, z = (pieces.backend.token_to_id(word) for word in "xyz")
    assert (counts[x, y], counts[x, z], counts[y, z], counts[z, z]) == (1.0, 0.5, 1.0, 2.0)
    assert counts.equal(counts.T)
    assert counts.sum() == 7.0


@pytest.mark.parametrize("method", ["word2vec", "fasttext", "glove"])
def test_a_run_gives_the_same_bytes_and_others_read_them(
    method: str, made: dict[str, str], tmp_path: Path
) -> None:
    runs = [train(made, tmp_path / name, method=method) for name in "ab"]
    first, second = (checkpoint.load(f"{run.artifact}/checkpoint").state[WORDS] for run in runs)
    assert first.equal(second)
    other = train(made, tmp_path / "c", method=method, seed=2)
    assert not first.equal(checkpoint.load(f"{other.artifact}/checkpoint").state[WORDS])
    pieces = tokenizer.load(made["vocab"])
    assert not first[[pieces.special.pad, pieces.special.cls]].any()
    assert runs[0].as_json()["words"] == int(first.any(dim=1).sum()) > 5
    gensim = pytest.importorskip("gensim", reason="the extra vectors is not installed")
    read = gensim.models.KeyedVectors.load_word2vec_format(
        f"{runs[0].artifact}/vectors.bin", binary=True
    )
    assert np.array_equal(read["cat"], first[pieces.backend.token_to_id("cat")].numpy())


def test_analogies_are_scored_by_section(tmp_path: Path) -> None:
    pytest.importorskip("gensim", reason="the extra vectors is not installed")
    vectors = {
        "man": [1, 0, 0], "woman": [1, 1, 0], "king": [1, 0, 1], "queen": [1, 1, 1], "mat": [-1, 0, 0],
    }  # fmt: skip
    named = {word: np.array(vector, np.float32) for word, vector in vectors.items()}
    questions = tmp_path / "questions.txt"
    questions.write_text(": family\nMan Woman King Queen\nman woman king mat\n: none\nx y z u\n")
    found = score_analogies(str(questions), named)
    assert (found["accuracy"], found["questions"]) == (0.5, 2)
    assert found["sections"]["family"] == {"right": 1, "wrong": 1}
    storage.write_bytes("memory://analogies/questions.txt", questions.read_bytes())
    assert score_analogies("memory://analogies/questions.txt", named) == found
    questions.write_text(": none\nx y z u\n")
    with pytest.raises(DataError, match="no question whose four words"):
        score_analogies(str(questions), named)
    questions.write_text("man woman king\n")
    with pytest.raises(DataError, match="line 1 .* has not four words"):
        score_analogies(str(questions), named)
    questions.write_bytes(b"man woman king \xe9\n")
    with pytest.raises(DataError, match="line 1: byte 16 is not UTF-8"):
        score_analogies(str(questions), named)


def test_static_vectors_are_features_of_a_task(made: dict[str, str], tmp_path: Path) -> None:
    vectors = train(made, tmp_path / "glove", method="glove")
    data = tmp_path / "task"
    data.mkdir()
    rows = "".join(f"the {animal} sat\t{label}\n" for label, animal in enumerate(["cat", "dog"]))
    for split in ("train", "dev"):
        (data / f"{split}.tsv").write_text("sentence\tlabel\n" + rows * 20)
    config = finetuning(
        data, task="sst2", frozen="embeddings", lstm_size=8, lstm_layers=1, baselines=False,
        epochs=8, learning_rate=0.03, dropout=0,
    )  # fmt: skip
    tuned = finetune(config, str(vectors.artifact), tmp_path / "tuned")
    assert tuned.as_json()["metrics"]["accuracy"] == 1.0
    before, after = (
        checkpoint.load(f"{path}/checkpoint").state[WORDS]
        for path in (vectors.artifact, tuned.artifact)
    )
    assert before.equal(after), "the vectors are frozen"


def ask(path: str, config: NeighboursConfig, **fields: str) -> dict[str, Any]:
    verb = Neighbours(path, config)
    request = Request(index=0, fields=fields, where="the word", typed=True)
    (answer,) = verb.answer(verb.encode([verb.read(request)]))
    return answer


def test_nearest_words_are_those_of_the_largest_cosine(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", [("a", ["cat dog mat park"] * 2)])
    make(corpus, tmp_path / "vocab", kind="words")
    made = {"corpus": corpus, "vocab": str(tmp_path / "vocab")}
    path = str(train(made, tmp_path / "vectors", method="glove", size=2).artifact)
    loaded = checkpoint.load(f"{path}/checkpoint")
    vectors = loaded.state[WORDS]
    pieces = tokenizer.load(made["vocab"])
    own = vectors[pieces.backend.token_to_id("cat")]
    expected = {
        word: float(own @ vector / (own.norm() * vector.norm()))
        for word in ("dog", "mat", "park")
        for vector in [vectors[pieces.backend.token_to_id(word)]]
    }
    answer = ask(path, NeighboursConfig(requests=({"word": "cat"},), top_k=2), word="cat")
    assert "contexts" not in answer
    best = sorted(expected, key=lambda word: -expected[word])[:2]
    assert [row["word"] for row in answer["static"]] == best
    assert [row["score"] for row in answer["static"]] == pytest.approx(
        [expected[word] for word in best], abs=1e-5
    )
    assert ask(path, NeighboursConfig(requests=({},)), word="zebra")["static"] == []


def test_nearest_occurrences_have_their_sentences(made: dict[str, str], tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    config = NeighboursConfig(requests=({},), corpus=made["corpus"], top_k=3)
    sentence = "A cat ran in the park."
    answer = ask(path, config, **{"word": "Cat", "in": sentence})
    rows = answer["contexts"]
    assert len({row["sentence"] for row in rows}) == 3
    assert all(row["sentence"][row["start"] : row["end"]].lower() == "cat" for row in rows)
    assert sentence not in [row["sentence"] for row in rows]
    scores = [row["score"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] <= 1.0 + 1e-5
    # the first layer's states are the words', with their position: the same place is nearest
    first = ask(
        path,
        config.model_copy(update={"layer": 0, "any_word": True}),
        **{"word": "ran", "in": sentence},
    )["contexts"][0]
    assert (first["word"], first["sentence"]) == ("ran", "A dog ran in the park.")
    with pytest.raises(UsageError, match="is no word of the sentence"):
        ask(path, config, **{"word": "zebra", "in": sentence})
    with pytest.raises(UsageError, match="has no 'in'"):
        ask(path, config, word="cat")
    with pytest.raises(UsageError, match="name one with --corpus"):
        ask(path, NeighboursConfig(requests=({},)), word="cat")
    with pytest.raises(UsageError, match="is a bert model"):
        ask(path, config.model_copy(update={"static": path}), **{"word": "cat", "in": sentence})
