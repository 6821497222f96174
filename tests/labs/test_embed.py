"""embed: vectors are the pooled last states, whatever else is in the batch."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import cloze
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.labs.embed import EmbeddingPipeline
from cloze.labs.serving.verbs import EMBED_STAGE as EMBED
from cloze.labs.serving.verbs import EmbedConfig
from cloze.model import checkpoint
from cloze.model.families.models import load_backbone
from cloze.model.hub.write import write_directory
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from cloze.pipeline.vocab.trainers import train_bpe
from tests.pipeline.tokenizer.texts import TRAINING, trained_spiece
from tests.tiny_models import tiny_config, tiny_model, write_checkpoint, write_tokenizer

TEXTS = ["the cat sat on the mat.", "a", "walking dogs walked in paris", "the dog ran in the park"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("embed")
    return write_checkpoint(base / "checkpoint", base / "scratch")


def write_tuned(base: Path, **head: Any) -> str:
    """A checkpoint as tuning for retrieval leaves it."""
    pieces = write_tokenizer(base / "scratch")
    state = {
        name: tensor
        for name, tensor in tiny_model().state_dict().items()
        if name.startswith(("encoder.", "pooler."))
    }
    task = {"name": "retrieval", "max_length": 6, **head}
    path = str(base / "tuned")
    checkpoint.save_weights(
        path,
        model=tiny_config(),
        state=state,
        tokenizer=pieces,
        heads={"embedding": head},
        task=task,
    )
    checkpoint.finalize(path)
    return path


@torch.inference_mode()
def states(path: str, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one text alone: the last states [L, D], and the pooler's output [D]."""
    loaded = checkpoint.load(path)
    pieces = tokenizer.load(loaded.tokenizer)
    encoder, pooler = load_backbone(loaded.model, loaded.state)
    ids = torch.tensor([[pieces.special.cls, *pieces.encode_batch([text])[0], pieces.special.sep]])
    hidden = encoder(ids, None, 0 * ids)
    return hidden[0], pooler(hidden)[0]


def test_vectors_are_pooled_states_in_the_order_of_the_texts(directory: str) -> None:
    for pooling in ("mean", "first", "pooler"):
        found = EmbeddingPipeline(directory, pooling=pooling).embed(TEXTS)
        assert found.dtype == np.float32
        assert found.shape == (4, 16)
        for text, vector in zip(TEXTS, found, strict=True):
            hidden, pooled = states(directory, text)
            expected = {"mean": hidden.mean(dim=0), "first": hidden[0], "pooler": pooled}[pooling]
            assert vector == pytest.approx(expected.numpy(), abs=1e-5)


def test_a_tuned_checkpoint_says_how(directory: str, tmp_path: Path) -> None:
    tuned = EmbeddingPipeline(write_tuned(tmp_path, pooling="first", normalize=True))
    found = tuned.embed(TEXTS)
    assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(4))
    assert tuned.truncated == 3  # to six pieces
    expected = states(directory, "a")[0][0].numpy()
    assert found[1] == pytest.approx(expected / np.linalg.norm(expected), abs=1e-5)
    assert (
        np.linalg.norm(EmbeddingPipeline(directory).embed(TEXTS), axis=1).min() > 1.1
    )  # and another one is left as it is


