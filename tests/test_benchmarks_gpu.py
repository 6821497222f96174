"""The first GPU's one command, at its smallest size on the CPU: every row runs, and what fails
costs itself alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import babylm
from benchmarks.gpu.parent import Child, run_rows
from benchmarks.gpu.rows import check_names, speed_names
from benchmarks.gpu.table import markdown
from cloze.flows.cli import main
from tests import warm
from tests.conftest import REPOSITORY

# Of what `pyproject.toml` names, and a machine with a PyTorch image lacks or need not have.
ABSENT = (
    "prefect",
    "mlflow",
    "apache_beam",
    "fastapi",
    "sqlalchemy",
    "click",
    "rich",
    "matplotlib",
    "sklearn",
    "scipy",
    "ftfy",
    "lxml",
    "brotli",
    "py3langid",
    "resiliparse",
    "sentencex",
    "seqeval",
    "orjson",
    "deepspeed",
    "transformers",
    "pytest",
    "hypothesis",
    "yaml",
    "jinja2",
)
BLOCKED = """
import importlib.abc, sys
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ImportError(f"{{name}} is not here")
sys.meta_path.insert(0, Absent())
import benchmarks.gpu.levers, benchmarks.gpu.lever_rows, benchmarks.gpu.lever_table
import benchmarks.gpu.__main__, benchmarks.gpu.babylm, benchmarks.gpu.child, benchmarks.gpu.parent, benchmarks.gpu.checks, benchmarks.gpu.speed
from benchmarks.gpu.parent import child_of
from pathlib import Path
child_of("cpu", True, Path("/nowhere"), Path("/nowhere"))
print(len(benchmarks.gpu.checks.CHECKS))
"""


def test_it_needs_the_model_room_and_the_core_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(absent=ABSENT)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == str(len(check_names()))


@pytest.mark.timeout(900)
@pytest.mark.soak
def test_every_row_runs_on_a_cpu(tmp_path: Path) -> None:
    """But for the two that start what takes long here, DeepSpeed and torch's compiler: other tests
    run both on the CPU.
    """
    wanted = "^(?!check: (ZeRO|compiled))"
    done = subprocess.run(
        [
            warm.python(),
            "-m",
            "benchmarks.gpu",
            "--device",
            "cpu",
            "--tiny",
            "--minutes",
            "12",
            "--out",
            str(tmp_path),
            "--only",
            wanted,
        ],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "nowhere",
        },  # nor does a single process need a network
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    machine, *rows = [
        json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()
    ]
    assert "torch" in machine
    assert [row["row"] for row in rows] == [
        name
        for name in (*check_names(), *speed_names(tiny=True))
        if "ZeRO" not in name and "compiled" not in name
    ]
    assert [row["row"] for row in rows if not row["ok"] and ": flash" not in row["row"]] == [
        "check: fsdp compiles layers",
        "check: offload agrees",
    ], "a CPU compiles whole steps, and has nowhere to move anything to"
    for row in rows:
        if not row["row"].startswith("check") and ": flash" not in row["row"]:
            assert row["figures"]["tokens_per_second"] > 0
            assert row["figures"]["mfu"] is None, "a CPU has no MFU"
    page = (tmp_path / "results.md").read_text()
    assert page.count("| bert-tiny 32 |") == 4
    assert "kernels agree: **yes**" in page


CHILD = """
import json, os, sys, time
for line in sys.stdin:
    row = json.loads(line)["row"]
    if row == "dies": os.abort()
    if row == "hangs": time.sleep(600)
    print(json.dumps({"row": row, "ok": row != "fails", "took": 0.0, "figures": {"process": os.getpid()}}), flush=True)
