"""Each optimizer stopped and resumed: on the same ranks to the byte, on others to rounding, and
past a gradient that is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.model.tensors import LazyTensors
from cloze.model.train.config import PretrainConfig
from cloze.model.train.evaluate import scoring
from cloze.model.train.optimizers import OPTIMIZERS
from tests.model.datasets import lines, write_dataset
from tests.model.train.ranks import STAGES, config, digests, here, job, run_all
from tests.slices import few

STEPS, STOP = 5, 3
NAMES = sorted(OPTIMIZERS.keys() - {"adamw"})  # of which engines/test_ranks.py tells


def _config(optimizer: str, **values: Any) -> PretrainConfig:
    return config(
        steps=STEPS,
        optimizer=optimizer,
        log_every=STOP,
        evaluate_every=STEPS,
        learning_rate=1e-2,
        **values,
    )


@dataclass(frozen=True)
class Runs:
    """Where an optimizer's runs are."""

    root: Path

    def checkpoint(self, name: str) -> Path:
        return max((self.root / name / "checkpoints").glob("step-*"))


@pytest.fixture(
    scope="module",
    params=few(NAMES, "muon"),
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Straight on one and on two ranks, stopped and resumed on two, and from each to the other."""
    root = tmp_path_factory.mktemp("runs")
    dataset = write_dataset(
        root / "dataset", vocab_size=67
    )  # odd sizes, so that ZeRO has to pad its partitions
    settings = _config(request.param)
    here(settings, dataset, root / "one", micro_batch=2)
    here(settings, dataset, root / "one-then-two", micro_batch=2, stop_at=STOP)
    # at ZeRO 3 last: DeepSpeed leaves a linear layer behind that adds up bias gradients otherwise
    order = [
        ("two", None),
        ("halves", STOP),
        ("two-then-one", STOP),
        ("halves", None),
        ("fsdp-then-zero", STOP),
        ("fsdp-then-zero", None),
        ("one-then-two", None),
    ]
    stages = ["zero2", "zero2", "zero2", "zero2", "fsdp3", "zero2", "zero3"]
    jobs = [
        job(settings, dataset, root / name, micro_batch=2, **STAGES[at])
        for (name, _), at in zip(order, stages, strict=True)
    ]
    run_all(jobs, 2, [stop for _, stop in order])
    here(settings, dataset, root / "two-then-one", micro_batch=2)
    return Runs(root)


def test_resuming_on_the_same_ranks_changes_no_byte(runs: Runs) -> None:
    straight, halves = (digests(runs.checkpoint(name)) for name in ("two", "halves"))
    assert straight == halves


@pytest.mark.parametrize("name", ["two", "two-then-one", "one-then-two", "fsdp-then-zero"])
def test_it_is_the_same_training_on_other_ranks(runs: Runs, name: str) -> None:
    for place, file, far in (
        (".", "model.safetensors", 2e-5),
        ("training", "optimizer.safetensors", 1e-5),
    ):
        found, expected = (
            LazyTensors.open(str(runs.checkpoint(run) / place), file) for run in (name, "one")
        )
        assert found.keys() == expected.keys()
        for key, tensor in expected.items():
            torch.testing.assert_close(
                found[key], tensor, rtol=1e-3, atol=far, msg=lambda text, key=key: f"{key}: {text}"
            )
    ours, theirs = (lines(runs.root / run / "metrics.jsonl") for run in (name, "one"))
    assert [line["loss"] for line in ours] == pytest.approx(
        [line["loss"] for line in theirs], abs=1e-4
    )


@pytest.mark.parametrize("optimizer", NAMES)
def test_a_skipped_step_leaves_no_trace(
    optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps of which the second has no finite gradient end with the weights and the optimizer's
    state of the first alone.
    """
    dataset = write_dataset(tmp_path / "dataset")
    constant = {"schedule": "constant", "warmup_steps": 0}
    first = here(
        _config(optimizer, **constant).model_copy(update={"steps": 1}), dataset, tmp_path / "first"
    )
    plain, calls = scoring.PretrainModule._loss, list[int]()

    def broken(self: Any, batch: Any, counts: Any) -> Any:
        loss, *figures = plain(self, batch, counts)
        calls.extend([1] if self.training else [])
        return loss * (torch.nan if len(calls) > 1 else 1.0), *figures

    monkeypatch.setattr(scoring.PretrainModule, "_loss", broken)
    second = here(
        _config(optimizer, **constant).model_copy(update={"steps": 2}), dataset, tmp_path / "second"
    )
    assert second.build.counters["steps/skipped"] == 1
    for name in ("model.safetensors", "training/optimizer.safetensors"):
        assert digests(second.checkpoint)[name] == digests(first.checkpoint)[name]
