"""What is planned of trainings, to the number, as text: weights, operations, memory, hours, sizes.

    python -m tests.model.train.plan.figures     writes figures.txt beside it

Each figure follows from constants and formulas that nobody sees in a single example: a line that
changes does so on purpose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cloze.core.config import parse_config
from cloze.core.stages.cost import MachineSpec, PlannedBuild
from cloze.core.stages.execution import Execution
from cloze.labs.planning.training_plan import plan_training
from cloze.model import hardware
from cloze.model.families.registry import model_config
from cloze.model.train import dial
from cloze.model.train.config import PretrainConfig
from cloze.model.train.plan import cost, estimates, sizing
from cloze.model.train.plan.estimates import ComputeOptions

FILE = Path(__file__).with_suffix(".txt")
FAMILIES = {
    "bert-base": 30_522, "modern-base": 50_368, "electra-small": 30_522, "albert-base": 30_000,
    "gpt2": 50_257, "deberta-v3-base": 128_100, "longformer-base": 50_265,
    "distilbert-base": 30_522, "t5-small": 32_128,
}  # fmt: skip
DATA = {"vocab_size": 3000, "length": 128, "mean_length": 100.0, "rows": 5000}
MIXED = {"dataset/b": {**DATA, "rows": 300, "mean_length": 50.0}, "dataset/a": DATA}


def plain(value: Any) -> Any:
    """Numbers with nine digits, as JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _weights() -> Iterator[tuple[str, Any]]:
    teacher = model_config("bert-base", vocab_size=30_522)
    for name, size in FAMILIES.items():
        model = model_config(name, vocab_size=size)
        yield (
            name,
            [
                estimates.approximate_parameters(model),
                estimates.active_parameters(model),
                estimates.predicted_share(model, 0.5),
                estimates.flops_per_token(model, 700.0),
                estimates.flops_per_token(model, 100.0, teacher, 0.5),
                estimates.StepCost.of(model, 100.0, device="cpu", causal_share=0.25).operations,
                estimates.StepCost.of(model, 100.0, device="cuda").operations,
                estimates.StepCost.of(model, 128, ranks=4).save_bytes,
                estimates.StepCost.of(model, 128, ranks=2).save_bytes,
            ],
        )
        for device, bf16, again in product(("cpu", "cuda"), (True, False), (True, False)):
            how = ComputeOptions(device=device, bf16=bf16, checkpointing=again)  # type: ignore[arg-type]
            yield (
                f"{name} {device} bf16={bf16} again={again}",
                [
                    estimates.StepCost.of(model, 128, how).activation_bytes(3),
                    estimates.StepCost.of(model, 512, how, causal_share=0.5).activation_bytes(64),
                ],
            )


def _memory() -> Iterator[tuple[str, Any]]:
    for name in ("bert-large", "megatron-bert-3.9b"):
        model = model_config(name, vocab_size=30_522)
        for ranks, zero, fsdp in ((1, 3, False), *product((8,), range(4), (False, True))):
            for device, offload in (("cuda", False), ("cuda", True), ("cpu", False)):
                how = ComputeOptions(
                    device=device,  # type: ignore[arg-type]
                    bf16=not offload,
                    offload=offload,
                    fsdp=fsdp,
                )
                memory = estimates.StepCost.of(
                    model, 128, how, ranks=ranks, zero=zero, causal_share=0.5 * fsdp
                ).memory(8)
                label = f"{name} {device} ranks={ranks} zero={zero} fsdp={fsdp} offload={offload}"
                yield label, [*asdict(memory).values(), memory.training, memory.total]
    base, large = (model_config(f"bert-{size}", vocab_size=30_522) for size in ("base", "large"))
    for free, teacher, share in product((8e9, 24e9), (None, large), (0.0, 1.0)):
        rows = estimates.StepCost.of(base, 512, teacher=teacher, causal_share=share).fitting_rows(
            free
        )
        yield f"rows that fit {free:g} {teacher is not None} {share}", rows
    yield "bytes of a checkpoint", estimates.checkpoint_bytes(1000)
    for device, given in product(
        (hardware.GPUS["v100"], hardware.GPUS["a100-40"], hardware.of("cpu", MachineSpec(cpus=4))),
        ({}, {"processes": 4, "zero": 2, "offload": "cpu"}, {"engine": "fsdp", "nodes": 2},
         {"micro_batch": 3}, {"activation_checkpointing": True}),
    ):  # fmt: skip
        execution = Execution.model_validate(given)
        found = [
            cost.execution_memory(base, 128, 300, execution, device, precision=precision)
            for precision in ("auto", "fp32", "bf16")
        ]
        yield f"of a run {device.name} {given}", found


