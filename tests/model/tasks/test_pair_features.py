"""Features of a pair: what a classifier reads of both texts, from training to use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from cloze.core.errors import DataError, UsageError
from cloze.labs.serving.classify import TextClassificationPipeline
from cloze.model import checkpoint
from cloze.model.families.models import new_backbone
from cloze.model.hub.write import write_directory
from cloze.model.tasks.encode import TextSamples
from cloze.model.tasks.heads import SequenceClassifier, pair_features
from tests.model.tasks.stages import evaluate, finetune, settings
from tests.tiny_models import tiny_config

PAIRS = {"options": {"pair_features": True}, "baselines": False, "epochs": 1}


def rows(*lengths: Sequence[int]) -> TextSamples:
    """Pairs of texts of these lengths, frames included."""
    sequences = tuple(np.arange(5, 5 + first + second, dtype=np.int32) for first, second in lengths)
    return TextSamples(
        sequences=sequences, second=np.array([first for first, _ in lengths]), truncated=0, pad=0
    )


def test_they_are_the_means_of_both_texts_their_distance_and_their_product() -> None:
    hidden = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]]).bool()
    second = torch.tensor([[0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1]]).bool()
    hidden[0, 5] = torch.nan  # what stands at padding
    for row, (u, v) in enumerate(((hidden[0, :2], hidden[0, 2:5]), (hidden[1, :5], hidden[1, 5:]))):
        left, right = u.mean(dim=0), v.mean(dim=0)
        expected = torch.cat([left, right, (left - right).abs(), left * right])
        torch.testing.assert_close(pair_features(hidden, mask, second)[row], expected)


@pytest.mark.parametrize("family", ["bert", "modern"])
def test_padding_and_the_layout_change_nothing(family: str) -> None:
    config = tiny_config(family)
    torch.manual_seed(1)
    backbone = new_backbone(config)
    network = SequenceClassifier(
        backbone.encoder, backbone.pooler, config.hidden_size, 3, 0.0, "head", pairs=True
    ).eval()
    assert not any(name.startswith("pooler.") for name, _ in network.named_parameters())
    samples = rows((5, 4), (2, 9), (3, 3))

    together = network(samples.batch([0, 1, 2]))
    torch.testing.assert_close(
        network(samples.batch([0, 1, 2], "unpadded")), together, atol=1e-5, rtol=1e-4
    )
    for number in range(3):
        torch.testing.assert_close(
            network(samples.batch([number]))[0], together[number], atol=1e-5, rtol=1e-4
        )


def test_such_a_checkpoint_is_scored_used_and_not_exported(
    pretrained: str, likeness: Path, tmp_path: Path
) -> None:
    tuned = finetune(
        settings(likeness, task="stsb", **PAIRS), pretrained, tmp_path / "tuned"
    ).as_json()
    assert evaluate(tmp_path / "tuned", tmp_path / "dev", data=str(likeness)).as_json()[
        "metrics"
    ] == pytest.approx(tuned["metrics"])
    loaded = checkpoint.load(str(tmp_path / "tuned"))
    assert loaded.heads == {"pair_classifier": {"num_labels": 1}}
    assert loaded.state["pair_classifier.weight"].shape == (1, 4 * loaded.model.hidden_size)
    assert (
        len(TextClassificationPipeline(str(tmp_path / "tuned")).score(["good film"], ["bad film"]))
        == 1
    )
    with pytest.raises(
        DataError, match=r"heads \(pair_classifier\) of a .* model have no Hugging Face class"
    ):
        write_directory(loaded, str(tmp_path / "hf"))


def test_examples_of_one_text_have_none(pretrained: str, sentiment: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError,
        match=r"options.pair_features \(true\) needs pairs of texts, but the examples of .* are single texts",
    ):
        finetune(settings(sentiment, **PAIRS), pretrained, tmp_path / "tuned")
