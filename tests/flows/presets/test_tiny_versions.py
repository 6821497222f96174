"""Tiny versions of the presets run through all their phases."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.graph.config import samples_directory
from tests import warm
from tests.flows.presets.reading import SOURCES

TINY = [
    "run.oversubscribe=true",
    "run.device=cpu",
    "run.engine=torch",
    "run.zero=0",
    "run.processes=1",
    "run.workers=1",
    "run.checkpoint_every=null",
]


def run(tmp_path: Path, name: str, *settings: str, only: tuple[str, ...] = ()) -> dict[str, Any]:
    """What `cloze run` tells of a tiny version of the preset."""
    given = [SOURCES, "corpus.heldout_fraction=0.2", *TINY, *settings]
    options = [part for setting in given for part in ("--set", setting)] + [
        part for node in only for part in ("--only", node)
    ]
    command = [warm.python(), "-c", warm.ENTRY, "run", name, "--no-prefect", "--json", *options]
    environment = {
        **os.environ,
        "CLOZE_RUNS_DIR": str(tmp_path / "runs"),
        "CLOZE_SLOTS_DIR": str(tmp_path / "slots"),
    }
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=1200, env=environment
    )
    assert done.returncode == 0, done.stderr
    return {stage["node"]: stage for stage in json.loads(done.stdout.splitlines()[-1])["stages"]}


@pytest.mark.soak
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("name", "settings", "steps"),
    [
        (
            "bert-base",
            ["vocab.size=500", "dataset.length=32", "dataset@512.length=64", "dataset.mask_copies=1", "dataset.shards=1", "pretrain.model=bert-tiny",
             "pretrain.steps=9", "pretrain@512.steps=3", "pretrain.schedule_steps=12", "pretrain.warmup_steps=2", "pretrain.global_batch=4"],
            {"pretrain": 9, "pretrain@512": 12},
        ),
        (
            "modernbert-base",
            ["vocab.size=600", "dataset.length=32", "dataset@8192.length=64", "dataset.shards=1", "pretrain.model=modern-tiny",
             "pretrain.steps=6", "pretrain@context.steps=3", "pretrain@decay.steps=3", "pretrain.warmup_steps=2", "pretrain.global_batch=4",
             "pretrain.initial_batch=2", "pretrain.batch_ramp_steps=3", "pretrain@context.global_batch=2", "pretrain@decay.global_batch=2"],
            {"pretrain": 6, "pretrain@context": 9, "pretrain@decay": 12},
        ),
        (
            "decay-branches",
            ["vocab.size=500", "dataset.length=32", "dataset.mask_copies=1", "pretrain.steps=8", "pretrain.warmup_steps=1", "pretrain.global_batch=4",
             "pretrain@decay.matrix.at={4: {steps: 2}, 8: {steps: 3}}"],
            {"pretrain": 8, "pretrain@decay-4": 6, "pretrain@decay-8": 11},
        ),
    ],
)  # fmt: skip
def test_a_tiny_version_runs_through_all_its_phases(
    tmp_path: Path, name: str, settings: list[str], steps: dict[str, int]
) -> None:
    made = run(tmp_path, name, *settings)
    assert {node: made[node]["steps"] for node in steps} == steps
    assert set(made["report"]["scores"]) >= {"pretrain"}
    history = (Path(made[list(steps)[-1]]["artifact"]) / "metrics.jsonl").read_text().splitlines()
    assert json.loads(history[0])["step"] > 1, "a phase's steps go on from those of the one before"


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_tiny_domain_adaptation_goes_three_ways(tmp_path: Path) -> None:
    small = [
        "vocab.size=500",
        "dataset.length=32",
        "dataset.mask_copies=1",
        "dataset.shards=1",
        "pretrain.steps=4",
        "pretrain.global_batch=4",
    ]
    small += ["pretrain.warmup_steps=1"]
    before = ("name=general", "pretrain.schedule_steps=null", "pretrain.model=bert-tiny")
    general = run(
        tmp_path, "bert-base", *small, *before, only=("corpus", "vocab", "dataset", "pretrain")
    )
    path = general["pretrain"]["checkpoint"]
    settings = [
        *(one for one in small if "vocab" not in one), "dataset@scratch-512.length=64",
            f"pretrain.checkpoint={path}", f"vocab.import_path={path}/tokenizer",
        f"extend-vocab.base={path}/tokenizer", "extend-vocab.add=20",
        "vocab@scratch.size=400", "pretrain@scratch.model=bert-tiny",
        "pretrain@scratch.steps=4", "pretrain@scratch.schedule_steps=6",
        "pretrain@scratch.global_batch=4", "pretrain@scratch.warmup_steps=1",
        "pretrain@scratch-512.steps=2", "pretrain@scratch-512.schedule_steps=6",
        "pretrain@scratch-512.global_batch=4", "pretrain@scratch-512.warmup_steps=1",
    ]  # fmt: skip
    made = run(tmp_path, "domain-adaptation", *settings)
    assert made["extend-vocab"]["size"] == made["vocab"]["size"] + 20
    assert {name: made[name]["steps"] for name in made if name.startswith("pretrain")} == {
        "pretrain": 4, "pretrain@extended": 4, "pretrain@scratch": 4, "pretrain@scratch-512": 6,
    }  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(1500)
def test_a_tiny_distillation_compares_students_with_their_teacher(tmp_path: Path) -> None:
    settings = [
        "vocab.size=500", "dataset.length=32", "dataset.shards=1", "pretrain.steps=4",
        "pretrain.global_batch=4", "pretrain.warmup_steps=1", "pretrain.model=bert-tiny",
        "pretrain@student.model={preset: bert-tiny, num_hidden_layers: 1}",
        "pretrain@alone.model={preset: bert-tiny, num_hidden_layers: 1}",
        f"finetune.data={samples_directory() / 'tasks' / 'sentiment'}", "finetune.epochs=1",
        "finetune.matrix={task: {sst2: {task: sst2}}, seed: [1]}",
    ]  # fmt: skip
    made = run(tmp_path, "distillation", *settings)
    students = {f"finetune@{name}-sst2-1" for name in ("layers", "student", "answers", "alone")}
    assert made.keys() >= {"pretrain", "pretrain@student", "pretrain@alone", "finetune@sst2-1"}
    assert made.keys() >= students
    tables = {table["title"]: table for table in made["report"]["tables"]}
    shares = tables["Share of Teacher"]
    assert shares["columns"] == ["", "parameters", "SST-2"]
    assert [row[0] for row in shares["rows"]] == [
        "Student, two steps", "Student, answers and labels", "Student without a teacher"
    ]  # fmt: skip
    assert len({row[1] for row in shares["rows"]} - {"100.0%"}) == 1
