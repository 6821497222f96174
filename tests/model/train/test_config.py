"""Config, schedules, precision, and how a batch is cut: no training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.core.config import parse_config
from cloze.core.errors import ClozeError, UsageError
from cloze.model.data.sampler import micro_batch_ranges
from cloze.model.families.bert import BertConfig
from cloze.model.families.registry import model_config
from cloze.model.train import precision
from cloze.model.train.config import PretrainConfig
from cloze.model.train.distributed import World
from cloze.model.train.evaluate.heldout import (
    EVALUATIONS,
    FEWEST_ROWS,
    FORWARD_COST,
    SHARE,
    EvaluationSchedule,
    HeldoutEvaluator,
    HeldoutSet,
)
from cloze.model.train.optimizers.parameters import parameter_groups
from cloze.model.train.plan import micro_batch
from cloze.model.train.plan.estimates import StepCost
from cloze.model.train.setup import hyperparameters, step_duration
from cloze.model.train.spec.schedules import BatchSizeSchedule, ScheduleProgress
from cloze.model.train.stage import STAGE

CPU = torch.device("cpu")


def _imported(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    return set(
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
    )


def test_importing_the_trainer_leaves_beam_and_deepspeed_out() -> None:
    found = _imported(
        "import cloze.model.train.pretraining, cloze.model.train.engines.torch, "
        "cloze.model.tasks.finetune"
    )
    assert "torch" in found
    assert not {"apache_beam", "prefect", "mlflow", "deepspeed"} & found


def test_the_command_line_loads_nothing_heavy() -> None:
    assert not {"torch", "deepspeed", "transformers", "safetensors", "tokenizers"} & _imported(
        "import cloze.model.train.stage"
    )


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"stepps": 3}, "unknown config key pretrain.stepps; did you mean 'steps'?"),
        ({"schedule": "cosin"}, "did you mean 'cosine'?"),
        ({"optimizer": "adam"}, "did you mean 'adamw'?"),
        ({"optimizer": "lambda"}, "did you mean 'lamb'?"),
        ({"model": "bert-tinny"}, "did you mean 'bert-tiny'?"),
        ({"model": {"hidden_siz": 3}}, "did you mean 'hidden_size'?"),
        ({"betas": [0.9, 1.0]}, "less than 1"),
        ({"steps": 5, "warmup_steps": 6}, "warm up for fewer steps"),
        ({"steps": 0}, "pretrain.steps"),
        ({"global_batch": 0}, "pretrain.global_batch"),
    ],
)
def test_a_fault_is_one_sentence_with_the_remedy(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(PretrainConfig, values, "pretrain")
    assert sentence in str(caught.value)


def test_a_config_survives_json() -> None:
    config = PretrainConfig.model_validate({"model": "bert-tiny", "steps": 10})
    assert PretrainConfig.model_validate(config.model_dump(mode="json")) == config
    assert config.model == model_config("bert-tiny")


def test_looking_more_often_is_the_same_artifact() -> None:
    config = PretrainConfig()
    for name, value in {"evaluate_every": 3, "log_every": 7, "max_skipped": 2}.items():
        assert STAGE.fingerprint(config.model_copy(update={name: value}), {}) == STAGE.fingerprint(
            config, {}
        )
    for name, value in {
        "seed": 3,
        "heldout_rows": 7,
        "grad_clip": 2.0,
        "precision": "fp32",
    }.items():
        assert STAGE.fingerprint(config.model_copy(update={name: value}), {}) != STAGE.fingerprint(
            config, {}
        )


BERTS = ("bert-tiny", "bert-mini", "bert-small", "bert-medium", "bert-base", "bert-large")


def test_learning_rates_fall_with_the_width() -> None:
    rates = {name: PretrainConfig(model=name).peak_learning_rate() for name in BERTS}  # type: ignore[arg-type]
    assert rates["bert-base"] == rates["bert-large"] == pytest.approx(1e-4)
    assert rates["bert-tiny"] == pytest.approx(6e-4)
    assert sorted(rates.values(), reverse=True) == list(rates.values())


def test_log_lines_are_a_hundred_of_a_short_run() -> None:
    assert PretrainConfig(steps=1234).log_interval == 12
    assert PretrainConfig(steps=1_000_000).log_interval == 100
    assert PretrainConfig(steps=5).log_interval == 1


@given(st.integers(1, 20_000), st.integers(1, 512), st.integers(1, 4096))
def test_evaluations_take_a_twentieth_of_the_time(steps: int, batch: int, wanted: int) -> None:
    looks = EvaluationSchedule.within(steps, steps * batch, wanted, None)
    on_the_way = (steps - 1) // looks.every
    cost = (on_the_way * looks.rows + looks.last) * FORWARD_COST
    assert cost <= max(SHARE * steps * batch, FEWEST_ROWS * FORWARD_COST) * 1.001
    assert on_the_way <= 18  # ten wanted; an interval is a whole number of steps
    assert max(looks.rows, looks.last) <= wanted


@given(st.integers(1, 2000), st.integers(1, 128), st.integers(1, 1024), st.floats(0, 0.5))
def test_evaluations_of_a_budget_take_a_twentieth_of_it_too(
    steps: int, batch: int, wanted: int, start: float
) -> None:
    """Of a training whose length follows from how far it is: steps take the same time each, after a
    start.
    """
    rows = HeldoutSet(cast(Any, None), wanted, batch, 0, 0, 0)
    measure = HeldoutEvaluator(
        scoring=cast(Any, None),
        heldout=rows,
        world=cast(Any, None),
        batches=BatchSizeSchedule(batch),
        first_step=0,
        steps=None,
    )
    size = (1 - start) / steps
    taken = []
    for step in range(1, steps + 1):
        known = size if step > 1 else 0.0  # nobody knows yet what a step takes
        moment = ScheduleProgress(
            done=start + (step - 1) * size, step_size=known, total=1.0, last=step == steps
        )
        if moment.last or measure.should_evaluate(step, moment):
            taken.append(measure.rows(step, moment))
    assert sum(taken) * FORWARD_COST <= max(
        1.2 * SHARE * steps * batch, 2 * FEWEST_ROWS * FORWARD_COST
    )
    assert len(taken) <= EVALUATIONS + 1
    if steps * batch > 100 * FEWEST_ROWS and wanted > FEWEST_ROWS and steps > 4 * EVALUATIONS:
        assert len(taken) >= 3, "not one or two alone, where there is time for more"


def test_an_interval_that_was_asked_for_is_kept() -> None:
    assert EvaluationSchedule.within(5500, 5500 * 32, 2048, None) == EvaluationSchedule(
        550, 2048, 2048
    )
    assert EvaluationSchedule.within(100, 3200, 2048, None) == EvaluationSchedule(25, 80, 240)
    assert EvaluationSchedule.within(100, 3200, 2048, 10) == EvaluationSchedule(
        10, FEWEST_ROWS, 240
    )
    assert EvaluationSchedule.within(1, 8, 24, None) == EvaluationSchedule(1, 24, 24)


def test_decay_is_on_matrices_alone() -> None:
    from cloze.model.families.models import new_model

    model = new_model(model_config("bert-tiny", vocab_size=50))
    config = PretrainConfig()
    decayed, others = parameter_groups(
        model, hyperparameters(config, "fp32", step_duration(config))
    )
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.01, 0.0)
    assert all("bias" in names[id(p)] or "norm" in names[id(p)] for p in others["params"])
    assert not any("bias" in names[id(p)] or "norm" in names[id(p)] for p in decayed["params"])
    assert len(decayed["params"]) + len(others["params"]) == len(names)


@given(
    st.integers(1, 70),
    st.integers(1, 6),
    st.one_of(st.none(), st.integers(1, 40)),
    st.integers(0, 3),
)
@settings(max_examples=80, deadline=None)
def test_every_sample_of_a_step_is_in_one_micro_batch(
    batch: int, size: int, micro: int | None, step: int
) -> None:
    world = World(0, size, CPU)
    if size > batch:
        with pytest.raises(UsageError, match=r"processes \(\d+\) is more than the batch"):
            micro_batch.plan(batch, micro, StepCost(BertConfig(), 128), world)
        return
    plan = micro_batch.plan(batch, micro, StepCost(BertConfig(), 128), world)
    pieces = [
        micro_batch_ranges(step * batch, (step + 1) * batch, rank, size, plan.accumulation)
        for rank in range(size)
    ]
    assert {len(piece) for piece in pieces} == {plan.accumulation}
    samples = [sample for piece in pieces for low, high in piece for sample in range(low, high)]
    assert samples == list(range(step * batch, (step + 1) * batch))
    assert (
        max(high - low for piece in pieces for low, high in piece)
        <= plan.micro_batch
        <= (micro or 32)
    )


def test_precision_follows_the_hardware(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert precision.resolve("fp32", CPU) == "fp32"
    assert precision.resolve("bf16", CPU) == "bf16"
    monkeypatch.setattr(precision, "native_bf16", lambda device: True)
    assert precision.resolve("auto", CPU) == "bf16"
    monkeypatch.setattr(precision, "native_bf16", lambda device: False)
    assert precision.resolve("auto", CPU) == "fp32"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_an_absent_gpu_is_a_fault_of_usage() -> None:
    with pytest.raises(UsageError, match=r"device \(cuda\) is not available"):
        precision.resolve_device("cuda")
    with pytest.raises(UsageError, match=r"device \(tpu\) is unknown"):
        precision.resolve_device("tpu")
    assert precision.resolve_device("auto") == CPU


def test_a_full_disk_is_found_before_training(tmp_path: Path) -> None:
    micro_batch.check_disk(str(tmp_path), 1000, 2)
    with pytest.raises(ClozeError, match=r"B free, 3 checkpoints take \S+PB; free some space"):
        micro_batch.check_disk(str(tmp_path), 1 << 50, 2)
