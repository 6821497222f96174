"""A run whose artifacts are on an object store: its records and links stay in the runs directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact
from cloze.flows.nightly.discovery import find_checkpoints
from tests.flows.test_cli import Done
from tests.flows.test_cli import cloze as installed_cloze
from tests.object_store import Store
from tests.slices import few

VALUES = (
    "run.threads=1",
    "pretrain.heldout_rows=20",
    "pretrain.steps=8",
    "finetune.baselines=false",
    "finetune.epochs=1",
    "run.workers=1",
)
SETTINGS = [*(f"--set={value}" for value in VALUES), "--no-prefect", "--json"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("last", few(["pretrain", "report"], "pretrain"))
def test_a_run_keeps_its_artifacts_on_the_store(store: Store, tmp_path: Path, last: str) -> None:
    runs = tmp_path / "runs"

    def cloze(*arguments: str, timeout: float = 120) -> Done:
        variables = {"CLOZE_RUNS_DIR": str(runs), "CLOZE_STORE": store.path("kept")}
        return installed_cloze(*arguments, cwd=tmp_path, timeout=timeout, **variables)

    settings = [*SETTINGS, "--until", last]
    done = cloze("run", "sample", *settings, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = {row["node"]: row for row in done.json["stages"]}
    made = ["corpus", "vocab", "dataset", "pretrain"]
    assert list(rows) == made + (["finetune", "evaluate", "report"] if last == "report" else [])
    for name, row in rows.items():
        assert row["artifact"].startswith(store.path("kept", "sample", f"{name}-"))
        assert os.readlink(runs / "sample" / name) == row["artifact"]
        assert artifact.verify(row["artifact"]).ok
    assert [path.name for path in (runs / "sample").iterdir() if not path.is_symlink()] == [
        "_status"
    ]
    if last == "report":
        page = storage.read_text(storage.join(rows["report"]["artifact"], "report.html"))
        assert "pretrain" in page

    again = cloze("run", "sample", *settings, timeout=300)
    assert {row["cached"] for row in again.json["stages"]} == {True}
    by_link = cloze("verify", "runs/sample/pretrain", "--json")
    assert by_link.returncode == 0, by_link.stderr
    by_node = cloze("lineage", "sample/pretrain", "--json")
    assert rows["pretrain"]["fingerprint"] in json.dumps(by_node.json)
    assert "pretrain" in cloze("status", "sample").stdout
    assert "rank1.log" in cloze("logs", "sample/pretrain").stdout
    filled = cloze("fill-mask", "runs/sample/pretrain", "the [MASK] is here", "--json")
    assert filled.returncode == 0, filled.stderr
    (newest,) = (item for item in find_checkpoints(runs) if item.newest)
    assert newest.path.startswith(rows["pretrain"]["artifact"])
    assert newest.run == "sample"

    cleaned = cloze("clean", "--delete", "--json")
    assert cleaned.returncode == 0, cleaned.stderr
    assert os.readlink(runs / "sample" / "pretrain") == rows["pretrain"]["artifact"]