"""


def test_a_row_that_dies_or_hangs_or_fails_costs_itself_alone(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", CHILD], tmp_path / "log", os.environ)
    limits = {
        "a": 60.0,
        "dies": 60.0,
        "b": 60.0,
        "hangs": 1.0,
        "c": 60.0,
        "fails": 60.0,
        "d": 60.0,
        "e": 60.0,
    }
    rows = {row: child.ask(row, 1.0, limit) for row, limit in limits.items()}
    child.end()
    assert {row for row, answer in rows.items() if not answer["ok"]} == {"dies", "hangs", "fails"}
    assert rows["dies"]["error"].startswith("the process ended (SIGABRT)")
    assert rows["hangs"]["error"] == "took longer than 1 s"
    process = {
        row: answer["figures"]["process"] for row, answer in rows.items() if "figures" in answer
    }
    assert process["c"] == process["fails"] != process["d"] == process["e"], (
        "a GPU may answer nothing after a fault"
    )


def test_it_keeps_to_its_minutes(tmp_path: Path) -> None:
    child, seen = Child([sys.executable, "-c", CHILD], tmp_path / "log", os.environ), []
    rows = run_rows((["hangs", "late"], child), (["later"], child), 3.0, seen.append)
    assert rows == seen
    assert [row["ok"] for row in rows] == [False, None, None]
    assert rows[1]["error"] == "there was no time left"


def test_what_is_missing_is_named() -> None:
    figures = {"tokens_per_second": 2000.0, "padded_tokens_per_second": 3000.0, "mfu": 0.5}
    rows = [
        {"row": "check: kernels agree", "ok": False, "error": "outputs differ by 2", "took": 1.0},
        {
            "row": "bert-base 128: loop",
            "ok": True,
            "figures": {**figures, "data_wait": 0.01, "memory_gb": 12.5},
            "took": 1.0,
        },
        {
            "row": "bert-base 128: bare",
            "ok": True,
            "figures": {**figures, "tokens_per_second": 2500.0},
            "took": 1.0,
        },
        {
            "row": "bert-base 128: theirs",
            "ok": False,
            "error": "OutOfMemoryError: 80 GB",
            "took": 1.0,
        },
    ]
    page = markdown(rows, {"device": "NVIDIA H200", "torch": "2.11"})
    assert page.startswith("# NVIDIA H200\n")
    assert "- kernels agree: **NO** (outputs differ by 2; 1 s)" in page
    assert "| bert-base 128 | loop | 2,000 | 3,000 | 50.0% | 12.5 | 1.0% | 0.80 |  |  |" in page
    assert "- bert-base 128: theirs: OutOfMemoryError: 80 GB" in page


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_babylm_goes_there_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "runs"))
    books = json.dumps([{"kind": "books", "path": str(REPOSITORY / "samples" / "books")}])
    small = ["--set", f"corpus.sources={books}", "--set", "vocab.size=600"]
    small += ["--set", "corpus.max_words=null", "--no-prefect"]
    until = [word for name in babylm.DATASETS for word in ("--until", name)]
    assert main(["run", babylm.PRESET, *small, *until]) == 0
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    pair = {"sentence_good": "she was here", "sentence_bad": "here she were", "UID": "order"}
    (pairs / "order.jsonl").write_text(json.dumps({**pair, "pairID": "0"}) + "\n")
    layers = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    steps = {"steps": 10, "warmup_steps": 1, "global_batch": 4, "heldout_rows": 4}
    changes = {
        "pretrain": {**steps, "model": {"preset": "modern-tiny", **layers}},
        "pretrain@256": {**steps, "keep_for_merge": 2},
        "merge": {"last": 2},
    }
    planned = babylm.plan(pairs, "gpu", changes)
    babylm.pack(tmp_path / "runs" / babylm.PRESET, pairs, tmp_path / "run.tar.xz", planned)
    babylm.unpack(tmp_path / "run.tar.xz", tmp_path / "out")
    results = babylm.make(tmp_path / "out", "cpu")
    assert list(results) == list(babylm.MADE)
    assert results["score"]["accuracy"] in (0, 0.5, 1)
