"""Engines: which one runs, and that all of them train every family alike, over two ranks and in one
process.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.model.families.registry import FAMILIES
from cloze.model.train.engines.deepspeed_setup import ds_config
from cloze.model.train.optimizers import OPTIMIZERS
from cloze.model.train.spec.engine_choice import EngineConfig, choose_engine
from cloze.model.train.spec.schedules import Schedule, StepDuration
from cloze.model.train.spec.train_spec import TrainingHyperparameters
from tests.model.train.engine_cases import ENGINES, Case, Row, cases, table
from tests.model.train.ranks import REPOSITORY, asked
from tests.slices import few

# Each engine, and each way to train that is another on ranks than in one process
KEPT = [
    *(Case("bert", *engine, "fp32", 2) for engine in (("fsdp", 3), *ENGINES[3::2])),
    Case("electra", "fsdp", 3, "bf16", 1),
    *(Case("bert", *engine, "fp32", 2, "lamb") for engine in (("fsdp", 3), ("deepspeed", 3))),
    *(Case("bert", *engine, "fp32", 2, "muon") for engine in (("fsdp", 3), ("deepspeed", 3))),
    Case("t5", "deepspeed", 3, "fp32", 2),
    *(Case("bert", *engine, "bf16", 2, reduce="bf16") for engine in (ENGINES[0], ENGINES[4])),
    Case("albert", "deepspeed", 3, "bf16", 2, reduce="bf16", chunks=True),
    Case("bert", "deepspeed", 1, "fp32", 2, offload=True),
    Case("bert", "fsdp", 3, "fp32", 2, "muon", offload=True),
    Case("bert", "fsdp", 3, "bf16", 2, compiled=True),
]
FAST = list(
    dict.fromkeys([
        *KEPT,
        *cases(["bert"], ["fp32"], [2]),
        *cases(["albert"], ["bf16"], [2]),
        *cases(["electra"], ["bf16"], [1]),
        Case("bert", "deepspeed", 2, "fp32", 2, "lamb"),
        Case("bert", "fsdp", 3, "fp32", 2, "stable-adamw"),
        *cases(["bert"], ["fp32"], [2], ["muon"]),
        Case("bert", "deepspeed", 1, "bf16", 1, "muon"),
        Case("deberta", "deepspeed", 1, "fp32", 1, "muon"),
        *(Case("modern", engine, 3, "fp32", 1, "muon") for engine in ("fsdp", "deepspeed")),
        Case("deberta", "fsdp", 3, "fp32", 1),
        *(Case("xlnet", engine, 3, "fp32", 2) for engine in ("fsdp", "deepspeed")),
        Case("modern", "deepspeed", 2, "bf16", 1, "stable-adamw"),
        *(Case("bert", *engine, "bf16", 2, reduce="bf16") for engine in ENGINES),
        *(Case("gpt2", *engine, "fp32", 1, chunks=True) for engine in (ENGINES[0], ENGINES[-1])),
        Case("bert", "deepspeed", 3, "fp32", 2, offload=True),
        Case("bert", "deepspeed", 2, "fp32", 2, "muon", offload=True),
        Case("bert", "deepspeed", 2, "fp32", 2, "lamb", offload=True),
        Case("bert", "fsdp", 2, "bf16", 2, compiled=True),
        *(Case("bert", *engine, "fp16", 2) for engine in (("fsdp", 3), ("deepspeed", 2))),
    ])
)  # fmt: skip
ALL = [case for case in cases(sorted(FAMILIES), optimizers=tuple(OPTIMIZERS)) if case not in FAST]
ALL += [
    Case(family, *engine, "bf16", 1, reduce="bf16", chunks=True)
    for family in sorted(FAMILIES)
    for engine in ENGINES
]


@pytest.fixture(scope="module")
def fast(request: pytest.FixtureRequest) -> dict[Case, Row]:
    wanted = asked(request, "case")
    return {row.case: row for row in table([case for case in FAST if case in wanted], steps=3)}


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest) -> dict[Case, Row]:
    wanted = asked(request, "case")
    return {row.case: row for row in table([case for case in ALL if case in wanted], timeout=3000)}


@pytest.mark.parametrize("case", few(FAST, *KEPT), ids=str)
def test_engines_agree(fast: dict[Case, Row], case: Case) -> None:
    assert fast[case].ok, fast[case]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("case", ALL, ids=str)
def test_engines_agree_on_every_family(slow: dict[Case, Row], case: Case) -> None:
    assert slow[case].ok, slow[case]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, EngineConfig("torch", 0)),
        ({"processes": 1}, EngineConfig("torch", 0)),
        ({"zero": 0}, EngineConfig("torch", 0)),
        ({"zero": 2}, EngineConfig("deepspeed", 2)),
        ({"engine": "deepspeed"}, EngineConfig("deepspeed", 1)),
        ({"engine": "fsdp", "processes": 1}, EngineConfig("fsdp", 3)),
        ({"engine": "fsdp", "zero": 2}, EngineConfig("fsdp", 2)),
        ({"engine": "deepspeed", "zero": 3, "processes": 1}, EngineConfig("deepspeed", 3)),
        (
            {"zero": 1, "processes": 1},
            EngineConfig("torch", 0, "one process has nothing to share out at ZeRO 1"),
        ),
        ({"memory": 80 * 10**9}, EngineConfig("torch", 0)),
        (
            {"memory": 2 * 10**9},
            EngineConfig("fsdp", 3, "weights and optimizer take 1.8 of 2.0 GB a device"),
        ),
    ],
)
def test_engines_that_shard_run_where_they_are_needed(
    asked: dict[str, Any], found: EngineConfig
) -> None:
    values = {"processes": 2, "parameters": 110_000_000, "memory": None, **asked}
    assert choose(**values) == found


def choose(processes: int, parameters: int, memory: int | None, **asked: Any) -> EngineConfig:
    return choose_engine(Execution(**asked), processes, parameters, memory)


@pytest.mark.parametrize(
    ("engine", "zero", "sentence"),
    [
        ("torch", 1, r"zero \(1\) needs an engine that shards"),
        ("fsdp", 1, r"zero \(1\) with engine fsdp must be one of \[2, 3\]"),
        ("deepspeed", 0, r"zero \(0\) with engine deepspeed"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    engine: str, zero: int | None, sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        choose(2, 1000, None, engine=engine, zero=zero)


@pytest.mark.parametrize(
    ("value", "sentence"), [({"engine": "torsh"}, "engine"), ({"zero": 4}, "zero")]
)
def test_engines_and_stages_that_do_not_exist_are_refused(
    value: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_config(Execution, value, "run")


GPUS: dict[str, Any] = {
    "processes": 2,
    "parameters": 1000,
    "memory": 80 * 10**9,
    "offload": "cpu",
}


def test_the_optimizer_s_state_may_lie_in_the_machine_s_memory() -> None:
    assert choose(**{**GPUS, "zero": 2}) == EngineConfig("deepspeed", 2, offload=True)
    assert choose(**{**GPUS, "zero": 2, "offload": "none"}) == EngineConfig("deepspeed", 2)
    with pytest.raises(
        UsageError, match=r"offload \(cpu\) needs an engine that shards, this is engine torch"
    ):
        choose(**GPUS)
    with pytest.raises(UsageError, match=r"offload \(cpu\) is for GPUs, training is on the CPU"):
        choose(**{**GPUS, "zero": 2, "memory": None})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("reduce", ["fp32", "bf16"])
def test_deepspeed_s_config_says_what_ours_says(device: str, reduce: Any) -> None:
    recipe = TrainingHyperparameters(
        duration=StepDuration(steps=1, span=1),
        learning_rate=1.0,
        schedule=Schedule(),
        seed=1,
        precision="bf16",
        grad_reduce_dtype=reduce,
        grad_clip=0.5,
    )
    found = ds_config(recipe, EngineConfig("deepspeed", 2, offload=device == "cuda"), 4, 3, device)
    assert (found["train_micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (4, 3)
    assert (found["gradient_clipping"], found["communication_data_type"]) == (0.5, reduce)
    assert found["data_types"] == {"grad_accum_dtype": "fp32"}
    zero = found["zero_optimization"]
    assert (zero["stage"], zero["overlap_comm"]) == (2, device == "cuda")
    assert (found["gradient_allreduce_op"], zero["reduce_scatter"]) == ("sum", False)
    assert zero.get("offload_optimizer") == (
        {"device": "cpu", "pin_memory": True} if device == "cuda" else None
    )
    assert not found["zero_force_ds_cpu_optimizer"]
    assert not {"fp16", "bf16"} & found.keys(), "the weights stay fp32"


def test_deepspeed_does_not_bring_torch_s_compiler() -> None:
    """In a Python of its own: those of other tests have imported it."""
    program = """
import sys
from cloze.model.train.engines.deepspeed_setup import import_deepspeed
import_deepspeed("cpu")
from deepspeed.runtime import compiler
from deepspeed.runtime.zero.muon import muon_optimizer, original_muon  # as the first optimizer does
import torch
print(sorted({"torch._dynamo", "torch._inductor"} & set(sys.modules)), compiler.compile() is torch.compile)
print(tuple(original_muon.zeropower_via_newtonschulz5(torch.eye(3), 2).shape), muon_optimizer.MuonWithAuxAdam.__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.splitlines() == ["[] True", "(3, 3) MuonWithAuxAdam"]
