"""Training that goes on from another checkpoint: the same weights, a grown vocabulary, or one
sentence why not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cloze.core.errors import UsageError
from cloze.model import checkpoint
from cloze.model.families.models import first_weights, new_model
from cloze.model.families.registry import model_config
from cloze.model.train.resume.initialization import (
    Teacher,
    build_network,
    initial_model,
)
from cloze.pipeline import tokenizer
from tests.tiny_models import (
    PIECES,
    dataset_info,
    tiny_config,
    tiny_model,
    write_checkpoint,
    write_tokenizer,
)

WORD = "encoder.embeddings.word.weight"


def wider(directory: Path, pieces: list[str]) -> str:
    directory.mkdir(parents=True)
    (directory / "vocab.txt").write_text(
        "".join(f"{piece}\n" for piece in pieces), encoding="utf-8"
    )
    tokenizer.load(str(directory / "vocab.txt")).save(str(directory / "tokenizer"))
    return str(directory / "tokenizer")


def test_without_a_checkpoint_the_model_is_the_wanted_one_or_bert_base(tmp_path: Path) -> None:
    pieces = write_tokenizer(tmp_path)
    info = dataset_info(pieces)
    assert initial_model(model_config("bert-tiny"), None, info, pieces).model.hidden_size == 128
    beginning = initial_model(None, None, info, pieces)
    assert (beginning.model.hidden_size, beginning.model.vocab_size, beginning.state) == (
        768,
        len(PIECES),
        None,
    )


def test_weights_go_on_unchanged(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    pieces = write_tokenizer(tmp_path / "other")
    beginning = initial_model(None, directory, dataset_info(pieces), pieces)
    assert beginning.model == tiny_config()
    network, lacking = build_network(beginning)
    assert lacking == []
    loaded = checkpoint.load(directory)
    assert all(tensor.equal(loaded.state[name]) for name, tensor in network.state_dict().items())


def test_a_grown_vocabulary_begins_as_the_mean_of_what_the_words_were(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    pieces = wider(tmp_path / "wide", [*PIECES, "catdog", "##walk"])
    beginning = initial_model(None, directory, dataset_info(pieces), pieces)
    assert beginning.model.vocab_size == len(PIECES) + 2
    loaded = checkpoint.load(directory)
    network, _ = build_network(beginning)
    rows = network.state_dict()[WORD]
    assert rows[: len(PIECES)].equal(loaded.state[WORD])
    known = tokenizer.load(loaded.tokenizer)
    ids = known.backend.encode("catdog", add_special_tokens=False).ids
    torch.testing.assert_close(rows[len(PIECES)], loaded.state[WORD][ids].mean(dim=0))
    assert rows[len(PIECES) + 1].equal(loaded.state[WORD][PIECES.index("walk")])
    assert network.state_dict()["masked_lm.bias"].shape == (len(PIECES) + 2,)


def test_new_words_take_the_rows_that_were_padding(tmp_path: Path) -> None:
    model, known = tiny_config(vocab_size=len(PIECES) + 5), len(PIECES)
    heads, state = {"masked_lm": {}, "pair": {"num_labels": 2}}, new_model(model).state_dict()
    pieces, directory = write_tokenizer(tmp_path / "known"), str(tmp_path / "padded")
    checkpoint.save_weights(directory, model=model, state=state, tokenizer=pieces, heads=heads)
    checkpoint.finalize(directory)
    extended = wider(tmp_path / "wide", [*PIECES, "##walk", "catdog"])
    beginning = initial_model(None, directory, dataset_info(extended), extended)
    assert beginning.model.vocab_size == known + 5
    rows = build_network(beginning)[0].state_dict()[WORD]
    assert rows[known].equal(state[WORD][PIECES.index("walk")])
    assert rows[:known].equal(state[WORD][:known])
    assert rows[known + 2 :].equal(state[WORD][known + 2 :])


def test_another_vocabulary_is_refused_by_its_first_other_piece(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    pieces = wider(tmp_path / "other", [*PIECES[:7], "elephant", *PIECES[8:]])
    with pytest.raises(
        UsageError,
        match=(
            r"does not fit the embedding of .*: id 7 is 'cat' there and 'elephant' in the dataset"
        ),
    ):
        initial_model(None, directory, dataset_info(pieces), pieces)
    shorter = wider(tmp_path / "short", PIECES[:-2])
    with pytest.raises(UsageError, match="and nothing in the dataset"):
        initial_model(None, directory, dataset_info(shorter), shorter)


def test_a_model_beside_a_checkpoint_must_be_the_same(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    pieces = write_tokenizer(tmp_path / "other")
    info = dataset_info(pieces)
    wanted = tiny_config(hidden_dropout=0.3, attention_dropout=0.2)
    beginning = initial_model(wanted, directory, info, pieces)
    assert beginning.model == wanted != checkpoint.load_metadata(directory).model, "but for dropout"
    with pytest.raises(
        UsageError,
        match=r"hidden_size \(128\) is not that of the checkpoint .* \(16\); leave model out",
    ):
        initial_model(model_config("bert-tiny"), directory, info, pieces)
    with pytest.raises(UsageError, match=r"family \(roberta\) is not that of the checkpoint"):
        initial_model(model_config("roberta-tiny"), directory, info, pieces)


def test_a_student_begins_with_its_teachers_layers(tmp_path: Path) -> None:
    """From the start of a training to its network: what no teacher has begins at random."""
    teacher = tiny_model(7, num_hidden_layers=4)
    pieces = write_tokenizer(tmp_path)
    source = Teacher(tiny_config(num_hidden_layers=4), teacher.state_dict())
    beginning = initial_model(tiny_config(), None, dataset_info(pieces), pieces, source)
    taken = first_weights(beginning.model, source.model, source.state)
    network, lacking = build_network(beginning)
    state = network.state_dict()
    assert any(name.startswith("encoder.layers.") for name in taken)
    assert all(tensor.equal(state[name]) for name, tensor in taken.items())
    assert set(lacking) == state.keys() - taken.keys()
    alone, all_of_it = build_network(
        initial_model(tiny_config(), None, dataset_info(pieces), pieces)
    )
    assert all_of_it == sorted(alone.state_dict())


def test_a_word_of_which_nothing_is_left_begins_as_the_mean_of_all(tmp_path: Path) -> None:
    """An accent alone: the checkpoint's tokenizer strips it, so there is no row to take."""
    directory = write_checkpoint(tmp_path / "checkpoint", tmp_path / "scratch")
    pieces = wider(tmp_path / "wide", [*PIECES, "\u0301", "catdog"])
    state = build_network(initial_model(None, directory, dataset_info(pieces), pieces))[
        0
    ].state_dict()
    known = checkpoint.load(directory).state[WORD]
    torch.testing.assert_close(state[WORD][len(PIECES)], known.mean(dim=0))
    assert not state[WORD][len(PIECES) + 1].equal(state[WORD][len(PIECES)])
