"""Frozen features: which states are read, that the encoder never changes, and a checkpoint's whole
way.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.core.errors import StoppedError, UsageError
from cloze.model import checkpoint
from cloze.model.families.bert import BertConfig
from cloze.model.families.models import new_backbone
from cloze.model.families.registry import config_class
from cloze.model.tasks.heads import (
    FeatureBiLSTM,
    Frozen,
    FrozenNetwork,
    check_frozen,
    layers_read,
    new_network,
    task_network,
)
from cloze.model.tasks.table import load_task
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.model.tasks.columns import sentences, write_columns
from tests.model.tasks.stages import Listener, evaluate, finetune, settings
from tests.tiny_models import TRANSFORMERS, tiny_config, variants

CHOICES = ("embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all")
ALL_CHOICES = (*CHOICES, "sum-with-embeddings")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("names")
    for split, count, seed in (("train", 120, 1), ("dev", 30, 2)):
        write_columns(directory / f"{split}.txt", sentences(count, seed, 12))
    return directory


@pytest.fixture(scope="module")
def deep(pieces: Tokenizer) -> BertConfig:
    return BertConfig(
        vocab_size=pieces.vocab_size,
        hidden_size=16,
        num_hidden_layers=5,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )


def _frozen(choice: str, deep: BertConfig, names: Path, pieces: Tokenizer):
    task = load_task("tagging")
    train = task.read(str(names), "train", None)
    meaning = {
        **task.metadata(train),
        "frozen": {"layers": choice, "lstm_size": 6, "lstm_layers": 2},
    }
    torch.manual_seed(3)
    network = task_network(task, new_backbone(deep), deep, meaning, 0.1)
    assert isinstance(network, FrozenNetwork)
    return network, task.encode(task.align_labels(train, meaning), pieces, 32)


def test_the_six_choices_are_the_rows_of_the_paper():
    found = [layers_read(choice, 12) for choice in CHOICES]
    assert found == [[0], [11], [12], [9, 10, 11, 12], [9, 10, 11, 12], list(range(1, 13))]
    with pytest.raises(
        UsageError, match=r"frozen \(concat-last-four\) needs 4 layers, the encoder has 2"
    ):
        layers_read("concat-last-four", 2)


def test_the_sum_with_embeddings_is_that_of_elmo_and_has_no_least_depth():
    """Peters et al. 2018, equation 1: of all L + 1 layers, the first the words themselves."""
    assert layers_read("sum-with-embeddings", 12) == list(range(13))
    assert layers_read("sum-with-embeddings", 0) == [0]
    reader = FeatureBiLSTM(
        Frozen(layers="sum-with-embeddings", lstm_size=6, lstm_layers=1), 3, 16, 0.0
    )
    assert reader.weights is not None
    assert reader.weights.shape == (3,)


@pytest.mark.parametrize("choice", ALL_CHOICES)
def test_states_are_those_of_the_layers(choice, deep, names, pieces):
    network, samples = _frozen(choice, deep, names, pieces)
    batch = samples.batch(np.arange(4), "rows")
    states = network.eval().states(batch)
    encoder = network.encoder
    hidden = encoder.embeddings(batch["input_ids"], batch["token_type_ids"], None)
    expected = [hidden]
    from cloze.model.layers.encoder import rows_of

    layout = rows_of(batch["input_ids"], batch["attention_mask"])
    for layer in encoder.layers:
        hidden = layer(hidden, layout)
        expected.append(hidden)
    real = batch["attention_mask"]
    for k, number in enumerate(layers_read(choice, 5)):
        torch.testing.assert_close(states[:, :, k][real], expected[number][real])
    assert not states.requires_grad


def test_a_task_of_several_sequences_a_sample_is_refused(pieces, tmp_path):
    """Multiple choice has a sequence for each choice."""
    (tmp_path / "dev.tsv").write_text("context\ta\tb\tlabel\nthe film\tgood\tbad\t0\n")
    task = load_task("choice", {"endings": ["a", "b"]})
    examples = task.read(str(tmp_path), "dev", None)
    samples = task.encode(task.align_labels(examples, task.metadata(examples)), pieces, 16)
    with pytest.raises(UsageError, match="one sequence each; leave frozen out"):
        check_frozen(samples)


ENCODERS = [family for family in TRANSFORMERS if not config_class(family).is_encoder_decoder]


def test_an_encoder_decoder_s_states_are_not_frozen(pieces):
    task, config = load_task("tagging"), tiny_config("t5")
    meaning = {"frozen": {"layers": "last", "lstm_size": 4, "lstm_layers": 1}, "labels": ["O", "B"]}
    with pytest.raises(UsageError, match="this model has a decoder"):
        task_network(task, new_backbone(config), config, meaning, 0.0)


@pytest.mark.parametrize("family", ENCODERS)
def test_every_family_gives_a_state_a_layer_and_its_own_last(family, names, pieces):
    task = load_task("tagging")
    train = task.read(str(names), "train", None)
    meaning = {
        **task.metadata(train),
        "frozen": {"layers": "sum-all", "lstm_size": 4, "lstm_layers": 1},
    }
    for changes in variants(family):
        config = tiny_config(family, vocab_size=pieces.vocab_size, **changes)
        network = task_network(task, new_backbone(config), config, meaning, 0.0).eval()
        batch = task.encode(task.align_labels(train, meaning), pieces, 16).batch(
            np.arange(3), "rows"
        )
        states, real = network.states(batch), batch["attention_mask"]
        assert states.shape == (
            *batch["input_ids"].shape,
            len(network.encoder.layers),
            config.hidden_size,
        )
        with torch.no_grad():
            last = network.encoder(batch["input_ids"], real, batch["token_type_ids"])
            network(batch)
        torch.testing.assert_close(states[:, :, -1][real], last[real])
        kept = [states[:, :, k][real] for k in range(states.shape[2])]
        assert all(not torch.equal(a, b) for a, b in zip(kept, kept[1:], strict=False))


def test_padding_changes_no_feature():
    torch.manual_seed(1)
    reader = FeatureBiLSTM(
        Frozen(layers="sum-last-four", lstm_size=5, lstm_layers=2), 4, 8, 0.0
    ).eval()
    states = torch.randn(2, 6, 4, 8)
    mask = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    alone = reader(states[1:, :3], mask[1:, :3].sum(dim=1))
    torch.testing.assert_close(reader(states, mask.sum(dim=1))[1:, :3], alone)
    assert reader(states, mask.sum(dim=1))[1, 3:].abs().sum() == 0
    # equal weights at first: the mean of the layers
    mean = states.mean(dim=2, keepdim=True).expand(-1, -1, 4, -1)
    torch.testing.assert_close(
        reader(mean, mask.sum(dim=1)), reader(states, mask.sum(dim=1)), atol=1e-5, rtol=1e-4
    )


def test_the_encoder_takes_no_gradient_and_no_dropout(deep, names, pieces):
    network, samples = _frozen("last", deep, names, pieces)
    network.train()
    assert network.reader.training
    assert not network.encoder.training
    batch = samples.batch(np.arange(3), "rows")
    torch.testing.assert_close(network.states(batch), network.states(batch), atol=0.0, rtol=0.0)
    network(batch).sum().backward()
    assert all(parameter.grad is None for parameter in network.encoder.parameters())
    assert all(parameter.grad is not None for parameter in network.head.parameters())


def test_what_is_new_begins_alike_on_a_pretrained_and_on_a_random_encoder(deep, names):
    task = load_task("tagging")
    meaning = {
        **task.metadata(task.read(str(names), "train", None)),
        "frozen": {"layers": "last", "lstm_size": 6, "lstm_layers": 1},
    }
    torch.manual_seed(9)
    backbone = new_backbone(deep)
    state = {f"encoder.{name}": tensor for name, tensor in backbone.encoder.state_dict().items()}
    state |= {f"pooler.{name}": tensor for name, tensor in backbone.pooler.state_dict().items()}
    networks = [
        new_network(task, deep, weights, meaning, None, 4).state_dict() for weights in (state, None)
    ]
    assert networks[0].keys() == networks[1].keys()
    for name, tensor in networks[0].items():
        if not name.startswith("encoder."):
            assert torch.equal(tensor, networks[1][name]), name


TUNED = {
    "task": "tagging",
    "frozen": "last",
    "lstm_size": 24,
    "lstm_layers": 1,
    "learning_rate": 2e-2,
    "baselines": False,
}


def test_a_frozen_checkpoint_is_trained_and_evaluated(pretrained: str, names: Path, tmp_path: Path):
    out = tmp_path / "frozen"
    made = finetune(settings(names, epochs=8, **TUNED), pretrained, out)
    metrics = made.manifest.summary["metrics"]
    assert metrics["f1"] > 0.5  # 0 until it learns
    before, after = checkpoint.load(pretrained).state, checkpoint.load(str(out)).state
    for name in before:
        if name.startswith("encoder."):
            assert torch.equal(before[name], after[name]), name
    done = evaluate(out, tmp_path / "eval", data=str(names / "dev.txt"))
    assert done.manifest.summary["metrics"] == pytest.approx(metrics)


def test_a_frozen_training_that_is_stopped_goes_on_to_the_same_weights(
    pretrained: str, names: Path, tmp_path: Path
):
    config = settings(names, epochs=3, **TUNED)
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    finetune(config, pretrained, whole)
    with pytest.raises(StoppedError):
        finetune(config, pretrained, halves, report=Listener(stop_at=6))
    finetune(config, pretrained, halves)
    one, other = (checkpoint.load(str(path)).state for path in (whole, halves))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.soak
def test_sentences_are_classified_from_frozen_features(
    pretrained: str, sentiment: Path, tmp_path: Path
):
    out = tmp_path / "sst2"
    config = settings(
        sentiment,
        epochs=16,
        frozen="sum-all",
        lstm_size=16,
        lstm_layers=1,
        learning_rate=1e-2,
        baselines=False,
    )
    made = finetune(config, pretrained, out)
    assert made.manifest.summary["metrics"]["accuracy"] > 0.85
    done = evaluate(out, tmp_path / "eval", data=str(sentiment / "dev.tsv"))
    assert done.manifest.summary["metrics"] == pytest.approx(made.manifest.summary["metrics"])
