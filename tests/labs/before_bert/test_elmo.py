"""ELMo's layers are those of a plain loop, each direction sees its side alone, and words are read by
their characters.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from cloze.core.errors import UsageError
from cloze.labs.before_bert.bilm import (
    BEGIN,
    END,
    BiLmLayer,
    CharacterEmbeddings,
    spellings,
)
from cloze.model import checkpoint
from cloze.model.families.config import check_fits
from cloze.model.families.models import attach, new_model
from cloze.model.layers.encoder import rows_of
from cloze.model.objectives import objectives
from cloze.model.train.resume.initialization import build_network, initial_model
from cloze.pipeline import tokenizer
from cloze.pipeline.tokenizer.backends import word_backend
from cloze.pipeline.tokenizer.special import BERT
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.scores import score
from tests.tiny_models import PIECES, dataset_info, tiny_batch, tiny_config, tiny_model


def plain_lstm(lstm: nn.LSTM, words: Tensor) -> Tensor:
    """Equations of an LSTM with projection (Sak et al. 2014, without peepholes), word by word.

    words: float [L, P]; returns float [L, P].
    """
    cell = words.new_zeros(lstm.hidden_size)
    state = words.new_zeros(words.shape[1])
    states = []
    for word in words:
        gates = lstm.weight_ih_l0 @ word + lstm.bias_ih_l0
        gates = gates + lstm.weight_hh_l0 @ state + lstm.bias_hh_l0
        take, keep, new, show = gates.chunk(4)
        cell = keep.sigmoid() * cell + take.sigmoid() * new.tanh()
        state = lstm.weight_hr_l0 @ (show.sigmoid() * cell.tanh())
        states.append(state)
    return torch.stack(states)


@pytest.mark.parametrize("residual", [False, True])
def test_a_layer_is_the_plain_loop_of_each_direction(residual: bool) -> None:
    torch.manual_seed(0)
    layer = BiLmLayer(4, 6, residual=residual, dropout=0.0).eval()
    hidden = torch.randn(3, 7, 8)
    lengths = (7, 5, 2)
    real = torch.arange(7) < torch.tensor(lengths)[:, None]
    found = layer(hidden, rows_of(hidden[..., 0], real))
    for row, length in enumerate(lengths):
        words = hidden[row, :length]
        expected = torch.cat(
            [
                plain_lstm(layer.forward_lstm, words[:, :4]),
                plain_lstm(layer.backward_lstm, words[:, 4:].flip(0)).flip(0),
            ],
            dim=1,
        )
        torch.testing.assert_close(found[row, :length], expected + words * residual)
    torch.testing.assert_close(
        layer(hidden, rows_of(hidden[..., 0], real), torch.tensor([3, 9])),
        found.flatten(0, 1)[[3, 9]],
    )


def test_each_half_of_a_state_has_read_one_side() -> None:
    model = tiny_model(family="elmo")
    ids = tiny_batch(rows=1, length=9)["input_ids"]
    changed = ids.clone()
    changed[0, 4] = 5 + (ids[0, 4] - 4) % (len(PIECES) - 5)
    before, after = (
        model({"input_ids": x, "token_type_ids": 0 * x})["hidden"] for x in (ids, changed)
    )
    ahead, behind = ((before - after).abs().amax(dim=0) > 1e-7).split(8, dim=1)
    assert [bool(row.any()) for row in ahead] == [position >= 4 for position in range(9)]
    assert [bool(row.any()) for row in behind] == [position <= 4 for position in range(9)]


@pytest.mark.parametrize("size", [0, 20])
def test_the_loss_is_that_of_both_neighbours(size: int) -> None:
    model = tiny_model(family="elmo", softmax_size=size)
    batch = tiny_batch()
    batch.pop("masked_labels")
    (objective,) = objectives(["bilm"])
    found = score(objective, model(batch), batch)
    total = torch.zeros(())
    ids, real = batch["input_ids"], batch["attention_mask"]
    for row in range(len(ids)):
        words = ids[row, : real[row].sum()]
        hidden = model.encoder(words[None], None, 0 * words[None])[0]
        known = torch.where(words < (size or len(PIECES)), words, PIECES.index("[UNK]"))
        ahead, behind = (
            (half @ model.bilm.weight.T + model.bilm.bias).log_softmax(-1)
            for half in hidden.chunk(2, 1)
        )
        for place in range(len(words) - 1):
            total -= (ahead[place, known[place + 1]] + behind[place + 1, known[place]]) / 2
    assert int(found.count) == int((real.sum(dim=1) - 1).sum())
    torch.testing.assert_close(found.total, total, rtol=1e-5, atol=1e-4)


def test_words_are_read_by_their_bytes() -> None:
    table = spellings(["cat", "é", "x" * 80])
    assert table[0, :6].tolist() == [BEGIN, *b"cat", END, 0]
    assert table[1, :5].tolist() == [BEGIN, *"é".encode(), END, 0]
    assert table[2].tolist() == [BEGIN, *b"x" * 48, END]
    torch.manual_seed(0)
    words = CharacterEmbeddings(
        4, filters=((1, 4), (3, 6)), character_size=3, highway_layers=1, size=5, dropout=0.0
    )
    words.spell(["cat", "cats", "dog", "cat"])
    ids = torch.tensor([[0, 1, 2], [3, 3, 1]])
    found = words(ids, 0 * ids)
    assert found.shape == (2, 3, 10)
    torch.testing.assert_close(found[0, 0], found[1, 0])  # the same characters
    assert not torch.allclose(found[0, 0], found[0, 1])
    # each word alone, as a device computes them that would have to wait for their number
    alone = words.words(words.spelling[ids.flatten()]).view(2, 3, 5)
    torch.testing.assert_close(found, torch.cat([alone, alone], dim=-1))


def test_vectors_of_untrained_words_point_everywhere() -> None:
    """Equal at first, they would stay one direction, which tells how frequent a word is."""
    torch.manual_seed(0)
    words = new_model(tiny_config("elmo", vocab_size=200, initializer_range=0.02)).encoder
    vectors = words.embeddings.words(spellings([f"{7919 * n % 1000:b}" for n in range(200)]))
    shares = torch.linalg.svdvals(vectors - vectors.mean(dim=0)) ** 2
    assert vectors.std() > 0.1
    assert shares[0] < 0.7 * shares.sum()


def word_tokenizer(directory: Path, words: list[str]) -> str:
    Tokenizer.of(word_backend([*BERT, *words], False), "words").save(str(directory))
    return str(directory)


def test_spellings_come_from_the_tokenizer_and_stay_in_the_checkpoint(tmp_path: Path) -> None:
    pieces = word_tokenizer(tmp_path / "words", ["the", "cat", "sat"])
    longer = word_tokenizer(tmp_path / "longer", ["the", "cat", "sat", "zebra"])
    model = tiny_model(family="elmo", vocab_size=8)
    attach(model, pieces)
    expected = spellings([*BERT, "the", "cat", "sat"])
    path = str(tmp_path / "checkpoint")
    checkpoint.save_weights(
        path,
        model=tiny_config("elmo", vocab_size=8),
        state=model.state_dict(),
        tokenizer=tokenizer.load(pieces),
        heads={"bilm": {}},
    )
    checkpoint.finalize(path)
    assert checkpoint.load(path).state["encoder.embeddings.spelling"].equal(expected)
    # with more words: their characters are all that the encoder needs
    network, missing = build_network(initial_model(None, path, dataset_info(longer), longer))
    attach(network, longer)
    assert not missing
    assert network.encoder.embeddings.spelling.equal(
        spellings([*BERT, "the", "cat", "sat", "zebra"])
    )
    assert network.bilm.weight[:8].equal(model.bilm.weight)


def test_packed_rows_are_refused(tmp_path: Path) -> None:
    info = dataset_info(word_tokenizer(tmp_path, ["cat"]), recipe="packed", packed=True)
    with pytest.raises(UsageError, match="elmo models cannot read packed rows"):
        check_fits(tiny_config("elmo"), info)
