"""Fine-tuning in real processes: killed, it goes on to the same weights; over two ranks, it is the same training."""

from __future__ import annotations

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from model import checkpoint
from model.tasks.finetune.config import FinetuneConfig
from pipeline.core.execution import Execution
from pipeline.core.worker import Job
from tests.model.datasets import lines
from tests.model.train.ranks import worker


def job(sentiment: Path, pretrained: str, out: Path, **execution: Any) -> Job:
    config = FinetuneConfig(
        data=str(sentiment),
        epochs=4,
        batch_size=14,  # 240 examples: the last batch of an epoch has 2
        learning_rate=3e-3,
        max_length=32,
        precision="fp32",
        dropout=0.0,  # before the classifier
        baselines=False,
    )
    out.mkdir(parents=True, exist_ok=True)
    return Job(
        stage="finetune",
        reference="model.tasks.finetune.stage:STAGE",
        config=config.model_dump(mode="json"),
        path=str(out),
        inputs={"pretrain": pretrained},
        execution=Execution(threads=1, device="cpu", checkpoint_every=4, **execution).model_dump(mode="json"),
        fingerprint="f" * 64,
    )


def run(item: Job, world: int = 1) -> dict[str, torch.Tensor]:
    processes, log = worker(item, world)
    assert [process.wait(timeout=240) for process in processes] == [0] * world, log.read_text()[-3000:]
    return checkpoint.load(str(Path(item.path) / "checkpoint")).state


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_it_goes_on_to_the_same_weights(sentiment: Path, pretrained: str, tmp_path: Path) -> None:
    straight = run(job(sentiment, pretrained, tmp_path / "straight"))
    killed = job(sentiment, pretrained, tmp_path / "killed")
    (process,), log = worker(killed)
    deadline = time.monotonic() + 240
    while len(list((tmp_path / "killed").glob("checkpoints/step-*"))) < 2 and time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL
    resumed = run(killed)
    assert "going on from checkpoints/step-" in log.read_text()
    assert all(tensor.equal(resumed[name]) for name, tensor in straight.items())
    assert [line["step"] for line in lines(tmp_path / "killed" / "metrics.jsonl")] == list(range(1, 73))
    assert not (tmp_path / "killed" / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_over_two_ranks_it_is_the_same_training(sentiment: Path, pretrained: str, tmp_path: Path) -> None:
    """Each rank takes half a batch. Without dropout, which follows the micro-batch, every loss is the same to rounding."""
    still = tmp_path / "pretrained"
    shutil.copytree(pretrained, still)
    content = json.loads((still / "config.json").read_text())
    content["model"] |= {"hidden_dropout": 0.0, "attention_dropout": 0.0}
    (still / "config.json").write_text(json.dumps(content))
    checkpoint.complete(str(still))
    run(job(sentiment, str(still), tmp_path / "alone"))
    run(job(sentiment, str(still), tmp_path / "spread"), 2)
    ours, theirs = ([line["loss"] for line in lines(tmp_path / name / "metrics.jsonl")] for name in ("spread", "alone"))
    assert ours[:20] == pytest.approx(theirs[:20], abs=1e-4)
    assert ours == pytest.approx(theirs, abs=2e-2)  # rounding grows with the steps
    assert theirs[-1] < 0.3
