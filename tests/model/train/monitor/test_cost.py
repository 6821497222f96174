"""The cost of a training: counted over all its sessions, and missing where a counter is."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloze.core.artifacts import artifact
from cloze.model import checkpoint
from cloze.model.data.batch import TokenCounts
from cloze.model.train.distributed import World
from cloze.model.train.monitor import cost
from cloze.model.train.monitor.cost import CostMeter, EnergyCounter, EnergyMeter, cost_metrics
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


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages as Linux shows them, with a domain inside and one of the whole machine."""
    zones = {"0": "package-0", "0:0": "dram", "1": "package-1", "2": "psys"}
    for number, name in zones.items():
        zone = tmp_path / f"intel-rapl:{number}"
        zone.mkdir()
        (zone / "name").write_text(f"{name}\n")
        (zone / "max_energy_range_uj").write_text("262143000000\n")
        (zone / "energy_uj").write_text("262142000000\n")
    return tmp_path


def test_energy_of_packages_is_added_and_counters_may_start_again(
    powercap: Path, now: list[float]
) -> None:
    meter = EnergyMeter(cost.cpu_counters(powercap))
    (powercap / "intel-rapl:0" / "energy_uj").write_text("4000000\n")  # 1 J to the end, then 4 J
    (powercap / "intel-rapl:1" / "energy_uj").write_text("262142500000\n")
    (powercap / "intel-rapl:0:0" / "energy_uj").write_text("7\n")
    now[0] = 60.0
    assert meter.joules() == pytest.approx(5.5)
    now[0] = 61.0
    assert meter.joules(at_most_every=5.0) == pytest.approx(5.5)
    now[0] = 400.0  # long enough for a counter to pass its end twice
    assert math.isnan(meter.joules())


def test_energy_is_unknown_without_counters_or_if_they_fail(
    powercap: Path, tmp_path: Path, now: list[float]
) -> None:
    assert cost.cpu_counters(tmp_path / "none") is None
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert cost.cpu_counters(powercap) is None
    assert cost.gpu_counters(torch.device("cuda", 0)) is None
    assert math.isnan(EnergyMeter(None).joules())
    readings = iter([1.0])
    meter = EnergyMeter([EnergyCounter(lambda: next(readings))])
    now[0] = 1.0
    assert math.isnan(meter.joules())
    assert math.isnan(meter.joules())


def test_sessions_are_added_and_unknown_parts_make_unknown_sums(
    monkeypatch: pytest.MonkeyPatch, now: list[float]
) -> None:
    joules = iter([0.0, 7.2e6, 0.0, 3.6e6])
    monkeypatch.setattr(cost, "cpu_counters", lambda: [EnergyCounter(lambda: next(joules))])
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
        "joules": 7.2e6,
    }
    second = session(first)
    assert cost_metrics(second) == {
        "training_flops": 24_000.0,
        "words_seen": 60.0,
        "cpu_hours": 2.0,
        "kwh": 3.0,
    }
    monkeypatch.setattr(cost, "cpu_counters", lambda: None)
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
    assert not {"training_flops", "words_seen", "cpu_hours", "kwh"} & resumed.outcome.summary.keys()


def test_a_gpus_counter_is_in_millijoules(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, said = torch.device("cuda", 1), list[Any]()
    nvml: Any = SimpleNamespace(
        nvmlInit=lambda: said.append("init"),
        nvmlDeviceGetHandleByUUID=lambda uuid: said.append(uuid) or "handle",
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: {"handle": 2500.0}[handle],
    )
    properties = {gpu: SimpleNamespace(uuid="u-1")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    (counter,) = cost.gpu_counters(gpu) or ()
    assert (counter.read(), counter.wrap) == (2.5, math.inf)
    assert said == ["init", "GPU-u-1"]
    nvml.nvmlDeviceGetTotalEnergyConsumption = lambda handle: 1 / 0
    assert cost.gpu_counters(gpu) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert cost.gpu_counters(gpu) is None


def test_counters_that_are_not_numbers_or_not_there_are_unknown(powercap: Path) -> None:
    counters = cost.cpu_counters(powercap)
    assert counters is not None
    assert [(one.read(), one.wrap) for one in counters] == [(262142.0, 262143.0)] * 2
    (powercap / "intel-rapl:1" / "energy_uj").write_text("none\n")
    assert cost.cpu_counters(powercap) is None
    (powercap / "intel-rapl:1" / "energy_uj").unlink()
    assert cost.cpu_counters(powercap) is None
    assert cost.cpu_counters(powercap / "nothing") is None
