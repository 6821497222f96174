"""What a training and a pass of a model are expected to cost: each factor, and each way to end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.model import hardware
from cloze.model.train import setup
from cloze.model.train.config import PretrainConfig
from cloze.model.train.plan import cost
from cloze.model.train.plan.cost import pass_cost

DATA = {"vocab_size": 3000, "length": 128, "mean_length": 100.0}
COMPUTER = MachineSpec(cpus=2)
CPU_SPEED = hardware.of("cpu", COMPUTER).speed()


def pretraining(inputs: dict[str, Any] | None = None, **values: Any) -> Any:
    config = parse_config(PretrainConfig, {"model": "bert-tiny", **values}, "pretrain")
    given = {"dataset": DATA, **(inputs or {})}
    return cost.COSTS.estimate(PlannedBuild(config, given, Execution(), COMPUTER))


def test_each_end_gives_its_tokens_and_steps() -> None:
    by_steps = pretraining(steps=50, global_batch=8)
    assert by_steps.expected_metadata["tokens"] == 50 * 8 * 100
    assert by_steps.expected_metadata["steps"] == 50
    by_tokens = pretraining(tokens=80_000, global_batch=8)
    assert by_tokens.expected_metadata["tokens"] == 80_000
    assert by_tokens.expected_metadata["steps"] == 100
    assert by_tokens.work == 2 * by_steps.work
    by_time = pretraining(max_time="10m", global_batch=8)
    spent = by_time.work / by_time.speed + by_time.startup_seconds
    assert (spent, by_time.seconds) == (pytest.approx(600.0), 600.0)
    assert pretraining(max_time="1s").expected_metadata["tokens"] == 0  # the start takes longer
    assert (by_steps.speed, by_steps.parallelism, by_steps.seconds) == (CPU_SPEED, 1, None)


def test_a_teacher_costs_its_forward_passes() -> None:
    alone = pretraining(steps=50)
    for parameters, weights in ((10**6, 10**6), (None, alone.expected_metadata["parameters"])):
        taught = pretraining({"teacher": {"parameters": parameters}}, steps=50)
        more = (taught.work - alone.work) / alone.expected_metadata["tokens"]
        assert more == pytest.approx(6.0 * weights * cost.estimates.FORWARD)


def test_each_checkpoint_that_is_kept_takes_its_place() -> None:
    sizes = [
        pretraining(steps=50, milestones=steps).disk_bytes for steps in ((), (10,), (10, 20, 30))
    ]
    one = sizes[1] - sizes[0]
    assert sizes[2] - sizes[0] == 3 * one > 0
    config = parse_config(PretrainConfig, {}, "pretrain")
    assert sizes[0] == one * (Execution().keep_checkpoints + config.keep_for_merge)


def test_a_pass_costs_its_tokens_on_its_device() -> None:
    given: dict[str, Any] = {"tokens": 1000.0, "weights": 10**6}
    on_cpu = PlannedBuild(None, {}, Execution(device="cpu"), COMPUTER)
    whole = pass_cost(on_cpu, **given)
    assert whole.work == (6.0 * 10**6 + cost.OVERHEAD_OPERATIONS["cpu"]) * 1000
    assert pass_cost(on_cpu, forward=True, **given).work == whole.work * cost.estimates.FORWARD
    assert whole.speed == cost.HEADWAY * CPU_SPEED
    assert (whole.parallelism, whole.size, whole.gpu_memory_bytes) == (1, 1e6, 0)
    assert pass_cost(on_cpu, width=4, **given).parallelism == 1
    gpus = pass_cost(PlannedBuild(None, {}, Execution(), MachineSpec(gpus=4)), width=4, **given)
    assert (gpus.parallelism, gpus.gpu_memory_bytes) == (4, (1 << 30) + cost.WEIGHT_BYTES * 10**6)
    told = pass_cost(on_cpu, memory_bytes=0, gpu_memory_bytes=7, **given)
    assert (told.memory_bytes, told.gpu_memory_bytes) == (0, 7)
    assert pass_cost(on_cpu, **{**given, "weights": 0}).size == 1.0


@pytest.mark.parametrize(
    ("keys", "mixture", "fault"),
    [
        (["dataset"], {}, ""),
        (["dataset/a", "dataset/b", "checkpoint"], {}, ""),
        (["dataset/b", "dataset/a"], {"a": 1, "b": 2}, ""),
        (["dataset/a"], {"a": 1}, "and this training reads one"),
        (["dataset/a", "checkpoint/b"], {"a": 1, "b": 1}, "and this training reads one"),
        (["dataset/a", "dataset/b"], {"a": 1, "c": 1}, "mixture weighs 'c', which is no dataset"),
        (["dataset/c", "dataset/b", "dataset/a"], {"b": 1}, "no weight of 'a'; weigh all of a, b, c"),
    ],
)  # fmt: skip
def test_a_mixture_weighs_all_datasets_and_no_others(
    keys: list[str], mixture: dict[str, float], fault: str
) -> None:
    config = parse_config(PretrainConfig, {"mixture": mixture}, "pretrain")
    if not fault:
        config.check_inputs(keys)
        return
    with pytest.raises(UsageError) as error:
        config.check_inputs(keys)
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("shares", "found"),
    [([0.5], {40: 80.0, 100: 200.0}), ([None], None), ([0.5, 0.5], None), ([0.0], None)],
)
def test_milestones_in_words_need_one_dataset_that_knows_them(
    shares: list[float | None], found: dict[int, float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    summaries = [SimpleNamespace(summary={"words_per_token": share}) for share in shares]
    monkeypatch.setattr(artifact, "read_manifest", lambda path: summaries[int(path)])
    inputs = {f"dataset/{number}": str(number) for number in range(len(shares))}
    build: Any = SimpleNamespace(inputs=inputs)
    config = parse_config(PretrainConfig, {"milestone_words": [40, 100]}, "pretrain")
    if found is not None:
        assert setup._milestone_tokens(config, build) == found
    else:
        with pytest.raises(
            UsageError, match=r"milestone_words \(40\) needs one dataset that knows"
        ):
            setup._milestone_tokens(config, build)
    assert setup._milestone_tokens(parse_config(PretrainConfig, {}, "pretrain"), build) == {}