def _costs() -> Iterator[tuple[str, Any]]:
    gpus = MachineSpec(cpus=8, gpus=2, gpu_bytes=80 << 30, gpu="NVIDIA H100 80GB HBM3")
    cases: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], MachineSpec]] = {
        "steps": ({"steps": 50, "milestones": [20]}, {}, {}, MachineSpec(cpus=2)),
        "tokens": ({"tokens": 80_000}, {}, {}, MachineSpec(cpus=2)),
        "time": ({"max_time": "10m", "keep_for_merge": 5}, {}, {"keep_checkpoints": 4}, gpus),
        "ramp": (
            {"steps": 90, "initial_batch": 64, "batch_ramp_steps": 40, "milestone_words": [10, 20]},
            {}, {"processes": 2, "nodes": 3}, gpus,
        ),
        "on the CPU beside GPUs": ({"steps": 50}, {}, {"device": "cpu", "processes": 2}, gpus),
        "a teacher": ({"steps": 50}, {"teacher": {"parameters": 10**6}}, {}, MachineSpec(cpus=2)),
        "a mixture": ({"steps": 50}, {"": MIXED}, {}, MachineSpec(cpus=2)),
        "both ways": (
            {"steps": 50, "model": "modern-tiny", "objectives": ["mlm", "clm"]},
            {}, {}, MachineSpec(cpus=2),
        ),
        "a checkpoint": (
            {"steps": 50, "model": None}, {"checkpoint": {"model": "bert-mini"}}, {}, gpus,
        ),
        "a checkpoint that is not known": (
            {"steps": 50, "model": None}, {"continue": {"parameters": 7_000_000}}, {}, gpus,
        ),
        "nothing is known": ({"steps": 50, "model": None}, {"": {"dataset": {}}}, {}, gpus),
        "a size": ({"size": "17m", "tokens": 10**9, "model": None}, {}, {}, MachineSpec(cpus=2)),
    }  # fmt: skip
    for name, (values, more, how, computer) in cases.items():
        config = parse_config(PretrainConfig, {"model": "bert-tiny", **values}, "pretrain")
        inputs = dict(more.get("", {"dataset": DATA})) | {k: v for k, v in more.items() if k}
        found = cost.COSTS.estimate(
            PlannedBuild(config, inputs, Execution.model_validate(how), computer)
        )
        model = found.expected_metadata["model"] or {}
        sizes = [model.get(name) for name in ("hidden_size", "vocab_size")]
        expected = {**found.expected_metadata, "model": sizes}
        yield f"cost: {name}", {**asdict(found), "expected_metadata": expected}
    done = {"tokens": 1000, "parameters": 50, "seconds": 100.0}
    for more in (
        {}, {"training_flops": 7e6}, {"tokens_per_second": 50.0}, {"device": "cuda", "world_size": 4},
        {"world_size": 4}, {"tokens": 0}, {"seconds": 13.0},
    ):  # fmt: skip
        yield f"measured: {more}", cost.COSTS.measure({**done, **more})
    for facts in (
        {"seconds": 30.0}, {"seconds": 30.0, "device": "cuda"},
        {"seconds": 30.0, "execution": {"device": "cuda"}}, {"seconds": 1.0, "device": "cpu"},
    ):  # fmt: skip
        passes = [
            cost.pass_throughput(facts, weights=1e6, tokens=1e4, forward=forward, width=3)
            for forward in (True, False)
        ]
        yield f"passes: {facts}", passes
    for device, computer in (("cuda", gpus), ("cpu", MachineSpec(cpus=2))):
        plan = PlannedBuild(None, {}, Execution.model_validate({"device": device}), computer)
        yield f"a pass on {device}", cost.pass_cost(plan, tokens=1e4, weights=10**6, width=3)
    yield (
        "sources",
        [
            cost.source_model({"config": {"model": "bert-tiny"}, "parameters": 5})[::2],
            cost.source_model({}, "bert-mini")[::2],
            cost.source_model({"model": None})[::2],
        ],
    )


