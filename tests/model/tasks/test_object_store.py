"""A fine-tuning whose artifact lies in an object store."""

from __future__ import annotations

from pathlib import Path

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.model import checkpoint
from tests.model.tasks.stages import finetune, settings
from tests.object_store import Store


def test_it_is_the_fine_tuning_of_a_disk(
    store: Store, sentiment: Path, pretrained: str, tmp_path: Path
) -> None:
    out = store.path("tuned")
    config = settings(sentiment, epochs=1, baselines=False)
    finetune(config, pretrained, out, execution={"checkpoint_every": 3})
    finetune(config, pretrained, tmp_path / "tuned")
    assert artifact.verify(out).ok
    ours, theirs = (checkpoint.load(path).state for path in (out, str(tmp_path / "tuned")))
    assert ours.keys() == theirs.keys()
    assert all(tensor.equal(theirs[name]) for name, tensor in ours.items())
    assert not [name for name in storage.list_files(out) if name.startswith(("checkpoints/", "_"))]


def test_a_frozen_encoder_needs_no_disk(store: Store, sentiment: Path, pretrained: str) -> None:
    out, small = store.path("tuned"), {"lstm_size": 8, "lstm_layers": 1}
    config = settings(sentiment, epochs=1, baselines=False, frozen="last", **small)
    assert finetune(config, pretrained, out).manifest.summary["steps"] == 15
    assert artifact.verify(out).ok
