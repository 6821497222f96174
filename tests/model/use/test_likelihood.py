"""likelihood: bits per byte are what a plain loop gives, whatever the vocabulary, and unknown words
are paid for.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.model import checkpoint
from cloze.model.families.models import load_model
from cloze.model.use.configs import LikelihoodConfig
from cloze.model.use.likelihood import HeldoutText, encode, interval, read_texts, sample
from cloze.model.use.stages import LIKELIHOOD
from cloze.pipeline import tokenizer
from tests.pipeline.corpus.corpora import write_corpus
from tests.tiny_models import write_checkpoint

# Words of several tokens, an unknown character, one of two bytes, and more than the model reads.
TEXTS = [
    "the cats sat on the mat.",
    "walking dogs walked in paris",
    "the cat sat 世 mat",
    "naïve dogs",
    " ".join(["the dog walked in the park."] * 9),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("likelihood")
    return write_checkpoint(base / "checkpoint", base / "scratch")


def measured(path: str, out: Path, **values: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    out.mkdir()
    inputs = {"checkpoint": path} | ({"corpus": values.pop("corpus")} if "corpus" in values else {})
    build = BuildContext(
        path=str(out), inputs=inputs, execution=Execution(device="cpu", threads=1), fingerprint=""
    )
    summary = LIKELIHOOD.run(LikelihoodConfig.model_validate(values), build).summary
    rows = [json.loads(line) for line in (out / "texts.jsonl").read_text("utf-8").splitlines()]
    return summary, rows


def written(path: Path, texts: list[str] = TEXTS) -> str:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return str(path)


@torch.inference_mode()
def plain_bits(path: str, text: str, mask: str) -> float:
    """One token after the other; a word is what lies between spaces."""
    loaded = checkpoint.load(path)
    pieces, model = tokenizer.load(loaded.tokenizer), load_model(loaded.model, loaded.state)
    words = [pieces.encode_batch([word])[0] for word in text.split()]
    flat = [(token, number) for number, word in enumerate(words) for token in word]
    room, windows = loaded.model.max_position_embeddings - 2, []
    while flat:
        end = min(room, len(flat))
        while end < len(flat) and flat[end][1] == flat[end - 1][1]:
            end -= 1
        windows.append(flat[:end])
        flat = flat[end:]
    total = 0.0
    for window in windows:
        ids = [pieces.special.cls, *(token for token, _ in window), pieces.special.sep]
        for place, (token, word) in enumerate(window):
            copy = torch.tensor([ids])
            for other, (_, its_word) in enumerate(window):
                if other == place or (mask == "word-l2r" and its_word == word and other > place):
                    copy[0, other + 1] = pieces.special.mask
            logits = model(
                {
                    "input_ids": copy,
                    "token_type_ids": 0 * copy,
                    "masked_positions": torch.arange(len(ids)),
                }
            )["mlm_logits"]
            total -= float(logits[place + 1].log_softmax(-1)[token]) / math.log(2)
    unknown = [
        word for word in text.split() if pieces.special.unk in pieces.encode_batch([word])[0]
    ]
    return total + 8.0 * len("".join(unknown).encode())


@pytest.mark.parametrize("mask", ["word-l2r", "token"])
def test_bits_are_those_of_a_plain_loop(mask: str, directory: str, tmp_path: Path) -> None:
    summary, rows = measured(
        directory, tmp_path / "out", texts=written(tmp_path / "texts.txt"), mask=mask
    )
    by_text = {row["text"]: row for row in rows}
    assert set(by_text) == set(TEXTS)
    for text, row in by_text.items():
        assert row["bits"] == pytest.approx(plain_bits(directory, text, mask), abs=1e-3)
        assert row["bytes"] == len(text.encode())
    total = sum(len(text.encode()) for text in TEXTS)
    assert total == sum(map(len, TEXTS)) + 3  # 世 has three bytes, ï has two
    assert summary["bytes"] == total
    assert summary["metrics"]["bits_per_byte"] == pytest.approx(
        sum(row["bits"] for row in rows) / total
    )
    low, high = summary["interval"]["bits_per_byte"]
    assert low < summary["metrics"]["bits_per_byte"] < high


def test_from_left_to_right_it_is_the_likelihood(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family="gpt2")
    loaded = checkpoint.load(path)
    pieces, model = tokenizer.load(loaded.tokenizer), load_model(loaded.model, loaded.state)
    text = "the cats sat on the mat."
    inner = pieces.encode_batch([text])[0]
    ids = torch.tensor([[pieces.special.cls, *inner]])
    with torch.inference_mode():
        logits = model({"input_ids": ids, "token_type_ids": 0 * ids})["lm_logits"][0]
    nats = -sum(float(logits[i].log_softmax(-1)[token]) for i, token in enumerate(inner))
    summary, _ = measured(path, tmp_path / "out", texts=written(tmp_path / "texts.txt", [text]))
    assert summary["method"]["mask"] is None
    assert summary["metrics"]["bits_per_byte"] == pytest.approx(
        nats / math.log(2) / len(text), rel=1e-4
    )


def test_what_tokens_hide_is_counted_in_bytes(directory: str) -> None:
    pieces = tokenizer.load(checkpoint.load(directory).tokenizer)
    texts = ["the cat", "世界 the naïve", "a\u200bcat", "世 界"]
    encoded = encode(texts, pieces)
    unknown, hidden = (
        [getattr(text, name) for text in encoded] for name in ("unknown_tokens", "hidden_bytes")
    )
    assert hidden[0] == unknown[0] == 0
    assert hidden[1] >= 6
    assert hidden[3] == 6
    for text, found in zip(texts, encoded, strict=True):
        assert found.hidden_bytes <= len(text.encode())
    # a word is what the text says, not the tokenizer: a full stop belongs to the word before it
    (found,) = encode(["the mat. cats"], pieces)
    assert found.starts.tolist() == [True, True, False, True, False]


def test_an_unknown_word_never_costs_less_than_writing_it_out(
    directory: str, tmp_path: Path
) -> None:
    """A model that always predicts [UNK] would otherwise win."""
    loaded = checkpoint.load(directory)
    certain = {name: tensor.clone() for name, tensor in loaded.state.items()}
    size = loaded.model.vocab_size
    (bias,) = (name for name in certain if certain[name].shape == (size,))
    certain[bias][tokenizer.load(loaded.tokenizer).special.unk] += 100
    checkpoint.save_weights(
        str(tmp_path / "certain"), model=loaded.model, state=certain, tokenizer=loaded.tokenizer,
        heads=loaded.heads, dataset=loaded.dataset, step=1,
    )  # fmt: skip
    checkpoint.finalize(str(tmp_path / "certain"))
    summary, _ = measured(
        str(tmp_path / "certain"),
        tmp_path / "out",
        texts=written(tmp_path / "texts.txt", ["世界 世界", "界世"]),
    )
    assert summary["unknown_tokens"] > 0
    assert summary["hidden_bytes"] == 18
    assert summary["texts_with_hidden_bytes"] == 2
    assert summary["metrics"]["bits_per_byte"] >= 8 * 18 / 19


def test_the_sample_depends_on_the_texts_alone() -> None:
    texts = [HeldoutText(text=f"text {n % 90}", document=n, where="") for n in range(100)]
    chosen = [text.text for text in sample(iter(texts), 7, seed=1)]
    assert len(set(chosen)) == 7
    assert chosen == [text.text for text in sample(iter(texts[::-1]), 7, seed=1)]
    assert chosen == [text.text for text in sample(iter(texts), 30, seed=1)][:7]
    assert chosen != [text.text for text in sample(iter(texts), 7, seed=2)]
    assert len(sample(iter(texts), 1000, seed=1)) == 90


def test_the_interval_resamples_documents() -> None:
    generator = np.random.default_rng(1)
    sizes = generator.integers(50, 150, 400)
    rate = np.repeat(generator.normal(2.0, 0.5, 40), 10)  # alike within a document
    documents = np.repeat(np.arange(40), 10).tolist()
    low, high = interval(rate * sizes, sizes, documents, 3, 2000)
    assert low < (rate * sizes).sum() / sizes.sum() < high
    assert high - low == pytest.approx(4 * 0.5 / 40**0.5, rel=0.25)
    narrow = interval(rate * sizes, sizes, list(range(400)), 3, 2000)
    assert narrow[1] - narrow[0] < 0.5 * (high - low)


def test_held_out_sentences_of_a_corpus(directory: str, tmp_path: Path) -> None:
    stories = [("one", TEXTS[:2]), ("two", TEXTS[2:4]), ("three", ["a cat", "a dog", " "])]
    corpus = write_corpus(tmp_path / "corpus", stories, shards=2, heldout=["one", "three"])
    summary, rows = measured(directory, tmp_path / "out", corpus=corpus)
    assert {row["text"] for row in rows} == {*TEXTS[:2], "a cat", "a dog"}
    few, first = measured(directory, tmp_path / "few", corpus=corpus, limit=2)
    assert [row["text"] for row in first] == [row["text"] for row in rows[:2]]
    assert few["texts_sha256"] != summary["texts_sha256"]
    nothing = write_corpus(tmp_path / "nothing", stories)
    with pytest.raises(DataError, match="no held-out text"):
        measured(directory, tmp_path / "none", corpus=nothing)
    with pytest.raises(UsageError, match="needs held-out texts"):
        measured(directory, tmp_path / "without")


def test_only_a_line_feed_ends_a_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeffone\u2028line\r\n\n two\x85 \n".encode())
    assert [(text.text, text.where) for text in read_texts(str(path))] == [
        ("one\u2028line", "line 1"),
        ("two", "line 3"),
    ]
    path.write_bytes(b"one\ncaf\xe9\n")
    with pytest.raises(DataError, match="line 2: byte 4 is not UTF-8"):
        list(read_texts(str(path)))
