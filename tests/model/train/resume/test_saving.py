"""Checkpoints that are written while training goes on, by all ranks, and read by any number of
others.
"""

from __future__ import annotations

import resource
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.artifacts import checkpoint_files, checkpoints
from cloze.model import checkpoint
from cloze.model.tensors import LazyTensors, write_tensors
from cloze.model.train.resume import saving
from tests import warm
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, STILL, config, digests, here, job, run_all, worker

PATIENCE = 240.0  # seconds


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset", vocab_size=67)


def wait_for(found: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not found():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.01)


def test_steps_go_on_while_a_checkpoint_is_written_and_leave_no_trace_in_it(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 is written only once step 4 is done, and is what a training that ends there writes."""
    settings, run = config(steps=6, log_every=1, milestones=(2,)), tmp_path / "run"
    metrics = run / "metrics.jsonl"

    def late(path: str, *rest: Any) -> tuple[str, int]:
        if "step-00000002" in path:
            wait_for(lambda: len(metrics.read_text().splitlines()) >= 4, "step 4")
        return write_tensors(path, *rest)

    monkeypatch.setattr(saving, "write_tensors", late)
    outcome = here(settings, dataset, run, checkpoint_every=2, keep_checkpoints=9).outcome
    assert outcome is not None
    assert outcome.summary["checkpoints_written"] == 3
    assert outcome.summary["checkpoint_seconds"] > 0
    monkeypatch.undo()
    here(settings, dataset, tmp_path / "stopped", stop_at=2)
    at = "checkpoints/step-00000002"
    assert digests(run / at) == digests(tmp_path / "stopped" / at)


def test_a_rank_that_cannot_write_its_part_ends_all_with_its_sentence(
    dataset: str, tmp_path: Path
) -> None:
    """Its files may not grow beyond a size that is less than its part: like a full disk, on that
    rank alone.
    """
    endless, run = (
        config(steps=1_000_000, evaluate_every=1_000_000, log_every=1_000_000),
        tmp_path / "run",
    )
    processes, log = worker(
        job(
            endless, dataset, run, threads=1, device="cpu", checkpoint_every=20, keep_checkpoints=9
        ),
        2,
    )
    try:
        wait_for(
            lambda: checkpoints.complete_steps(str(run)) or any(one.poll() for one in processes),
            "the first checkpoint",
        )
        size = max(
            path.stat().st_size
            for path in run.glob("checkpoints/*/training/*-of-00002.safetensors")
        )
        resource.prlimit(warm.real(processes[1].pid), resource.RLIMIT_FSIZE, (size - 1, size - 1))
        assert [process.wait(timeout=PATIENCE) for process in processes] == [1, 1], log.read_text()[
            -3000:
        ]
    finally:
        for process in processes:
            warm.kill(process)
    assert (
        "could not be written by rank 1 (File too large); older ones are intact" in log.read_text()
    )
    left = checkpoints.complete_steps(str(run))
    assert left == sorted(map(str, (run / checkpoints.STEPS).glob("step-*"))) != []
    for directory in left:
        checkpoint_files.verify(directory)


def whole(directory: Path) -> dict[str, torch.Tensor]:
    """Weights and optimizer state of a checkpoint, whoever wrote it."""
    return {
        **checkpoint.weights(str(directory)),
        **LazyTensors.open(str(directory / "training"), "optimizer.safetensors"),
    }


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("stage", ["zero1", "zero3", "fsdp3"])
def test_eight_ranks_write_and_one_and_three_read(stage: str, dataset: str, tmp_path: Path) -> None:
    """The training goes on as if one process had run all of it."""
    settings = config(steps=6, log_every=1, evaluate_every=6, model=STILL)
    written, at = (
        tmp_path / "eight",
        "checkpoints/step-00000004",
    )  # several ranks stop one step after they are asked to
    run_all([job(settings, dataset, written, micro_batch=1, **STAGES[stage])], 8, [3])
    assert len(list((written / at).glob("model-*-of-00008.safetensors"))) == 8
    expected = whole(written / at).keys()
    here(settings, dataset, tmp_path / "straight", micro_batch=8)
    straight = whole(tmp_path / "straight" / "checkpoints" / "step-00000006")
    for ranks in (1, 3):
        read = tmp_path / f"read-by-{ranks}"
        (read / at).parent.mkdir(parents=True)
        for name in ("metrics.jsonl", at):
            _copy(written / name, read / name)
        if ranks == 1:
            here(settings, dataset, read, micro_batch=8, keep_checkpoints=9)
        else:
            run_all(
                [
                    job(
                        settings,
                        dataset,
                        read,
                        micro_batch=1,
                        keep_checkpoints=9,
                        **STAGES[stage],
                    )
                ],
                ranks,
            )
        found = whole(read / "checkpoints" / "step-00000006")
        assert found.keys() == straight.keys() == expected
        for name, tensor in straight.items():
            torch.testing.assert_close(
                found[name],
                tensor,
                rtol=1e-3,
                atol=1e-6,
                msg=lambda text, name=name: f"{name}: {text}",
            )
        losses = [
            [line["loss"] for line in lines(place / "metrics.jsonl")]
            for place in (read, tmp_path / "straight")
        ]
        assert losses[0] == pytest.approx(losses[1], abs=2e-6)  # lines have six digits


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
