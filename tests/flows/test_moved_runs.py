"""A run whose directory is renamed, copied or moved is the run of that name, with all it has."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cloze.core.artifacts.artifact import MANIFEST
from cloze.flows import cli
from cloze.flows.run import status_file


@pytest.fixture
def runs(toy_config: str, tmp_path: Path) -> Path:
    assert cli.main(["run", toy_config, "--no-prefect", "--set", "name=toy"]) == 0
    return tmp_path / "runs"


def names(runs: Path) -> set[str]:
    return {path.parent.name for path in runs.glob(f"*/{status_file.DIRECTORY}")}


@pytest.mark.parametrize("how", [shutil.move, shutil.copytree])
def test_a_renamed_run_is_resumed_where_it_lies(
    how: object, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It began again under its old name, in a new directory, and built everything."""
    assert callable(how)
    before = names(runs)
    how(str(runs / "toy"), str(runs / "better"))
    after = {*names(runs), "better"}
    capsys.readouterr()
    assert cli.main(["resume", "better", "--no-prefect", "--json"]) == 0
    assert capsys.readouterr().out.count('"cached": true') == 2
    assert names(runs) == after
    assert before == {"toy"}


def test_a_renamed_run_is_shown_with_its_name(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "toy").rename(runs / "better")
    capsys.readouterr()
    assert cli.main(["status", "better"]) == 0
    assert capsys.readouterr().out.split()[:2] == ["better", "finished"]
    assert status_file.all_records(runs)["better"]["run"] == "better"


@pytest.mark.parametrize("name", ["my run", "it's $HOME", "-x", "a*b", "--json", "Ünï`c`", "#1;ls"])
def test_a_run_of_any_directory_is_resumed_by_the_advice(
    name: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person may give a directory a name that no config may have."""
    (runs / "toy").rename(runs / name)
    capsys.readouterr()
    assert cli.main(["cancel", "--", name]) == 2
    advice = re.search("`(cloze .*)` shows it", capsys.readouterr().err)
    assert advice
    _, *words = shlex.split(advice[1])
    assert words[0] == "status"
    assert cli.main(words) == 0
    assert name in capsys.readouterr().out
    assert cli.main(["resume", "--no-prefect", "--json", *words[1:]]) == 0
    assert capsys.readouterr().out.count('"cached": true') == 2
    assert names(runs) == {name}


def lose_links(runs: Path) -> None:
    """As `rsync` without -l, archives, and file systems without links do."""
    for path in (runs / "toy").iterdir():
        if path.is_symlink():
            path.unlink()


def follow_links(runs: Path) -> None:
    """As `cp -rL` and `rsync -L` do."""
    shutil.copytree(runs, runs.with_name("copy"))
    shutil.rmtree(runs)
    runs.with_name("copy").rename(runs)


@pytest.mark.parametrize("copy", [lose_links, follow_links])
def test_a_copy_without_links_loses_nothing(
    copy: Callable[[Path], None], runs: Path, toy_config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`clean --delete` removed all results of such a copy, and a second run failed on them."""
    copy(runs)
    artifacts = sorted(path for path in (runs / "toy").iterdir() if path.name.count("-"))
    assert len(artifacts) == 2
    assert cli.main(["clean", "--delete"]) == 0
    assert [path for path in artifacts if (path / MANIFEST).exists()] == artifacts
    capsys.readouterr()
    assert cli.main(["run", toy_config, "--no-prefect", "--set", "name=toy"]) == 0
    assert "Nothing to do: all nodes are cached." in capsys.readouterr().err
    assert (runs / "toy" / "letters" / MANIFEST).exists()


def test_without_links_the_results_used_last_stay(runs: Path, toy_config: str) -> None:
    again = ["--no-prefect", "--set", "name=toy", "--set", "letters.size=9"]
    first = {path for path in (runs / "toy").iterdir() if path.name.count("-")}
    assert cli.main(["run", toy_config, *again]) == 0
    last = {path for path in (runs / "toy").iterdir() if path.name.count("-")} - first
    lose_links(runs)
    assert cli.main(["clean", "--delete"]) == 0
    left = {path for path in (runs / "toy").iterdir() if path.name.count("-")}
    assert left == last


def test_a_directory_in_a_link_s_place_is_named(
    runs: Path, toy_config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "toy" / "letters").unlink()
    (runs / "toy" / "letters").mkdir()
    assert cli.main(["run", toy_config, "--no-prefect", "--set", "name=toy"]) == 2
    assert "letters is a directory, where a link belongs; rename" in capsys.readouterr().err
    assert not list((runs / "toy").glob(".letters.*"))
