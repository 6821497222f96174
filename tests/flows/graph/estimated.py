"""A small run whose stages have been made, with what they tell of themselves, and its plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from cloze.core import places
from cloze.core.artifacts import artifact
from cloze.flows.graph import config as configs
from cloze.flows.graph import estimate, plan, stages
from cloze.flows.graph.estimate import Estimate
from cloze.flows.graph.overrides import parse
from cloze.flows.graph.plan import PlannedNode
from cloze.model.families.registry import model_config
from cloze.model.train.plan import estimates

BOOKS = str(configs.samples_directory() / "books")
CONFIG = f"""
corpus: {{sources: [{{kind: books, path: {BOOKS}}}]}}
vocab: {{size: 2000}}
dataset: {{length: 64, mask_copies: 4}}
pretrain: {{model: bert-tiny, steps: 100, global_batch: 16}}
finetune: {{task: sst2, data: {configs.samples_directory() / "tasks" / "sentiment"}}}
evaluate: {{data: {configs.samples_directory() / "tasks" / "sentiment"}}}
report: {{}}
run: {{device: cpu}}
"""
SUMMARIES: dict[str, dict[str, Any]] = {
    "corpus": {"bytes": 40_000, "documents": 14},
    "vocab": {"size": 2000, "sample_bytes": 36_000, "bytes_per_piece": 3.5},
    "dataset": {"tokens": 11_000, "mean_length": 60.0, "length": 64, "copies": 4},
    "pretrain": {
        "parameters": 750_000,
        "tokens_per_second": 2400.0,
        "steps": 100,
        "device": "cpu",
        "world_size": 1,
    },
    "finetune": {"metrics": {"accuracy": 0.5}},
    "evaluate": {"metrics": {"accuracy": 0.5}},
    "report": {"report": "report.html", "masks": [{"node": "pretrain"}]},
    "vectors": {
        "documents": 14,
        "size": 128,
        "tokens": 9523,
        "parameters": 750_000,
        "device": "cpu",
    },
    "semdedup": {
        "documents": 12,
        "bytes": 36_000,
        "size": 128,
        "clusters": 1,
        "dropped": {"semantic_duplicate": 2},
    },
}
SECONDS = {
    "corpus": 5.0,
    "vocab": 4.0,
    "dataset": 6.0,
    "pretrain": 50.0,
    "finetune": 20.0,
    "evaluate": 9.0,
    "report": 8.0,
}
SECONDS |= {"vectors": 30.0, "semdedup": 20.0}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("CLOZE_CPUS", "2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "toy.yaml").write_text(CONFIG)
    return tmp_path


def planned(
    place: Path, *settings: str, name: str = "toy", **how: Any
) -> tuple[list[PlannedNode], dict[str, Estimate]]:
    overrides = parse([*settings, f"name={name}"], "a.b=c", sections=True)
    steps = plan.plan(configs.load(str(place / "toy.yaml"), overrides), **how)
    return steps, estimate.estimates(steps, places.runs_directory())


def made(steps: list[PlannedNode], **summaries: Mapping[str, Any]) -> None:
    """Artifacts as if all steps had been made."""
    for step in steps:
        stage = step.node.stage
        config = step.node.config.model_dump(mode="json")
        tokens = 96_000 if stage == "pretrain" else 5000  # 1,600 rows of 60 tokens
        summary = {**SUMMARIES[stage], **summaries.get(stage, {})}
        if stage == "pretrain":
            model = model_config(config["model"], vocab_size=2000)
            summary["training_flops"] = tokens * estimates.flops_per_token(model, 60)
        Path(step.artifact).mkdir(parents=True)
        manifest = artifact.Manifest(
            stage=stage, version=stages.stage(stage).version, fingerprint=step.fingerprint,
            parents={}, config=config, files=(),
            rows=1600, tokens=tokens, summary=summary,
            seconds=SECONDS[stage],
            execution=step.node.execution.model_dump(mode="json"),
        )  # fmt: skip
        Path(step.artifact, artifact.MANIFEST).write_text(
            json.dumps(asdict(manifest))
        )  # five hundred fsyncs would take their time
        plan.link_to(step)
