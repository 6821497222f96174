"""`run.gpu_levers`: which of them a training can use, and what the log says of the others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from cloze.core.stages.execution import GPU_LEVERS, Execution
from cloze.model.families.registry import model_config
from cloze.model.tasks.finetune import fit
from cloze.model.train import compile_policy
from cloze.model.train.compile_policy import WorkEstimate, repays_whole_step
from cloze.model.train.spec.engine_choice import EngineConfig
from cloze.model.train.spec.levers import LeverContext, usable_levers
from tests.tiny_models import tiny_config

GPU = LeverContext(
    device=torch.device("cuda"), engine="torch", processes=1, precision="bf16",
    optimizer="adamw", layout="packed",
)  # fmt: skip
NAMES = [name for name in GPU_LEVERS if name != "finetune"]


def test_none_is_on_by_default() -> None:
    assert Execution().gpu_levers == ()


def test_a_name_that_is_no_lever_is_refused() -> None:
    with pytest.raises(ValidationError, match="no such GPU lever.*graphs"):
        Execution(gpu_levers=("graph",))


def test_a_gpu_uses_all_of_pretraining() -> None:
    notes: list[str] = []
    levers = usable_levers(NAMES, GPU, notes)
    assert len(levers) == len(NAMES)
    assert not notes


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"device": torch.device("cpu")}, {*NAMES}),
        ({"engine": "fsdp"}, {"graphs", "whole-step", "clip", "weights", "table"}),
        ({"engine": "deepspeed"}, {"graphs", "whole-step", "clip", "weights", "table"}),
        ({"processes": 2}, {"graphs", "table"}),
        ({"precision": "fp32"}, {"weights", "table"}),
        ({"precision": "fp16"}, {"graphs"}),
        ({"optimizer": "muon"}, {"clip"}),
        ({"layout": "rows"}, {"attention", "shapes", "graphs"}),
        ({"causal_share": 0.5}, {"shapes", "graphs"}),
        ({"second_network": "a teacher"}, {"graphs", "whole-step", "weights", "table"}),
        ({"finetuning": True}, {*NAMES}),
    ],
)
def test_what_cannot_be_used_is_told(changes: dict[str, Any], lost: set[str]) -> None:
    notes: list[str] = []
    levers = usable_levers(NAMES, replace(GPU, **changes), notes)
    assert len(levers) + len(notes) == len(NAMES)
    assert {note.split()[1] for note in notes} == lost
    assert all(note.partition("is not used: ")[2] for note in notes)


def test_fine_tuning_has_one_of_its_own() -> None:
    notes: list[str] = []
    assert not usable_levers(["finetune"], GPU, notes)
    assert "for fine-tuning" in notes[0]
    assert usable_levers(["finetune"], replace(GPU, finetuning=True), notes)


@pytest.mark.parametrize(
    ("levers", "steps", "device", "compiled", "notes"),
    [
        (("finetune",), 100_000, "cuda", True, 0),
        (("finetune",), 10, "cuda", False, 0),
        ((), 100_000, "cuda", False, 0),
        (("clip",), 100_000, "cuda", False, 1),
        (("clip", "finetune"), 100_000, "cuda", True, 1),
        (("finetune",), 100_000, "cpu", False, 1),
    ],
)
def test_a_long_fine_tuning_is_compiled_as_a_pretraining(
    levers: tuple[str, ...], steps: int, device: str, compiled: bool, notes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(compile_policy, "find_spec", lambda _: True)  # Triton
    setup: Any = SimpleNamespace(
        world=SimpleNamespace(device=torch.device(device), size=1),
        config=SimpleNamespace(global_batch=32, optimizer="adamw"),
        train=SimpleNamespace(samples=SimpleNamespace(lengths=np.full(9, 128))),
        build=SimpleNamespace(execution=Execution(gpu_levers=levers)),
        start=SimpleNamespace(model=model_config("bert-base")),
        steps=steps,
    )
    told: list[str] = []
    engine = EngineConfig("torch", 0)
    assert fit._compiles_by_lever(setup, engine, "bf16", told) is compiled
    assert len(told) == notes


def test_half_an_hour_repays_a_whole_step() -> None:
    model = tiny_config("bert")
    seconds = {length: WorkEstimate(positions=1, seconds=length) for length in (1000.0, 3600.0)}
    assert not repays_whole_step(model, seconds[1000.0])
    assert repays_whole_step(model, seconds[3600.0])
    assert not repays_whole_step(model, WorkEstimate(micro_batches=1000, positions=4096))
