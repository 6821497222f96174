"""Tables of results and of a run's status: whole in 80 columns, instances together where there are
many, what matters apart.
"""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from rich.console import Console

from cloze.core.artifacts.artifact import Manifest
from cloze.core.stages.execute import BuildResult
from cloze.flows.views import run_tables, terminal


def printed(width: int, show: Any) -> str:
    out = Console(file=io.StringIO(), width=width, highlight=False)
    show(out)
    assert isinstance(out.file, io.StringIO)
    text = out.file.getvalue()
    assert all(len(line) <= width for line in text.splitlines())
    return text


def result(name: str, score: float, cached: bool = False, metric: str = "accuracy") -> BuildResult:
    manifest = Manifest(
        stage="finetune",
        version=1,
        fingerprint=name,
        parents={},
        config={},
        files=(),
        rows=10,
        seconds=60.0,
        summary={"metrics": {metric: score}},
    )
    return BuildResult(
        artifact=f"/runs/night/{name}-0123456789ab", cached=cached, seconds=1.0, manifest=manifest
    )


@pytest.mark.parametrize("width", [80, 140])
def test_few_results_have_a_line_each(width: int) -> None:
    results = {f"finetune@{n}": result(f"finetune@{n}", n / 10, cached=n == 1) for n in range(3)}
    text = printed(
        width,
        lambda out: out.print(terminal.result_table(results, dict.fromkeys(results, "finetune"))),
    )
    assert text.splitlines()[0].strip() == "/runs/night"
    assert [line.split()[0] for line in text.splitlines()[2:]] == [
        "finetune@0",
        "finetune@1",
        "finetune@2",
    ]
    assert "cached (1 min 00 s)" in text
    assert "accuracy 0.200" in text


@pytest.mark.parametrize("width", [80, 140])
def test_many_results_share_lines_and_tell_mean_and_best(width: int) -> None:
    results = {
        f"finetune@{n}": result(f"finetune@{n}", 0.8 if n == 7 else 0.5, cached=n < 10)
        for n in range(100)
    }
    text = printed(
        width,
        lambda out: out.print(terminal.result_table(results, dict.fromkeys(results, "finetune"))),
    )
    assert len(text.splitlines()) <= 4
    assert "finetune (100)" in text
    assert "1 h 40 min, 10 cached" in text
    assert "accuracy 0.503 on average, best 0.800" in " ".join(text.split())
    assert "1,000" in text


def test_the_best_of_scores_where_lower_is_better_is_the_least() -> None:
    results = {f"score@{n}": result(f"score@{n}", n, metric="perplexity") for n in range(1, 51)}
    table = terminal.result_table(results, dict.fromkeys(results, "score"))
    text = printed(140, lambda out: out.print(table))
    assert "perplexity 25.500 on average, best 1.000" in text


@pytest.mark.parametrize("width", [80, 140])
def test_status_of_many_nodes_keeps_apart_what_runs_and_what_failed(width: int) -> None:
    now = time.time()
    nodes: dict[str, Any] = {
        f"finetune@{n}": {
            "stage": "finetune",
            "section": "finetune",
            "state": "waiting",
            "why": "not made yet",
            "artifact": "/runs/x",
        }
        for n in range(100)
    }
    for n in range(50):
        nodes[f"finetune@{n}"] |= {"state": "finished", "started": now - 60, "ended": now}
    nodes["finetune@60"] |= {
        "state": "failed",
        "error": "the shard is cut short",
        "started": now - 5,
        "ended": now,
    }
    nodes["finetune@61"] |= {
        "state": "running", "started": now - 5, "done": 30, "total": 100, "unit": "steps",
        "figures": {"loss": 1.25}, "seconds_left": 90.0,
    }  # fmt: skip
    found = {
        "run": "night",
        "state": "running",
        "started": now - 100,
        "ended": None,
        "pid": 1,
        "host": "vm",
        "nodes": nodes,
        "error": None,
    }
    text = printed(width, lambda out: run_tables.show_run(out, "/runs/night", found))
    assert "finetune (98)" in text
    assert "50 finished, 48 waiting" in text
    assert "50 min 00 s" in text
    assert "30/100 steps  loss 1.25" in text
    assert "1 min 30 s" in text
    assert "finetune@60: the shard is cut short" in text
    assert len(text.splitlines()) == 7


@pytest.mark.parametrize(
    ("error", "last"),
    [
        ("suspended in Prefect, where Resume continues it: {}", "suspended in Prefect, where Resume continues it"),
        ("cancelled in Prefect: {}", "cancelled in Prefect"),
        ("train: {}", "train: {}"),
        ("train: {}; report needs it", "train: {}"),
    ],
)  # fmt: skip
def test_what_stopped_a_node_is_said_once(error: str, last: str) -> None:
    why = "training was stopped after step 185; run again to continue"
    node = {"stage": "pretrain", "state": "stopped", "started": 1.0, "ended": 2.0, "error": why}
    found = {
        "run": "night", "state": "cancelled", "started": 1.0, "ended": 2.0, "pid": 1, "host": "vm",
        "nodes": {"train": node}, "error": error.format(why),
    }  # fmt: skip
    lines = printed(140, lambda out: run_tables.show_run(out, "/runs/night", found)).splitlines()
    assert "\n".join(lines).count("step 185") == 1
    assert lines[-1] == last.format(why)
