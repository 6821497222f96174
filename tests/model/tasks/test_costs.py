"""What a fine-tuning and an evaluation are expected to cost, and what one that is made did cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cloze.core.stages.cost import CostEstimate, MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.model import hardware
from cloze.model.tasks.evaluate import run as evaluation
from cloze.model.tasks.evaluate.config import EvaluateConfig
from cloze.model.tasks.evaluate.stage import EVALUATE_COSTS
from cloze.model.tasks.finetune.config import FinetuneConfig
from cloze.model.tasks.finetune.stage import FINETUNE_COSTS
from tests.tiny_models import tiny_config

WEIGHTS, TRAIN, DEV = 50_000_000, 4000, 800  # bytes of the splits
OPERATIONS = 6 * WEIGHTS + 1.2e7  # a token
SOURCE = {"parameters": WEIGHTS, "model": tiny_config().model_dump()}
TEACHER = {"parameters": 90_000_000, "model": tiny_config().model_dump()}
MACHINE = MachineSpec(cpus=2)


@pytest.fixture
def data(tmp_path: Path) -> str:
    for name, size in (("train", TRAIN), ("dev", DEV)):
        (tmp_path / f"{name}.tsv").write_bytes(b"x" * size)
    return str(tmp_path)


def tuning(
    data: str | None,
    before: Any = None,
    teacher: bool = False,
    execution: Any = None,
    **values: Any,
) -> CostEstimate:
    config = FinetuneConfig.model_validate({"task": "sst2", "data": data, **values})
    inputs: dict[str, Any] = {"checkpoint": SOURCE, **({"teacher": TEACHER} if teacher else {})}
    how = Execution(device="cpu", **(execution or {}))
    return FINETUNE_COSTS.estimate(PlannedBuild(config, inputs, how, MACHINE, before))


def test_a_fine_tuning_passes_over_the_training_data_for_itself_and_its_baseline(data: str) -> None:
    found = tuning(data, epochs=3)
    assert found.work == pytest.approx(OPERATIONS * TRAIN / 4 * 3 * 2)
    assert tuning(data, epochs=1).work == pytest.approx(found.work / 3)
    assert tuning(data, epochs=3, baselines=False).work == pytest.approx(found.work / 2)
    assert tuning(data, epochs=3, auxiliary={"mlm": 0.5}).work == pytest.approx(2 * found.work)
    assert found.expected_metadata == {
        "parameters": WEIGHTS,
        "model": SOURCE["model"],
        "tokens": TRAIN / 4,
    }
    assert (found.kind, found.size, found.parallelism) == ("cpu", WEIGHTS, 1)
    taught = tuning(data, epochs=3, baselines=False, teacher=True)
    assert taught.size == WEIGHTS + 30_000_000, "a teacher's forward pass is a third of a step"


def test_its_checkpoints_are_kept_and_one_is_written(data: str) -> None:
    for kept in (1, 4):
        found = tuning(data, execution={"keep_checkpoints": kept})
        assert found.disk_bytes == 12 * WEIGHTS * (kept + 1)


def test_its_memory_grows_with_processes_lengths_and_batches(data: str) -> None:
    one, two = (tuning(data, execution={"processes": count}).memory_bytes for count in (1, 2))
    assert one > 440e6
    assert two > 1.9 * one
    short, long = (
        tuning(data, max_length=length, global_batch=64).memory_bytes for length in (8, 16)
    )
    assert short < long
    small, large = (tuning(data, max_length=16, global_batch=rows).memory_bytes for rows in (1, 64))
    assert small < large


def test_the_tokens_of_the_last_time_are_exact_and_those_of_other_settings_are_not(
    data: str,
) -> None:
    config = {"data": data, "limit_per_class": None}
    last = {"tokens": 123, "config": config}
    once: dict[str, Any] = {"epochs": 1, "baselines": False}
    assert tuning(data, last, **once).work == pytest.approx(OPERATIONS * 123)
    for other in ({"data": "elsewhere"}, {"limit_per_class": 5}):
        before = {"tokens": 123, "config": {**config, **other}}
        assert tuning(data, before, **once).work == pytest.approx(OPERATIONS * TRAIN / 4)
    few = tuning(data, limit_per_class=5, **once).work
    assert few == pytest.approx(OPERATIONS * 5 * 2 * 40), "two classes, 40 tokens an example"
    assert tuning(data, limit_per_class=500, **once).work == pytest.approx(OPERATIONS * TRAIN / 4)
    assert tuning(None, **once).work == pytest.approx(OPERATIONS * 60_000)


@pytest.mark.parametrize(
    "more", [{}, {"baselines": False}, {"auxiliary": {"mlm": 0.5}}, {"epochs": 5}]
)
def test_what_was_done_is_what_was_expected(data: str, more: dict[str, Any]) -> None:
    expected = tuning(data, **more)
    config = FinetuneConfig.model_validate({"task": "sst2", "data": data, **more})
    facts = {
        "config": config.model_dump(),
        "files_bytes": 4 * WEIGHTS,
        "tokens": TRAIN / 4,
        "seconds": 110.0,
        "execution": {"device": "cpu"},
    }
    found = FINETUNE_COSTS.measure(facts)
    assert found is not None
    assert found.amount == pytest.approx(expected.work)
    assert (found.seconds, found.width) == (100.0, 1)
    assert (found.kind, found.size) == ("cpu", WEIGHTS)
    early = FINETUNE_COSTS.measure({**facts, "epochs": config.epochs / 2})
    assert early is not None
    assert early.amount == pytest.approx(expected.work / 2), "it stopped early"


def test_an_evaluation_is_a_forward_pass_of_each_member(data: str) -> None:
    config = EvaluateConfig(task="sst2", data=data)
    inputs: dict[str, Any] = {"checkpoint/a": SOURCE, "checkpoint/b": TEACHER, "corpus": TEACHER}
    found = EVALUATE_COSTS.estimate(PlannedBuild(config, inputs, Execution(device="cpu"), MACHINE))
    both = WEIGHTS + 90_000_000
    assert found.work == pytest.approx((6 * both + 1.2e7) * DEV / 4 / 3)
    assert (found.size, found.disk_bytes) == (both, 1 << 20)
    assert found.memory_bytes == 440_000_000 + 4 * both
    again = {"tokens": 77, "config": config.model_dump()}
    found = EVALUATE_COSTS.estimate(
        PlannedBuild(config, inputs, Execution(device="cpu"), MACHINE, again)
    )
    assert found.work == pytest.approx((6 * both + 1.2e7) * 77 / 3)
    facts = {"tokens": 77, "parameters": both, "seconds": 12.0, "execution": {}}
    measured = EVALUATE_COSTS.measure(facts)
    assert measured is not None
    assert measured.amount == pytest.approx(found.work)
    assert measured.seconds == 2.0
    for absent in ("tokens", "parameters"):
        assert EVALUATE_COSTS.measure({**facts, absent: None}) is None


def test_an_inference_s_cost_is_told_with_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "peak_memory", lambda: 5 << 20)
    monkeypatch.setattr(hardware, "cpu_info", lambda: {"model name": "A CPU"})
    cpu = torch.device("cpu")
    latencies = [number / 1e3 for number in range(1, 102)]
    rest = {
        "memory_bytes": 5 << 20,
        "device": "cpu",
        "device_name": "A CPU",
        "threads": torch.get_num_threads(),
    }
    assert evaluation.inference_cost(latencies, 12.3456, cpu) == {
        "latency_ms": 51.0,
        "latency_p99_ms": 100.0,
        "latency_sequences": 101,
        "examples_per_second": 12.3,
        **rest,
    }
    third = evaluation.inference_cost([1 / 3e3], 0.0, cpu)
    assert (third["latency_ms"], third["latency_p99_ms"]) == (0.333, 0.333)
    assert evaluation.inference_cost([], 12.0, cpu) == {
        "latency_ms": None,
        "latency_p99_ms": None,
        "latency_sequences": 0,
        "examples_per_second": 12.0,
        **rest,
    }
