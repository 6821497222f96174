"""Training only the rows that are looked up gives what training the whole table gives; and a training stopped in it goes on exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model import checkpoint
from model.layers.embeddings import Table
from model.tasks.finetune import looked_up
from model.tasks.finetune.looked_up import SHRUNK, LookedUp, only_looked_up, plain
from model.tasks.heads import new_network
from model.tasks.split import encoded
from model.tasks.table import load_task
from model.train import state
from pipeline import tokenizer
from pipeline.core.errors import Stopped
from tests.model.tasks.stages import Listener, finetune, settings
from tests.tiny_models import PIECES, WORDS, write_checkpoint

TABLE = "encoder.embeddings.word.weight"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("pretrained")
    return write_checkpoint(directory / "checkpoint", directory / "scratch")


@pytest.fixture(scope="module")
def few_words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentiment set of six words; dev has one that train lacks."""
    directory = tmp_path_factory.mktemp("few")
    for split, count in (("train", 64), ("dev", 8)):
        words = WORDS[:6] if split == "dev" else WORDS[:5]
        lines = [f"{words[i % len(words)]} {words[i // 3 % len(words)]}\t{i % 2}" for i in range(count)]
        (directory / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines, ""]), encoding="utf-8")
    return directory


def table_of(out: Path) -> torch.Tensor:
    state = checkpoint.load(str(out / "checkpoint")).state
    assert not any(name.endswith(SHRUNK) for name in state)
    return state[TABLE]


def test_as_training_the_whole_table(few_words: Path, pretrained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = settings(few_words, weight_decay=0.3, epochs=6, baselines=False)
    made: list[int] = []
    monkeypatch.setattr(LookedUp, "__init__", _counting(LookedUp.__init__, made))
    finetune(config, pretrained, tmp_path / "reduced")
    assert made == [9]  # six words, [PAD], [CLS], [SEP]
    monkeypatch.setattr(looked_up, "WORTH", 0.0)
    finetune(config, pretrained, tmp_path / "whole")
    assert len(made) == 1
    reduced, whole = table_of(tmp_path / "reduced"), table_of(tmp_path / "whole")
    assert reduced.shape == whole.shape == (len(PIECES), 16)
    torch.testing.assert_close(reduced, whole, atol=1e-6, rtol=1e-5)
    begun = checkpoint.load(pretrained).state[TABLE]
    unread = PIECES.index("z")
    assert 0 < (whole[unread] / begun[unread]).max() < 0.999  # it decays, or equality would be a matter of course


def _counting(build, made):  # type: ignore[no-untyped-def]
    def counted(self: LookedUp, table: Table, rows: np.ndarray) -> None:
        made.append(len(rows))
        build(self, table, rows)

    return counted


def test_going_on_is_exact(few_words: Path, pretrained: str, tmp_path: Path) -> None:
    config = settings(few_words, weight_decay=0.3, epochs=6, baselines=False)
    finetune(config, pretrained, tmp_path / "straight")
    with pytest.raises(Stopped):
        finetune(config, pretrained, tmp_path / "stopped", report=Listener(stop_at=9))
    finetune(config, pretrained, tmp_path / "stopped")
    assert torch.equal(table_of(tmp_path / "stopped"), table_of(tmp_path / "straight"))


def test_a_piece_that_was_not_announced_is_an_error() -> None:
    words = LookedUp(Table(10, 4), np.array([0, 3, 7]))
    assert words(torch.tensor([[7, 0]])).shape == (1, 2, 4)
    with pytest.raises(IndexError):
        words(torch.tensor([4]))


def test_an_optimizer_that_looks_at_norms_gets_the_whole_table(few_words: Path, pretrained: str, tmp_path: Path) -> None:
    config = settings(few_words, optimizer="lamb", learning_rate=1e-2, epochs=6, baselines=False)
    with pytest.raises(Stopped):
        finetune(config, pretrained, tmp_path / "stopped", report=Listener(stop_at=2))
    (newest,) = (tmp_path / "stopped" / "checkpoints").glob("step-*")
    resumed, start = state.read(str(newest)), checkpoint.load(pretrained).state
    assert list(plain(resumed.weights)) == list(resumed.weights)
    assert resumed.optimizer[f"{TABLE}/exp_avg"].shape == start[TABLE].shape
    moved = float((resumed.weights[TABLE] - start[TABLE]).norm() / start[TABLE].norm())
    assert 1e-4 < moved <= 1.01e-2 * resumed.progress.step  # a trust ratio's update is a share of the table


def test_its_state_is_the_whole_table() -> None:
    table = Table(10, 4)
    words = LookedUp(table, np.array([0, 3, 7]))
    with torch.no_grad():
        words.weight[1] = 5.0
        words.weight[-1] = 0.5
    state = torch.nn.ModuleDict({"word": words}).state_dict()
    expected = table.weight.detach() * 0.5
    expected[[0, 7]], expected[3] = table.weight.detach()[[0, 7]], 5.0
    assert torch.equal(state["word.weight"], expected)
    assert list(plain(state)) == ["word.weight"]
    again = torch.nn.ModuleDict({"word": LookedUp(table, np.array([0, 3, 7]))})
    again.load_state_dict(state)
    assert torch.equal(again["word"].weight, words.weight)


def test_another_engine_goes_on_with_the_whole_table(few_words: Path, pretrained: str, tmp_path: Path) -> None:
    config = settings(few_words, weight_decay=0.3, epochs=6, baselines=False)
    with pytest.raises(Stopped):
        finetune(config, pretrained, tmp_path / "stopped", report=Listener(stop_at=9))
    (newest,) = (tmp_path / "stopped" / "checkpoints").glob("step-*")
    resumed = state.read(str(newest))
    task, loaded = load_task("sst2"), checkpoint.load(pretrained)
    train, dev = (task.read(str(few_words), split, None) for split in ("train", "dev"))
    meaning = task.meaning(train)
    network = new_network(task, loaded.model, loaded.state, meaning, None, 1)
    samples = [encoded(task, examples, meaning, tokenizer.load(loaded.tokenizer), 32).samples for examples in (train, dev)]
    only_looked_up(network, samples, 0, resumed, whole=True)
    network.load_state_dict(resumed.weights)
    moments = resumed.optimizer[f"{TABLE}/exp_avg_sq"]
    assert moments.shape == network.get_parameter(TABLE).shape
    assert moments[PIECES.index("the")].min() > 0
    assert moments[PIECES.index("z")].max() == 0
