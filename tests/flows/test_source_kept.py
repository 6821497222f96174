"""Which copies of the source `cloze clean` keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.flows import cli
from cloze.flows.run import retention, source, status_file
from tests.flows.sources import another_start, training


def test_clean_keeps_the_sources_that_runs_name(
    package: Path, tmp_path: Path, toy_config: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    copies = tmp_path / "runs" / ".source"
    for edit in (1, 2):
        (package / "core" / "a.py").write_text(f"A = {edit}")
        another_start(monkeypatch)
        assert cli.main(["run", toy_config, "--no-prefect", "--set", f"letters.size={edit}"]) == 0
    (copies / "killed").mkdir()
    kept = Path(status_file.read(tmp_path / "runs", "toy")["source"])
    assert len(list(copies.iterdir())) == 3
    capsys.readouterr()
    assert cli.main(["clean"]) == 0
    assert capsys.readouterr().out.endswith("Copies of Cloze's source not needed: 2\n")
    assert cli.main(["clean", "--delete"]) == 0
    assert capsys.readouterr().out.endswith("Copies of Cloze's source removed: 2\n")
    assert list(copies.iterdir()) == [kept]
    (tmp_path / "runs" / "toy" / "_status" / "9-damaged.json").write_text("{")
    (copies / "of whom").mkdir()
    assert retention.unneeded_sources(tmp_path / "runs", remove=True) == []


def test_clean_keeps_the_source_of_a_job_that_outlives_its_start(
    package: Path, tmp_path: Path
) -> None:
    """A Slurm job goes on after its command was killed; a later start has another source."""
    copy = source.fix(tmp_path / "runs")
    made = Path(training(tmp_path / "runs", copy).path)
    assert retention.unneeded_sources(tmp_path / "runs") == []
    (made / "manifest.json").write_text("{}")
    assert retention.unneeded_sources(tmp_path / "runs") == [Path(copy)]
