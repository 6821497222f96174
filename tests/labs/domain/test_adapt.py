"""cloze adapt: the preset's nodes for what is given, and a whole run with its report."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.core.stages.execute import execute
from cloze.flows import cli
from cloze.flows.graph.config import samples_directory
from cloze.model.hub.stages import EXPORT, ExportConfig
from tests.tiny_models import write_checkpoint

pytestmark = pytest.mark.usefixtures("warm")
SAMPLES = samples_directory()
WIKIPEDIA = f"wikipedia={SAMPLES / 'wikipedia' / 'samplewiki-pages-articles.xml.bz2'}"
BOOKS = f"books={SAMPLES / 'books'}"


def adapt(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cloze", "adapt", "--no-prefect", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=280,
    )


def planned(*arguments: str) -> dict[str, Any]:
    done = adapt("--dry-run", *arguments)
    assert done.returncode == 0, done.stderr
    return {node["name"]: node for node in json.loads(done.stdout)["nodes"]}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--source", "books"), "'books' must look like KIND=PATH"),
        (("--source", BOOKS, "--general", "=x"), "'=x' must look like KIND=PATH"),
        (("--source", BOOKS, "--seeds", "1e9"), "1000000000 is not in the range"),
        (("--source", BOOKS, "--task", "sst2"), "--task and --data belong together"),
        (("--source", BOOKS, "--out", "s3://bucket/run"), "must be a local directory"),
    ],
)
def test_bad_input_is_told_in_a_sentence(
    arguments: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    done = adapt("--from", "nowhere", "--out", str(tmp_path / "run"), *arguments)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert sentence in done.stderr


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("adapt")
    return write_checkpoint(base / "checkpoint", base / "scratch")


def test_the_runs_directory_is_this_commands_alone(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for before in ("elsewhere", ""):
        monkeypatch.setenv("CLOZE_RUNS_DIR", before)
        values = ("--from", checkpoint, "--source", BOOKS, "--out", str(tmp_path / "run"))
        assert cli.main(["adapt", *values, "--no-prefect", "--dry-run"]) == 0
        assert os.environ["CLOZE_RUNS_DIR"] == before
    monkeypatch.delenv("CLOZE_RUNS_DIR")
    assert cli.main(["adapt", *values, "--no-prefect", "--dry-run"]) == 0
    assert "CLOZE_RUNS_DIR" not in os.environ


def test_nodes_follow_from_what_is_given(checkpoint: str, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    alone = planned("--from", checkpoint, "--source", BOOKS, "--out", out)
    assert set(alone) == {
        "corpus", "extend-vocab", "dataset", "pretrain", "likelihood@before-domain",
        "likelihood@after-domain", "report",
    }  # fmt: skip
    assert alone["pretrain"]["artifact"].startswith(f"{out}/")
    more = planned(
        "--from", checkpoint, "--source", BOOKS, "--general", WIKIPEDIA, "--detour", "7",
        "--task", "sst2", "--data", str(SAMPLES / "tasks" / "sentiment"), "--seeds", "2",
        "--set", "finetune.matrix.seed=[1, 2]", "--out", out,
    )  # fmt: skip
    assert set(more) >= {
        "dataset@general", "pretrain@detour-1", "pretrain@2", "finetune@before-sst2-1",
        "finetune@after-sst2-2", "likelihood@after-general-2",
    }  # fmt: skip


@pytest.mark.parametrize("detour", [(), ("--general", WIKIPEDIA, "--detour", "7")])
def test_a_hugging_face_directory_is_imported_and_what_is_imported_trains(
    detour: tuple[str, ...], checkpoint: str, tmp_path: Path
) -> None:
    """Where a checkpoint stands in the plan, the import stands, and nothing reads the directory."""
    hub, out = str(tmp_path / "hub"), str(tmp_path / "run")
    execute(EXPORT, ExportConfig(), {"checkpoint": checkpoint}, hub)
    given = ("--source", BOOKS, *detour, "--out", out)
    own, ours = planned("--from", checkpoint, *given), planned("--from", hub, *given)
    assert ours.keys() - own.keys() == {"import"}
    assert [name for name in ours if hub in ours[name]["inputs"].values()] == ["import"]
    read = [
        (name, role)
        for name in own
        for role, path in own[name]["inputs"].items()
        if path == checkpoint
    ]
    assert len(read) >= 2
    assert {ours[name]["inputs"][role] for name, role in read} == {ours["import"]["artifact"]}


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--task", "sst2"], "--task and --data belong together"),
        (["--set", "pretrain.stepz=3"], "unknown config key pretrain.stepz"),
    ],
)
def test_what_does_not_fit_is_refused(
    arguments: list[str], fault: str, checkpoint: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "run")
    done = adapt("--from", checkpoint, "--source", BOOKS, "--out", out, *arguments)
    assert done.returncode == 2
    assert fault in json.loads(done.stdout)["error"]["message"]


def test_a_checkpoint_learns_words_and_text_of_a_domain(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    short = ["dataset.length=32", "dataset@general.length=32"]
    settings = [*short, "likelihood.limit=40", "pretrain.heldout_rows=20", "run.threads=1"]
    done = adapt(
        "--from", checkpoint, "--source", BOOKS, "--general", WIKIPEDIA, "--add", "30",
        "--steps", "60", "--out", str(out), *(item for text in settings for item in ("--set", text)),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = {row["node"]: row for row in json.loads(done.stdout)["stages"]}
    vocab = artifact.read_manifest(results["extend-vocab"]["artifact"]).summary
    assert vocab["added"] == 30
    assert len(vocab["added_words"]) == 30
    assert vocab["fertility_before"] > 0
    bits = {
        text: [
            artifact.read_manifest(results[f"likelihood@{row}-{text}"]["artifact"]).summary[
                "metrics"
            ]["bits_per_byte"]
            for row in ("before", "after")
        ]
        for text in ("domain", "general")
    }
    assert bits["domain"][1] < bits["domain"][0]
    table, *_ = artifact.read_manifest(results["report"]["artifact"]).summary["tables"]
    assert "After" in json.dumps(table)
    assert f"{bits['domain'][1]:.3f}" in json.dumps(table)