def test_the_verb_writes_all_vectors_to_one_file(directory: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    config = EmbedConfig(file=str(tmp_path / "texts.txt"), npy=str(tmp_path / "vectors.npy"))
    build = BuildContext(
        path="", inputs={"checkpoint": directory}, execution=Execution(), fingerprint=""
    )
    summary = EMBED.run(config, build).summary
    assert summary == {
        "answered": 4,
        "size": 16,
        "pooling": "mean",
        "normalize": False,
        "truncated": 0,
    }
    assert np.load(tmp_path / "vectors.npy") == pytest.approx(
        EmbeddingPipeline(directory).embed(TEXTS), abs=1e-6
    )


def test_what_cannot_be_embedded(directory: str, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_bytes(b"a cat\n\xff\n")
    build = BuildContext(
        path="", inputs={"checkpoint": directory}, execution=Execution(), fingerprint=""
    )
    with pytest.raises(DataError, match="line 2"):
        EMBED.run(EmbedConfig(file=str(tmp_path / "texts.txt")), build)
    with pytest.raises(UsageError, match=r"max_length \(40\) is more than"):
        EmbeddingPipeline(directory, max_length=40)
    plain = write_checkpoint(tmp_path / "distil", tmp_path / "scratch", family="distilbert")
    with pytest.raises(UsageError, match="has no pooler"):
        EmbeddingPipeline(plain, pooling="pooler")
    with pytest.raises(DataError, match="text 2 is empty"):
        EmbeddingPipeline(directory).embed(["a", " "])
    assert EmbeddingPipeline(directory).embed([]).shape == (0, 16)


def write_other(base: Path, pieces: Tokenizer, **changes: Any) -> str:
    """A checkpoint of random weights with this tokenizer."""
    changes = {"vocab_size": pieces.vocab_size, "pad_token_id": pieces.special.pad, **changes}
    model, path = tiny_config(**changes), str(base / "checkpoint")
    checkpoint.save_weights(
        path,
        model=model,
        state=tiny_model(**changes).state_dict(),
        tokenizer=pieces,
        heads=model.heads,
        step=1,
    )
    checkpoint.finalize(path)
    return path


def write_t5(base: Path) -> str:
    """A checkpoint whose vocabulary has no token before a text."""
    options = {"unk_id": 2, "eos_id": 1, "control_symbols": [], "user_defined_symbols": []}
    trained_spiece(base, **options)
    return write_other(base, tokenizer.load(str(base)), family="t5")


def test_words_of_a_vocabulary_without_first_token(tmp_path: Path) -> None:
    path, text = write_t5(tmp_path), "the cat sat"
    loaded = checkpoint.load(path)
    ((ids, spans),) = tokenizer.load(loaded.tokenizer).encode_with_offsets([text])
    row = torch.tensor([[*ids, loaded.model.eos_token_id]])
    with torch.inference_mode():
        states = load_backbone(loaded.model, loaded.state).encoder(row, None, 0 * row)[0]
    (words,) = EmbeddingPipeline(path).embed_words([text])
    assert [text[begin:end] for (begin, end), _ in words] == ["the", "cat", "sat"]
    for (begin, end), vector in words:
        own = [place for place, (first, last) in enumerate(spans) if first >= begin and last <= end]
        assert own
        assert vector == pytest.approx(states[own].mean(dim=0).numpy(), abs=1e-5)


def test_blanks_before_a_text_are_of_its_first_word(tmp_path: Path) -> None:
    class Options:
        min_frequency = 1

    backend = train_bpe(
        lambda: iter(TRAINING), Options(), size=300, lowercase=False, strip_accents=False
    )
    pieces = Tokenizer.of(backend, "bpe")
    path, texts = write_other(tmp_path, pieces, family="roberta"), ["  the cat", "\n\nthe", "the"]
    spans = [span.tolist() for _, span in pieces.encode_with_offsets(texts)]
    assert [rows[0][1] for rows in spans[:2]] == [1, 1]  # tokens before the first word
    found = EmbeddingPipeline(path).embed_words(texts)
    words = [
        [text[begin:end] for (begin, end), _ in own] for text, own in zip(texts, found, strict=True)
    ]
    assert words == [["the", "cat"], ["the"], ["the"]]


def test_layers_of_a_model_with_a_decoder_are_refused(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch", family="bart")
    assert EmbeddingPipeline(path).embed(["the cat"]).shape == (1, 16)
    with pytest.raises(UsageError, match="has a decoder"):
        EmbeddingPipeline(path, layers=[1])


def test_words_in_context_are_means_of_their_tokens_in_the_chosen_layers(tmp_path: Path) -> None:
    """The vectors are those of transformers' hidden states."""
    from transformers import AutoModel, AutoTokenizer

    path = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    write_directory(checkpoint.load(path), str(tmp_path / "hf"))
    pieces = AutoTokenizer.from_pretrained(str(tmp_path / "hf"))
    network = AutoModel.from_pretrained(str(tmp_path / "hf")).eval()
    texts = ["the cats walked.", "paris is the capital"]
    for layers in ((), (0,), (1, -1)):
        answers = cloze.load(path).batch("embed", texts, word_vectors=True, layers=layers)
        for text, answer in zip(texts, answers, strict=True):
            assert [word["text"] for word in answer["words"]] == re.findall(r"\w+|\.", text)
            encoded = pieces(text, return_tensors="pt")
            with torch.no_grad():
                hidden = network(**encoded, output_hidden_states=True).hidden_states
            states = torch.stack([hidden[layer] for layer in layers or (-1,)]).mean(dim=0)[0]
            for number, word in enumerate(answer["words"]):
                tokens = [i for i, owner in enumerate(encoded.word_ids()) if owner == number]
                expected = states[tokens].mean(dim=0).tolist()
                assert word["embedding"] == pytest.approx(expected, abs=1e-5)
    (whole,) = cloze.load(path).batch("embed", texts[:1], layers=[0])
    assert len(whole["embedding"]) == 16
    with pytest.raises(UsageError, match=r"layer \(3\) does not exist"):
        next(cloze.load(path).batch("embed", texts, layers=[3]))
