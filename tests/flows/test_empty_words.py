"""What a shell leaves of an unset variable, a mistyped URL and odd bytes is refused in a sentence."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.errors import UsageError
from cloze.flows.cli import main
from cloze.flows.graph.sections import Section, node_name
from cloze.flows.machine import slots


@pytest.mark.parametrize(
    "arguments",
    [
        ["vocab", "--corpus", "c", "--out", ""],
        ["vocab", "--corpus", "c", "--out="],
        ["vocab", "--corpus", "", "--out", "x"],
        ["export", "", "--out", "x"],
        ["verify", ""],
        ["cancel", ""],
        ["resume", ""],
        ["logs", ""],
        ["run", ""],
        ["clean", "", "--delete"],
    ],
)
def test_an_empty_word_names_nothing(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--out "$OUT"` wrote below runs/cloze-6gg86d8m, and `verify ""` read where one stands."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    before = "--out" if "--out=" in arguments else arguments[arguments.index("") - 1]
    assert f"{before} " in printed.err
    assert "is empty" in printed.err
    assert len(printed.err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_model_may_be_asked_about_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["embed", "/nowhere", ""]) == 3
    assert "/nowhere" in capsys.readouterr().err


def test_a_word_of_odd_bytes_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["vocab", "--corpus", "c", "--out", os.fsdecode(b"caf\xe9/v")]) == 2
    assert "caf\\xe9/v" in capsys.readouterr().err


@pytest.mark.parametrize("url", ["s3:/bucket/x", "gs:/bucket", "http:/host/x", "memory:/x"])
def test_a_url_with_one_slash_makes_no_directory(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact for `s3:/bucket/v` was written into a directory `s3:` beside the runs."""
    monkeypatch.chdir(tmp_path)
    for use in (storage.exists, storage.make_dirs, storage.list_names):
        with pytest.raises(UsageError, match=f"{url}: .*two slashes"):
            use(url)
    assert not list(tmp_path.iterdir())
    storage.make_dirs(f"./{url}")  # a directory may be called that
    assert storage.is_dir(f"{tmp_path}/{url}")


@pytest.mark.parametrize("value", ["abc", "0", "-2", "2.5", "1e3", "500m", "99999999999"])
def test_a_number_of_cores_is_a_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kubernetes writes 500m. `abc` was an internal error, and 0 one core without a word."""
    monkeypatch.setenv("CLOZE_CPUS", value)
    with pytest.raises(UsageError, match=rf"CLOZE_CPUS \('{value}'\)"):
        slots.machine()


@pytest.mark.parametrize("value", ["", " 3 "])
def test_blanks_around_a_number_of_cores_do_not_count(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_CPUS", value)
    assert len(slots.machine().cores) == 3 if value else slots.machine().cores


def test_a_node_s_name_fits_into_a_file_s_name() -> None:
    """It was "File name too long; check the path, its permissions and the disk"."""
    section = Section("finetune", {"matrix": {"row": ["a"]}}, {})
    assert node_name(section, {"row": "a" * 100}) == "finetune@" + "a" * 100
    with pytest.raises(UsageError, match=r"finetune@a.* 209 .*at most 200"):
        node_name(section, {"row": "a" * 200})


def test_copies_that_mlflow_keeps_of_manifests_are_no_artifacts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`cloze verify runs` reported every healthy run as damaged, with exit code 3."""
    manifest = {
        "format": 2,
        "stage": "letters",
        "version": 1,
        "fingerprint": "0" * 64,
        "files": {},
        "rows": 0,
    }
    copy = tmp_path / "runs" / "mlflow-artifacts" / ("0" * 32) / "artifacts"
    for directory in (copy, tmp_path / "runs" / "toy" / "letters"):
        directory.mkdir(parents=True)
        (directory / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.chdir(tmp_path)
    main(["verify", "runs"])
    printed = capsys.readouterr()
    assert "toy/letters" in printed.out + printed.err
    assert "mlflow-artifacts" not in printed.out + printed.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["deploy"],
        ["import", "https://me:s3cretpw9@127.0.0.1:9/x", "--out", "x"],
        ["plan", "demo", "--set", "corpus.sources=[{kind: text, path: 's4://me:s3cretpw9@h/x'}]"],
        ["status", "s4://me:s3cretpw9@h/x"],
        ["vocab", "--corpus", "s4://me:s3cretpw9@h/x", "--out", "x"],
    ],
)
@pytest.mark.parametrize("more", [[], ["--debug"], ["--json"]])
def test_no_error_shows_the_password_of_a_url(
    arguments: list[str],
    more: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Logs of a night and of CI are read by many."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", "http://me:s3cretpw9@127.0.0.1:9/api")
    assert main([*arguments, *more]) > 0
    printed = capsys.readouterr()
    assert "***@" in printed.err
    assert "s3cretpw9" not in printed.out + printed.err
    assert not any("s3cretpw9" in path.read_text() for path in tmp_path.rglob("*.json"))


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e999", "NaN"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["clean", "--unused-days"],
        ["serve", "m", "--timeout"],
        ["serve", "m", "--max-wait-ms"],
        ["plan-training", "bert-base", "--mfu"],
        ["pretrain", "--dataset", "d", "--out", "x", "--learning-rate"],
        ["pretrain", "--dataset", "d", "--out", "x", "--timeout-minutes"],
        ["finetune", "c", "--task", "sst2", "--data", "d", "--out", "x", "--epochs"],
    ],
)
def test_an_option_s_number_is_one(
    arguments: list[str], number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`clean --unused-days nan --delete` kept nothing: no age is less than nan."""
    assert main([*arguments, number]) == 2
    assert arguments[-1] in capsys.readouterr().err


def test_runs_below_a_file_are_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` said that there are no runs yet, and `clean` that a disk is bad."""
    (tmp_path / "own.yaml").touch()
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path / "own.yaml"))
    for command in ("status", "clean"):
        assert main([command]) == 2
        assert "own.yaml is no local directory" in capsys.readouterr().err


def test_a_reason_is_one_of_a_decision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`champion --reason …` without a decision showed the champion, and kept no reason."""
    monkeypatch.chdir(tmp_path)
    assert main(["champion", "--reason", "it reads better"]) == 2
    assert "--promote or --rollback" in capsys.readouterr().err
