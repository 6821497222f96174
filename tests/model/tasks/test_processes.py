"""Fine-tuning in real processes: `cloze finetune` killed between two checkpoints goes on, and two
ranks learn what one learns.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.artifacts import artifact, checkpoints
from cloze.core.stages.execute import execute
from cloze.core.stages.execution import Execution
from cloze.flows.graph.stages import executable
from cloze.model import checkpoint
from cloze.model.families.config import ModelConfig
from cloze.model.families.models import new_model
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests import warm
from tests.model.tasks.stages import settings
from tests.model.train.ranks import STANDS, kill_standing, stand_still_when, standing

STEPS, EVERY = 60, 20  # 4 epochs of 15 steps


def lines(out: Path) -> list[dict[str, Any]]:
    path = out / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def command(pretrained: str, data: Path, out: Path) -> list[str]:
    return [
        *(
            warm.python(),
            "-c",
            warm.ENTRY,
            "finetune",
            "--checkpoint",
            pretrained,
            "--data",
            str(data),
        ),
        *("--out", str(out), "--epochs", "4", "--global-batch", "16", "--learning-rate", "1e-3"),
        *("--device", "cpu", "--checkpoint-every", str(EVERY)),
        *("--set=max_length=32", "--set=precision=fp32", "--set=baselines=false"),
    ]


def past_a_checkpoint() -> None:
    """In a rank: it stands still a few steps after its first checkpoint."""
    killed = Path(os.environ[STANDS]).parent / "killed"
    stand_still_when(
        lambda: (
            len(lines(killed)) >= EVERY + 5
            and [*killed.glob(f"checkpoints/*/{checkpoints.COMPLETE}")]
        )
    )


@pytest.mark.timeout(600)
def test_killed_past_a_checkpoint_the_same_command_goes_on_to_the_same_bytes(
    pretrained: str, sentiment: Path, tmp_path: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    subprocess.run(command(pretrained, sentiment, straight), check=True)
    process = subprocess.Popen(
        command(pretrained, sentiment, killed),
        env={**os.environ, **standing(f"{__name__}:past_a_checkpoint", tmp_path)},
    )
    kill_standing([process], tmp_path)
    assert not artifact.is_artifact(str(killed))
    saved = checkpoint.load(str(killed))
    assert EVERY <= saved.step < len(lines(killed)) < STEPS  # some lines are written again
    assert saved.task is not None

    done = subprocess.run(
        command(pretrained, sentiment, killed), check=True, capture_output=True, text=True
    )
    assert (
        f"resuming from checkpoints/{checkpoints.step_name(saved.step)}"
        in (killed / "_logs" / "rank0.log").read_text()
    )
    assert done.returncode == 0
    one, other = (artifact.read_manifest(str(path)) for path in (straight, killed))
    assert other.content_sha256 == one.content_sha256
    assert [line["step"] for line in lines(killed)] == list(range(1, STEPS + 1))
    entries = [
        {k: v for k, v in line.items() if "loss" in k or "accuracy" in k} for line in lines(killed)
    ]
    assert entries == [
        {k: v for k, v in line.items() if "loss" in k or "accuracy" in k}
        for line in lines(straight)
    ]
    weights = [checkpoint.load(str(path)).state for path in (straight, killed)]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


@pytest.fixture
def still(tmp_path: Path, shape: ModelConfig, pieces: Tokenizer) -> str:
    """A checkpoint of a model without dropout, whose masks would depend on how a batch is cut."""
    config = shape.model_copy(update={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    pieces.save(str(tmp_path / "tokenizer"))
    torch.manual_seed(7)
    path = str(tmp_path / "still")
    checkpoint.save_weights(
        path,
        model=config,
        state=new_model(config).state_dict(),
        tokenizer=str(tmp_path / "tokenizer"),
        heads=config.heads,
    )
    checkpoint.finalize(path)
    return path


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("warm")
def test_two_ranks_learn_what_one_learns(still: str, sentiment: Path, tmp_path: Path) -> None:
    """The last batch of an epoch holds one sample, so that one rank gets a blank micro-batch;
    others are cut in three.
    """
    data = tmp_path / "data"
    data.mkdir()
    for split, count in (("train", 100), ("dev", 70)):
        rows = (sentiment / f"{split}.tsv").read_text().splitlines()[: 1 + count]
        (data / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    config = settings(data, epochs=2, global_batch=11, baselines=False)
    found = {}
    for name, ranks in (
        ("one", {"processes": 1}),
        ("two", {"processes": 2, "micro_batch": 2}),
    ):
        out = tmp_path / name
        how = Execution.model_validate({"device": "cpu", "threads": 1, **ranks})
        result = execute(
            executable("finetune"), config, {"checkpoint": still}, str(out), execution=how
        )
        found[name] = result.as_json(), checkpoint.load(str(out)), lines(out)
    (one, first, before), (two, second, after) = found["one"], found["two"]
    assert (one["world_size"], two["world_size"]) == (1, 2)
    assert one["steps"] == two["steps"] == 2 * 10
    assert [line["tokens"] for line in after] == [line["tokens"] for line in before]
    assert [line["loss"] for line in after] == pytest.approx(
        [line["loss"] for line in before], abs=2e-5
    )
    for name, tensor in first.state.items():
        torch.testing.assert_close(second.state[name], tensor, atol=2e-5, rtol=1e-4, msg=name)
    assert two["metrics"] == one["metrics"]
    assert (tmp_path / "two" / "predictions.tsv").read_text().count("\n") == 71