def _plans() -> Iterator[tuple[str, Any]]:
    for given in (
        {"model": "bert-large", "tokens": 1e10, "gpus": 4, "gpu_type": "v100"},
        {"model": "megatron-bert-3.9b", "tokens": 1e9, "gpus": 12, "gpu_type": "a100-40"},
        {"model": "bert-base", "tokens": 1e9, "gpu_type": "t4", "length": 128, "mfu": 0.3},
        {"model": "modern-base", "tokens": 1e9, "gpus": 64, "gpu_type": "b200", "length": 64},
        {"model": "bert-mini", "tokens": 1e7, "vocab_size": 8000, "global_batch": 48},
        {"model": "17m", "tokens": 1e9},
        {"model": "60m", "tokens": 1e9, "gpus": 1, "gpu_type": "l4", "global_batch": 64},
    ):
        yield f"plan: {given}", plan_training(2, **given)  # type: ignore[arg-type]


def _sizes() -> Iterator[tuple[str, Any]]:
    for size, vocabulary in product((3_000_000, 17_000_000, 150_000_000, 10**9), (8192, 50_368)):
        try:
            model = dial.shape(size, vocabulary)
        except Exception as error:
            yield f"shape of {size} {vocabulary}", str(error)
            continue
        fields = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        yield f"shape of {size} {vocabulary}", [getattr(model, name) for name in fields]
    for values in (
        {"tokens": 10**9}, {"tokens": 10**12}, {"max_time": "1h"}, {"tokens": 10**9, "optimizer": "adamw"},
        {"tokens": 10**9, "optimizer": "lamb"}, {"tokens": 10**9, "global_batch": 16},
        {"tokens": 10**5, "learning_rate": 1e-3, "betas": [0.9, 0.99]}, {"tokens": 1000},
    ):  # fmt: skip
        config = parse_config(PretrainConfig, {"size": "17m", **values}, "pretrain")
        found = sizing.resolve_size(config, 8192, 100.0, 1e12, "cuda")
        named = {name: getattr(found, name) for name in dial.RULES if name != "model"}
        yield f"size: {values}", {**named, "said": list(sizing.describe_size(found).values())}
    yield "tokens of a step", [dial.step_tokens(tokens) for tokens in (8e6, 1e9, 1.7e12)]
    for config in (PretrainConfig(optimizer="lamb"), PretrainConfig(optimizer="lamb", steps=500),
                   PretrainConfig(optimizer="lamb", global_batch=4096, steps=9, schedule_steps=50_000),
                   PretrainConfig(optimizer="lamb", tokens=10)):  # fmt: skip
        rates = [config.peak_learning_rate(before) for before in (0, 20_000)]
        yield f"rate of lamb {config.global_batch} {config.phase_steps}", rates


def lines() -> Iterator[str]:
    """Yield a line for each figure, on a machine of four cores with AMX and 16 GB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hardware, "cpu_flags", lambda: ["avx512_bf16", "amx_bf16"])
        patch.setattr(hardware.platform, "machine", lambda: "x86_64")
        patch.setattr(hardware.processes, "memory_limit", lambda: 4096 << 22)
        for part in (_weights, _memory, _costs, _plans, _sizes):
            for name, value in part():
                yield f"{name}: {json.dumps(plain(value), ensure_ascii=False)}"


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in lines()), encoding="utf-8")
