"""The cost of a training: counted over all its sessions, and missing where a counter is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cloze.core.artifacts import artifact
from cloze.model import checkpoint
from cloze.model.data.batch import TokenCounts
from cloze.model.train.distributed import World
from cloze.model.train.monitor import cost
from cloze.model.train.monitor.cost import CostMeter, cost_metrics
from cloze.model.train.plan.estimates import MASK_SHARE, flops_per_token
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, here

OWN = TokenCounts(tokens=10, positions=12, attended=40)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, which the test sets."""
    clock = [0.0]
    monkeypatch.setattr(cost.time, "monotonic", lambda: clock[0])
    return clock


def test_sessions_are_added_and_unknown_parts_make_unknown_sums(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    world = World(0, 1, torch.device("cpu"))

    def session(earlier: dict[str, float | None] | None) -> dict[str, float | None]:
        began = now[0]
        meter = CostMeter(world, lambda attended: 100 * attended, [0.5, 2.0], earlier)
        meter.add(30, [20, 10], OWN)
        now[0] = began + 1200.0
        return meter.totals()

    first = session({})
    assert first == {
        "flops": 30 * 400.0,
        "words": 30.0,
        "gpu_seconds": 0.0,
        "cpu_seconds": 3600.0,
    }
    second = session(first)
    assert cost_metrics(second) == {
        "training_flops": 24_000.0,
        "words_seen": 60.0,
        "cpu_hours": 2.0,
    }
    assert cost_metrics(session({**second, "words": None})) == {
        "training_flops": 36_000.0,
        "cpu_hours": 3.0,
    }
    assert cost_metrics(session(None)) == {}


def test_a_stopped_training_costs_what_one_without_a_stop_does(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    manifest = artifact.read_manifest(dataset)
    summary = {**manifest.summary, "words_per_token": 0.75}
    artifact.write_manifest(dataset, replace(manifest, summary=summary))
    settings = config(steps=6, global_batch=10)
    straight = here(settings, dataset, tmp_path / "straight", micro_batch=4)
    here(settings, dataset, tmp_path / "halves", stop_at=4, micro_batch=4)
    halves = here(settings, dataset, tmp_path / "halves", micro_batch=4)
    assert straight.outcome is not None
    assert halves.outcome is not None
    one, other = straight.outcome.summary, halves.outcome.summary
    for name in ("training_flops", "words_seen"):
        assert one[name] == pytest.approx(other[name], rel=1e-3)
    assert other["cpu_hours"] > 0
    lines = [json.loads(line) for line in (tmp_path / "halves" / "cost.jsonl").open()]
    assert [line["step"] for line in lines] == [4, 6]
    # MFU's operations per token, between those of the shortest and of the longest row
    model = checkpoint.load_metadata(str(straight.checkpoint)).model
    least, most = (one["tokens"] * flops_per_token(model, length) for length in (5, 32))
    assert least < one["training_flops"] < most
    assert one["words_seen"] == pytest.approx(0.75 * one["tokens"], rel=1e-3)


def test_rows_read_from_left_to_right_count_the_logits_of_every_position(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset", pair_task=None)
    flops = {}
    for objectives, share in ((("mlm",), 0.0), (("clm",), 1.0), (("clm", "mlm"), 0.5)):
        settings = config(steps=4, global_batch=10, objectives=objectives)
        run = here(settings, dataset, tmp_path / "-".join(objectives), micro_batch=5)
        assert run.outcome is not None
        flops[share] = run.outcome.summary["training_flops"] / run.outcome.summary["tokens"]
    model = checkpoint.load_metadata(str(run.checkpoint)).model
    for share in (0.5, 1.0):
        logits = 6 * (1 - MASK_SHARE) * share * model.vocab_size * model.word_width
        assert flops[share] - flops[0.0] == pytest.approx(logits, rel=1e-2)


def test_a_training_that_began_without_counting_has_no_total(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    settings = config(steps=4, global_batch=10)
    here(settings, dataset, tmp_path / "run", stop_at=2, micro_batch=4)
    (tmp_path / "run" / "cost.jsonl").unlink()
    resumed = here(settings, dataset, tmp_path / "run", micro_batch=4)
    assert resumed.outcome is not None
    assert not {"training_flops", "words_seen", "cpu_hours"} & resumed.outcome.summary.keys()
