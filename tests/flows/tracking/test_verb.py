"""What a verb spools for MLflow: a run with none above it, where the environment names a server,
and nothing where it names none.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cloze.flows.commands.base.stage_command import StageCommand
from tests.flows.tracking.test_records import Told

LINE = {"step": 3, "learning_rate": 0.5, "loss": 2.5}


def letters(tmp_path: Path, *options: str) -> str:
    done = CliRunner().invoke(
        StageCommand("letters", stage="letters"),
        ["--out", str(tmp_path / "mine"), *options],
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    return done.output


def test_a_verb_has_a_run_of_its_own(
    toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del toy_config
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    letters(tmp_path, "--size", "5", "--set", f"told={LINE}")
    told = Told(tmp_path)
    (start,) = told.starts.values()
    assert (start["name"], start["parent"]) == ("letters mine", None)
    assert start["tags"]["cloze.artifact"] == str(tmp_path / "mine")
    assert told.status("letters") == "FINISHED"
    assert told.merged("letters", "params")["size"] == "5"
    assert told.merged("letters", "metrics")["loss/loss"] == 2.5
    letters(tmp_path, "--size", "5", "--set", f"told={LINE}")
    assert len(Told(tmp_path).starts) == 1, "it is made already"


def test_without_a_server_it_leaves_its_own_record_alone_beside_its_artifact(
    toy_config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    letters(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "runs", Path(toy_config).name}
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {".commands", ".starts.lock"}
