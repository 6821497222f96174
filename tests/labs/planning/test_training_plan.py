"""What a pretraining takes on so many GPUs: memory, hours, what is chosen, what is refused."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.labs.planning.training_plan import plan_training

LARGE = {"model": "roberta-large", "gpus": 64, "gpu_type": "h100", "tokens": 300e9}
TOO_LARGE = {"model": "megatron-bert-3.9b", "gpus": 1, "gpu_type": "rtx-4090"}


def plan(**values: Any) -> dict[str, Any]:
    return plan_training(2, **{**LARGE, **values})


def ways(found: dict[str, Any], checkpointing: bool = False) -> dict[int, dict[str, Any]]:
    return {
        way["zero"]: way
        for way in found["ways"]
        if way["activation_checkpointing"] is checkpointing
    }


def test_it_is_plain_values_that_agree_with_each_other() -> None:
    found = plan()
    assert json.loads(json.dumps(found)) == found
    assert found["parameters"] == pytest.approx(355e6, rel=0.01), "RoBERTa-large: Liu et al., 2019"
    assert found["steps"] == math.ceil(300e9 / (8192 * 0.95 * 512))
    way = found["chosen"]
    assert way["gpu_hours"] == pytest.approx(64 * way["hours"])
    assert way["micro_batch"] * way["accumulation"] == 8192 / 64
    assert found["checkpoint_bytes"] == 12 * found["parameters"]


def test_the_hours_are_those_of_the_operations_at_the_assumed_share_of_the_peak() -> None:
    """6 · 302M weights, 12 L D a layer, and a sixth of the logits: 2.0 GFLOP a token.

    300G of them at 40 % of 64 x 989 TFLOP/s.
    """
    token = 6 * 24 * 12 * 1024**2 + 24 * 12 * 0.95 * 512 * 1024 + 6 * 0.16 * 50265 * 1024
    hours = 300e9 * token / (64 * 989e12 * 0.4) / 3600
    assert hours < plan()["chosen"]["hours"] < 1.1 * hours
    assert plan(mfu=0.2)["chosen"]["hours"] == pytest.approx(2 * plan()["chosen"]["hours"])


def test_recomputed_layers_cost_a_third_more_and_keep_less() -> None:
    found = plan(model="bert-large")
    kept, again = (ways(found, checkpointing)[0] for checkpointing in (False, True))
    assert again["hours"] == pytest.approx(kept["hours"] * 4 / 3)
    rows = again["micro_batch"] / kept["micro_batch"]
    assert again["memory"]["activations"] < rows * kept["memory"]["activations"] / 3


def test_what_is_planned_fits_and_one_pass_less_would_not() -> None:
    found = plan(gpu_type="a100-40", gpus=8)
    for way in found["ways"]:
        assert way["memory"]["total"] <= 0.9 * 40e9
    assert ways(found)[0]["accumulation"] > 1
    fewer = plan(gpu_type="a100-40", gpus=8, global_batch=8 * ways(found)[0]["micro_batch"])
    assert ways(fewer)[0]["accumulation"] == 1


def test_the_fastest_is_chosen_and_of_those_the_least_sharded() -> None:
    found = plan()
    assert found["chosen"]["hours"] == min(way["hours"] for way in found["ways"])
    assert (found["chosen"]["zero"], found["chosen"]["activation_checkpointing"]) == (0, False)
    tight = plan(
        model="megatron-bert-3.9b", gpus=8, gpu_type="a100-40", global_batch=256, tokens=1e9
    )
    assert tight["chosen"]["zero"] == 3, "62 GB of weights, gradients and moments exceed a GPU"
    assert 0 not in ways(tight)


def test_the_command_is_one_that_cloze_understands() -> None:
    import click

    from cloze.flows.cli import cloze

    found = plan(
        model="megatron-bert-3.9b", gpus=16, gpu_type="a100-40", global_batch=256, tokens=1e9
    )
    program, verb, *arguments = found["chosen"]["command"].split()
    assert (program, verb) == ("cloze", "pretrain")
    assert "--zero" in arguments
    command = cloze.get_command(click.Context(cloze), verb)
    assert command is not None
    context = command.make_context(verb, arguments)
    assert context.params["execution__nodes"] == 2
    assert context.params["execution__processes"] == 8
    assert context.params["config__tokens"] == 1e9


def test_a_batch_that_leaves_gpus_idle_is_warned_of() -> None:
    assert not plan()["warnings"]
    assert any("too small" in warning for warning in plan(global_batch=64, length=128)["warnings"])


def test_without_gpus_it_is_this_machine_s_cpu() -> None:
    found = plan_training(2, model="bert-tiny", tokens=1e6, length=128)
    assert (found["hardware"]["kind"], found["hardware"]["gpus"]) == ("cpu", 0)
    assert found["chosen"]["gpu_hours"] == 0
    assert {way["zero"] for way in found["ways"]} == {0}, "one process has nothing to share out"
    assert "--device cpu" in found["chosen"]["command"]
    assert not any(", 0 TFLOP/s" in sentence for sentence in found["assumptions"])


@pytest.mark.parametrize(
    "model",
    [
        "albert-base",
        "electra-base",
        "deberta-v3-base",
        "modern-base",
        "longformer-base",
        "gpt2",
        "spanbert-base",
    ],
)
def test_every_family_has_a_plan(model: str) -> None:
    found = plan_training(2, model=model, gpus=8, gpu_type="a100-80", tokens=10e9)
    assert found["chosen"]["hours"] > 0
    assert found["chosen"]["memory"]["activations"] > 0


def test_every_assumption_is_told_and_one_that_was_given_is_not() -> None:
    told, given = (" ".join(plan(mfu=mfu)["assumptions"]) for mfu in (None, 0.5))
    for word in ("989 TFLOP/s", "90%", "95%", "network"):
        assert word in told
    assert "--mfu" in told
    assert "--mfu" not in given


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"model": "robrta-large"}, "unknown model 'robrta-large'; did you mean 'roberta-large'"),
        ({"gpu_type": "h10"}, r"gpu_type \(h10\) is not in the table; did you mean 'h100'"),
        ({"gpu_type": None}, r"gpus \(64\) lacks the kind; add --gpu-type NAME"),
        ({"gpus": 0}, r"gpus \(0\) must be more than 0"),
        (
            {"gpus": 1024, "global_batch": 256},
            r"gpus \(1024\) is more than the sequences of a step \(global_batch 256\)",
        ),
        ({"length": 1024}, r"length \(1024\) is more than roberta-large reads \(512\)"),
        ({"mfu": 1.5}, r"mfu \(1.5\) must be"),
        ({"tokens": -1.0}, r"tokens \(-1\) must be more than 0"),
        (
            TOO_LARGE,
            r"takes .* GB on each of 1 rtx-4090 \(24 GB\) .*; use more GPUs, GPUs with more memory",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        plan(**values)


def test_a_plan_needs_no_torch() -> None:
    program = (
        "import sys; from cloze.labs.planning.training_plan import plan_training;"
        " plan_training(2, model='bert-base', tokens=1e9, gpus=8, gpu_type='h100');"
        " print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"
