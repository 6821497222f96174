"""The mean of a training's last checkpoints: its weights, what reads it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cloze.core.artifacts import artifact
from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.core.stages.execute import BuildResult, execute
from cloze.core.stages.execution import Execution
from cloze.model import checkpoint
from cloze.model.train.stage import STAGE as PRETRAIN
from cloze.model.use.checkpoint_stages import mean
from cloze.model.use.configs import MergeConfig, PerplexityConfig
from cloze.model.use.stages import MERGE, PERPLEXITY
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config
from tests.tiny_models import write_checkpoint


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture(scope="module")
def trained(dataset: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps, of which every second one is kept."""
    out = tmp_path_factory.mktemp("trained") / "pretrain"
    settings = config(steps=8, milestones=(2, 4, 6, 8))
    execute(
        PRETRAIN,
        settings,
        {"dataset": dataset},
        str(out),
        execution=Execution(threads=1, device="cpu"),
    )
    return out


def merge(trained: Path, out: Path, **values: object) -> BuildResult:
    return execute(
        MERGE, parse_config(MergeConfig, values, "merge"), {"checkpoint": str(trained)}, str(out)
    )


def weights(trained: Path, step: int) -> dict[str, torch.Tensor]:
    return checkpoint.load(str(trained / "checkpoints" / f"step-{step:08d}")).state


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        ({}, {4: 1 / 3, 6: 1 / 3, 8: 1 / 3}),
        ({"last": 2}, {6: 0.5, 8: 0.5}),
        ({"steps": [2, 8]}, {2: 0.5, 8: 0.5}),
        ({"last": 3, "decay": 0.5}, {4: 1 / 7, 6: 2 / 7, 8: 4 / 7}),
    ],
)
def test_it_is_the_mean(
    trained: Path, tmp_path: Path, values: dict[str, object], counts: dict[int, float]
) -> None:
    result = merge(trained, tmp_path / "merged", **values)
    assert result.manifest.summary["merged"] == list(counts)
    found = checkpoint.load(str(tmp_path / "merged"))
    assert found.step == 8
    parts = {step: weights(trained, step) for step in counts}
    assert found.state.keys() == parts[8].keys()
    moved = 0.0
    for name, tensor in found.state.items():
        expected = sum(share * parts[step][name].double() for step, share in counts.items())
        torch.testing.assert_close(tensor, torch.as_tensor(expected).float(), rtol=0, atol=1e-7)
        moved += float((tensor - parts[8][name]).abs().sum())
    assert moved > 0
    assert artifact.verify(str(tmp_path / "merged")).ok


def test_integers_have_no_mean(tmp_path: Path) -> None:
    """ELMo's spellings of words are a table of bytes, by which its embeddings look up letters."""
    paths = [str(tmp_path / name) for name in "ab"]
    for path in paths:
        write_checkpoint(Path(path), Path(f"{path}-scratch"), family="elmo")
    merged, last = mean(paths, [0.5, 0.5]), checkpoint.load(paths[-1]).state
    integers = [name for name, tensor in last.items() if not tensor.is_floating_point()]
    assert integers
    for name in integers:
        assert merged[name].dtype == last[name].dtype
        assert merged[name].equal(last[name])


def test_files_are_closed_and_weights_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for seed, path in enumerate(paths):
        write_checkpoint(Path(path), Path(f"{path}-scratch"), seed=seed)
    states = [checkpoint.load(path).state for path in paths]
    opened = []
    original = checkpoint.weights
    monkeypatch.setattr(
        checkpoint, "weights", lambda path: opened.append(original(path)) or opened[-1]
    )
    merged = mean(paths, [0.5, 0.25, 0.25])
    assert [len(file) for file in opened] == [0, 0, 0]
    assert merged.keys() == states[0].keys()
    for name, tensor in merged.items():
        first, second, third = (state[name].double() for state in states)
        assert tensor.equal((0.5 * first + 0.25 * second + 0.25 * third).float())


def test_what_reads_a_checkpoint_reads_it(trained: Path, dataset: str, tmp_path: Path) -> None:
    merge(trained, tmp_path / "merged")
    inputs = {"checkpoint": str(tmp_path / "merged"), "dataset": dataset}
    scored = execute(
        PERPLEXITY, PerplexityConfig(rows=8, precision="fp32"), inputs, str(tmp_path / "scored")
    )
    assert 0 < scored.manifest.summary["metrics"]["heldout_loss"] < 10
    groups = json.loads(
        (tmp_path / "scored" / "losses.json").read_text()
    )  # by which two checkpoints are compared
    assert len(groups["losses"]) == len(groups["predictions"]) == 8
    mean = sum(groups["losses"]) / sum(groups["predictions"])
    assert mean == pytest.approx(scored.manifest.summary["metrics"]["heldout_loss"], abs=1e-5)
    again = execute(
        PRETRAIN,
        config(steps=2),
        {"dataset": dataset, "checkpoint": str(tmp_path / "merged")},
        str(tmp_path / "again"),
    )
    assert again.manifest.summary["steps"] == 2


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"last": 5},
            r"keeps checkpoints of 4 steps \(2, 4, 6, 8\), last asks for 5; lower it, or train "
            r"with keep_for_merge or milestones",
        ),
        ({"steps": [3, 4]}, r"keeps checkpoints of 4 steps \(2, 4, 6, 8\), none of 3"),
        ({"steps": [4, 4]}, "is one checkpoint, whose mean is itself"),
        ({"last": 2, "steps": [2, 4]}, "exclude each other"),
        ({"last": 1}, "merge.last"),
    ],
)
def test_what_cannot_be_merged_is_one_sentence(
    trained: Path, tmp_path: Path, values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        merge(trained, tmp_path / "merged", **values)


def test_a_damaged_one_is_named(trained: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "pretrain"
    shutil.copytree(trained, copy)
    with (copy / "checkpoints" / "step-00000006" / "model.safetensors").open("r+b") as stream:
        stream.seek(-4, 2)
        stream.write(b"\xff\xff\xff\x7f")
    with pytest.raises(DataError, match=r"step-00000006/model.safetensors has sha256"):
        merge(copy, tmp_path / "merged")
