"""What a TARGET names: a run, a node, a section, a path, a link into a store; and what it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.errors import DataError, UsageError
from cloze.flows import cli
from cloze.flows.run import targets
from cloze.flows.run.targets import Target


@pytest.fixture
def runs(toy_config: str, tmp_path: Path) -> Path:
    """Run `toy` with 4 letters and then with 5, and `other` once."""
    for name, size in (("toy", 4), ("toy", 5), ("other", 4)):
        settings = ["--set", f"name={name}", "--set", f"letters.size={size}"]
        assert cli.main(["run", toy_config, "--no-prefect", *settings]) == 0
    return tmp_path / "runs"


def artifacts(runs: Path, run: str, node: str) -> list[str]:
    """The directories of a node, those that are built last first."""
    found = [path for path in (runs / run).iterdir() if path.name.startswith(f"{node}-")]
    return [str(path) for path in sorted(found, key=lambda path: -path.stat().st_mtime)]


def test_a_run_is_all_of_its_artifacts_and_has_no_path(runs: Path) -> None:
    found = targets.resolve("toy")
    assert (found.run, found.node, found.is_run) == ("toy", "", True)
    assert found.nodes == ["count", "letters"]
    assert sorted(found.paths) == sorted(
        [*artifacts(runs, "toy", "letters"), *artifacts(runs, "toy", "count")]
    )
    with pytest.raises(
        UsageError, match="toy has several artifacts; name one node, such as toy/count"
    ):
        _ = found.path
    assert targets.resolve(str(runs / "other")) == Target(
        text=str(runs / "other"), run="other", paths=targets.resolve("other").paths
    )


def test_a_node_is_its_current_artifact_before_its_earlier_ones(runs: Path) -> None:
    new, old = artifacts(runs, "toy", "letters")
    found = targets.resolve("toy/letters")
    assert (found.run, found.node, found.is_run, found.nodes) == (
        "toy",
        "letters",
        False,
        ["letters"],
    )
    assert found.paths == (new, old)
    assert found.path == new
    assert targets.resolve_path("toy/letters") == new
    at = targets.resolve(old)
    assert (at.run, at.node, at.paths, at.path) == ("toy", "letters", (old,), old)


def test_a_node_without_its_run_is_looked_for_in_all_if_asked(runs: Path) -> None:
    with pytest.raises(DataError, match="'letters' is not a run in"):
        targets.resolve("letters")
    found = targets.resolve("letters", in_any_run=True)
    assert (found.run, found.node, found.nodes) == ("", "", [])
    assert set(found.paths) == {
        path for run in ("toy", "other") for path in artifacts(runs, run, "letters")
    }
    assert found.path == found.paths[0]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("toys", "did you mean 'toy'?"),
        ("toy/letter", "did you mean 'toy/letters'?"),
        ("nowhere/at/all", "`cloze status` lists the runs"),
    ],
)
def test_what_is_nothing_is_told_with_the_nearest(runs: Path, text: str, advice: str) -> None:
    with pytest.raises(DataError) as error:
        targets.resolve(text)
    assert f"{text!r} is not a run in {runs}" in str(error.value)
    assert str(error.value).endswith(advice)
    with pytest.raises(DataError, match=f"^{text} does not exist; (did you mean|check the path)"):
        targets.resolve_path(text)


def test_a_path_outside_of_the_runs_is_itself(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    assert targets.resolve(str(tmp_path / "here")) == Target(
        text=str(tmp_path / "here"), paths=(str(tmp_path / "here"),)
    )
    monkeypatch.chdir(tmp_path)
    assert targets.resolve_path("here") == "here"
    assert targets.resolve_path("s3://bucket/x") == "s3://bucket/x"
    elsewhere = tmp_path / "elsewhere" / "night" / "_status"
    elsewhere.mkdir(parents=True)
    with pytest.raises(UsageError, match="set CLOZE_RUNS_DIR=.*elsewhere"):
        targets.resolve(str(elsewhere.parent))


def test_a_link_of_a_run_into_a_store_is_its_node(runs: Path) -> None:
    (runs / "toy" / "far").symlink_to("memory://bucket/toy/far-0")
    for url in ("memory://bucket/toy/far-0", "memory://bucket/toy/far-0/checkpoints/step-1"):
        assert targets.resolve(url) == Target(text=url, run="toy", node="far", paths=(url,))
    other = "memory://bucket/toy/far-00"
    assert targets.resolve(other) == Target(text=other, paths=(other,))


def test_names_for_completion_are_runs_and_their_nodes(runs: Path) -> None:
    (runs / ".commands").mkdir(exist_ok=True)
    (runs / "empty").mkdir()
    names = ["other", "other/count", "other/letters", "toy", "toy/count", "toy/letters"]
    assert targets.run_names(runs) == ["other", "toy"]
    assert targets.target_names() == names
    assert targets.target_names(in_any_run=True) == [*names, "letters", "count"]


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("corpus-0123456789ab", "corpus"),
        ("pretrain@a-1-0123456789ab", "pretrain@a-1"),
        ("corpus", "corpus"),
        ("my-corpus", "my-corpus"),
        ("0123456789ab", "0123456789ab"),
    ],
)
def test_a_directory_names_its_node(name: str, node: str) -> None:
    assert targets.node_name(Path("/runs/x") / name) == node


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("finetune@a", "finetune@a", True),
        ("finetune@a", "finetune", True),
        ("finetune@a-2", "finetune@a", True),
        ("finetune@ab", "finetune@a", False),
        ("finetune-2", "finetune", False),
        ("finetune", "fine", False),
    ],
)
def test_instances_belong_to_their_section_and_stage(
    name: str, pattern: str, expected: bool
) -> None:
    assert targets._matches(name, pattern) == expected
