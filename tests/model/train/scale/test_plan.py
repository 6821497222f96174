"""What a pretraining takes on so many GPUs: memory by stage, time, network, what is chosen, and what is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from model.train.scale.plan import planned
from pipeline.core.errors import UsageError

LARGE = {"model": "roberta-large", "gpus": 64, "gpu": "h100", "tokens": 300e9}


def plan(**values: Any) -> dict[str, Any]:
    return planned(2, **{**LARGE, **values})


def rows(found: dict[str, Any], **wanted: Any) -> list[dict[str, Any]]:
    return [row for row in found["memory"] if all(row[name] == value for name, value in wanted.items())]


def test_it_is_plain_values_and_all_of_them_hang_together() -> None:
    found = plan()
    assert json.loads(json.dumps(found)) == found
    assert found["parameters"] == pytest.approx(355e6, rel=0.01), "RoBERTa-large: Liu et al., 2019"
    assert found["steps"] == math.ceil(300e9 / (8192 * 0.95 * 512))
    way = found["chosen"]
    assert way["hours"] * 3600 == pytest.approx(way["step_seconds"] * found["steps"])
    assert way["gpu_hours"] == pytest.approx(64 * way["hours"])
    assert way["energy_kwh"] == pytest.approx(0.7 * way["gpu_hours"])
    assert way["micro_batch"] * way["accumulation"] == 8192 / 64
    assert found["bytes"]["checkpoint"] == 12 * found["parameters"]
    assert 0 < found["failures"]["goodput"] <= 1


def test_the_time_is_that_of_the_operations_at_the_assumed_share_of_the_peak() -> None:
    """6 · 302M weights, 12 L D a layer, and a sixth of the logits: 2.0 GFLOP a token; 300G of them at 40 % of 64 x 989 TFLOP/s."""
    token = 6 * 24 * 12 * 1024**2 + 24 * 12 * 0.95 * 512 * 1024 + 6 * 0.16 * 50265 * 1024
    hours = 300e9 * token / (64 * 989e12 * 0.4) / 3600
    assert hours < plan()["chosen"]["hours"] < 1.1 * hours
    assert plan(mfu=0.2)["chosen"]["hours"] == pytest.approx(2 * plan()["chosen"]["hours"], rel=0.05)


def test_each_stage_shares_out_more_and_checkpointing_keeps_less() -> None:
    found = plan()
    one = [rows(found, zero=zero, activation_checkpointing=False, micro_batch=8)[0] for zero in range(4)]
    state = [row["weights"] + row["gradients"] + row["moments"] for row in one]
    parameters = found["parameters"]
    assert state[0] == pytest.approx(20 * parameters), "gradients of several micro-batches lie beside those that are sent"
    assert state[1] == pytest.approx((8 + 20 / 64) * parameters), "moments are shared out, and what is stepped is cut out"
    assert state[2] == pytest.approx((4 + 20 / 64) * parameters + 4 * (1 << 25)), "gradients, too, but for those that go out"
    assert state[3] < 5 * parameters
    again = rows(found, zero=0, activation_checkpointing=True, micro_batch=8)[0]
    assert again["activations"] < one[0]["activations"] / 3
    assert [row["total"] for row in rows(found, zero=0, activation_checkpointing=False)] == sorted(
        row["total"] for row in rows(found, zero=0, activation_checkpointing=False)
    )


def test_most_that_fits_fits_and_one_more_would_not() -> None:
    found = plan(gpu="a100-40", gpus=8)
    room = 0.9 * 40e9
    for zero in range(4):
        most = rows(found, zero=zero, activation_checkpointing=False, most=True)[0]
        assert most["fits"]
        assert room * 0.97 < most["total"] <= room


def test_the_fastest_is_chosen_and_of_those_as_fast_the_simplest() -> None:
    found = plan()
    fastest = min(way["step_seconds"] for way in found["ways"])
    assert found["chosen"]["step_seconds"] <= 1.01 * fastest
    assert (found["chosen"]["zero"], found["chosen"]["activation_checkpointing"]) == (0, False)
    tight = plan(model="megatron-bert-3.9b", gpus=8, gpu="a100-40", length=512, global_batch=256, tokens=1e9)
    assert tight["chosen"]["zero"] == 3, "62 GB of weights, gradients and moments are more than a GPU has"
    assert not rows(tight, zero=0, fits=True)


def test_the_command_is_one_that_cloze_understands(tmp_path: Any) -> None:
    import click

    from flows.cli import cloze

    found = plan(model="megatron-bert-3.9b", gpus=16, gpu="a100-40", global_batch=256, tokens=1e9)
    program, verb, *arguments = found["chosen"]["command"].split()
    assert (program, verb) == ("cloze", "pretrain")
    assert "--zero" in arguments
    command = cloze.get_command(click.Context(cloze), verb)
    assert command is not None
    context = command.make_context(verb, arguments)
    assert context.params["execution__nodes"] == 2
    assert context.params["execution__processes"] == 8
    assert context.params["config__tokens"] == 1e9


def test_an_average_of_the_weights_takes_a_moment_more_in_memory_and_on_disk() -> None:
    without, found = plan(), plan(ema=0.999)
    weight = 4.0 * without["parameters"]
    assert found["bytes"]["checkpoint"] - without["bytes"]["checkpoint"] == weight
    (one,), (other,) = (rows(each, zero=0, micro_batch=1, activation_checkpointing=False) for each in (found, without))
    assert one["moments"] - other["moments"] == pytest.approx(weight)
    assert "--ema 0.999" in found["chosen"]["command"]


def test_gpus_wait_for_the_network_where_it_is_slow_and_the_batch_small() -> None:
    fast, slow = plan(), plan(interconnect=1e9)
    assert fast["chosen"]["network"]["bytes_per_rank"] == pytest.approx(2 * 63 / 64 * 4 * fast["parameters"])
    assert fast["chosen"]["network"]["waiting_share"] < 0.05
    assert slow["chosen"]["network"]["waiting_share"] > 0.5
    assert any("network" in warning for warning in slow["warnings"])
    assert any("too small" in warning for warning in plan(global_batch=64, length=128)["warnings"])
    assert plan(gpus=1)["chosen"]["network"]["bytes_per_step"] == 0


def test_stage_2_sends_gradients_after_every_micro_batch_and_stage_3_weights_besides() -> None:
    found = {way["zero"]: way for way in plan(global_batch=65536)["ways"] if not way["activation_checkpointing"]}
    passes = {zero: way["network"]["bytes_per_rank"] / (63 / 64 * 4 * plan()["parameters"]) for zero, way in found.items()}
    assert passes == pytest.approx({0: 2, 1: 2, 2: found[2]["accumulation"] + 1, 3: 3 * found[3]["accumulation"]})


def test_without_gpus_it_is_this_machine_s_cpu() -> None:
    found = planned(2, model="bert-tiny", tokens=1e6, length=128)
    assert found["hardware"]["kind"] == "cpu"
    assert found["hardware"]["gpus"] == 0
    assert found["chosen"]["gpu_hours"] == 0
    assert {way["zero"] for way in found["ways"]} == {0}, "one process has nothing to share out"
    assert "--device cpu" in found["chosen"]["command"]


@pytest.mark.parametrize(
    "model", ["albert-base", "electra-base", "deberta-v3-base", "modern-base", "longformer-base", "gpt2", "spanbert-base"]
)
def test_every_family_has_a_plan(model: str) -> None:
    found = planned(2, model=model, gpus=8, gpu="a100-80", tokens=10e9)
    assert found["chosen"]["hours"] > 0
    one, eight = (rows(found, zero=0, activation_checkpointing=False, micro_batch=count)[0]["activations"] for count in (1, 8))
    assert 0 < one < eight


def test_every_assumption_is_told_and_one_that_was_given_is_not() -> None:
    told = " ".join(plan()["assumptions"])
    for word in (
        "989 TFLOP/s",
        "40%",
        "8,192 sequences",
        "512 tokens",
        "50,265",
        "fp32",
        "700 W",
        "mask copies",
        "419 in 54 days",
    ):
        assert word in told
    given = " ".join(
        plan(vocabulary=32000, global_batch=1024, length=128, save_seconds=0.5, restart_seconds=60.0)["assumptions"]
    )
    for word in ("--vocab-size", "--global-batch", "--length"):
        assert word not in given
    assert "as measured" in given


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "robrta-large"}, "unknown model 'robrta-large'; did you mean 'roberta-large'"),
        ({"gpu": "h10"}, r"gpu \(h10\) is not in the table; did you mean 'h100'"),
        ({"gpu": None}, r"gpus \(64\) lacks the kind; add --gpu NAME"),
        ({"gpus": 0}, r"gpus \(0\) must be at least 1; leave it out for this machine's CPU"),
        ({"gpus": 12}, r"gpus \(12\) must be a multiple of gpus_per_node \(8\)"),
        ({"gpus": 1024, "global_batch": 256}, r"gpus \(1024\) is more than the sequences of a step \(global_batch 256\)"),
        ({"length": 1024}, r"length \(1024\) is more than roberta-large reads \(512\)"),
        ({"ema": 1.0}, r"ema \(1\) must be more than 0 and less than 1"),
        ({"mfu": 1.5}, r"mfu \(1.5\) must be"),
        ({"tokens": -1.0}, r"tokens \(-1\) must be a number above 0"),
        (
            {"model": "megatron-bert-3.9b", "gpus": 1, "gpu": "rtx-4090"},
            r"takes .* GB on each of 1 rtx-4090 \(24 GB\) .*; use \d+ GPUs with ZeRO 3 or a100-80 \(80 GB\)",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        plan(**values)


def test_what_a_refusal_says_would_do_does() -> None:
    with pytest.raises(UsageError) as refused:
        plan(model="megatron-bert-3.9b", gpus=1, gpu="rtx-4090", global_batch=256)
    gpus = int(str(refused.value).split("; use ")[1].split()[0])
    assert plan(model="megatron-bert-3.9b", gpus=gpus, gpu="rtx-4090", global_batch=256)["chosen"]["zero"] == 3
    plan(model="megatron-bert-3.9b", gpus=1, gpu="a100-80", global_batch=256)


def test_a_plan_needs_no_torch() -> None:
    program = (
        "import sys; from model.train.scale.plan import planned; planned(2, model='bert-base', tokens=1e9, gpus=8, gpu='h100');"
        " print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
