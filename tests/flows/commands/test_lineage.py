"""`cloze lineage` goes on through checkpoints, into the directories around, and to trainings that
are not finished.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloze.core.artifacts import artifact, claim
from cloze.core.errors import DataError
from cloze.flows.commands.services import lineage


def finished(path: Path, stage: str, **parents: str) -> Path:
    path.mkdir(parents=True)
    fingerprint = f"{path.name}{'0' * 12}"
    artifact.write_manifest(
        str(path),
        artifact.Manifest(
            stage=stage, version=1, fingerprint=fingerprint, parents=parents, config={}, files=()
        ),
    )
    return path


def shown(path: Path) -> dict[str, Any]:
    done = CliRunner().invoke(lineage, [str(path), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.output)
    return found


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    zeros = "0" * 12
    finished(tmp_path / "runs" / "one" / "dataset", "dataset")
    finished(tmp_path / "runs" / "one" / "trunk", "pretrain", dataset=f"dataset{zeros}")
    finished(
        tmp_path / "runs" / "one" / "phase",
        "pretrain",
        **{"continue": f"trunk{zeros}/checkpoints/step-00000004"},
    )
    finished(
        tmp_path / "runs" / "one" / "nightly" / "tuned",
        "finetune",
        checkpoint=f"phase{zeros}",
        data="f" * 64,
    )
    finished(
        tmp_path / "runs" / "two" / "other",
        "finetune",
        checkpoint=f"phase{zeros}/checkpoints/step-00000009",
    )
    claim.claim_directory(
        str(tmp_path / "runs" / "one" / "going"),
        claim.Claim("pretrain", f"going{zeros}"),
        force=False,
    )
    finished(
        tmp_path / "runs" / "one" / "early",
        "finetune",
        checkpoint=f"going{zeros}/checkpoints/step-00000001",
    )
    (tmp_path / "runs" / "one" / "foreign").mkdir()
    (tmp_path / "runs" / "one" / "foreign" / "manifest.json").write_text('{"name": "a web page"}')
    return tmp_path / "runs"


def test_through_a_checkpoint_to_the_dataset(runs: Path) -> None:
    tree = shown(runs / "one" / "phase")
    trunk = tree["parents"]["continue"]
    assert (trunk["artifact"], trunk["part"]) == (
        str(runs / "one" / "trunk"),
        "checkpoints/step-00000004",
    )
    assert trunk["parents"]["dataset"]["stage"] == "dataset"


@pytest.mark.parametrize("path", ["one/nightly/tuned", "two/other"])
def test_into_the_directory_above_and_those_beside(runs: Path, path: str) -> None:
    tree = shown(runs / path)
    phase = tree["parents"]["checkpoint"]
    assert phase["artifact"] == str(runs / "one" / "phase")
    assert phase["parents"]["continue"]["parents"]["dataset"]["stage"] == "dataset"


def test_of_a_checkpoint_and_of_an_unfinished_training(runs: Path) -> None:
    tree = shown(runs / "one" / "trunk" / "checkpoints" / "step-00000004")
    assert (tree["part"], list(tree["parents"])) == ("checkpoints/step-00000004", ["dataset"])
    early = shown(runs / "one" / "early")["parents"]["checkpoint"]
    assert (early["stage"], early["unfinished"], early["part"]) == (
        "pretrain",
        True,
        "checkpoints/step-00000001",
    )


def test_what_is_outside_is_said(runs: Path) -> None:
    told = (
        CliRunner().invoke(lineage, [str(runs / "one" / "nightly" / "tuned")]).output.splitlines()
    )
    assert told[0].split() == ["finetune", "tuned0000000", str(runs / "one" / "nightly" / "tuned")]
    assert told[1].split() == [
        "checkpoint",
        "(pretrain)",
        "phase0000000",
        str(runs / "one" / "phase"),
    ]
    assert told[2].split()[:2] == ["continue", "(pretrain)"]
    assert told[2].endswith(str(runs / "one" / "trunk" / "checkpoints" / "step-00000004"))
    assert told[-1].split() == ["data", "ffffffffffff", "(outside)"]
    with pytest.raises(DataError, match="no finished artifact"):
        CliRunner().invoke(lineage, [str(runs / "one")], catch_exceptions=False)


def test_an_unfinished_training_tells_what_it_reads_and_a_corpus_its_files(runs: Path) -> None:
    dataset = runs / "one" / "dataset"
    job = {
        "stage": "pretrain",
        "reference": "",
        "config": {},
        "path": "",
        "inputs": {"dataset": str(dataset)},
        "execution": {},
        "fingerprint": "",
    }
    logs = runs / "one" / "going" / "_logs"
    logs.mkdir()
    (logs / "job.json").write_text(json.dumps(job))
    corpus = artifact.Manifest(
        stage="corpus",
        version=1,
        fingerprint="corpus" + "0" * 12,
        parents={"source/books": "b" * 64},
        config={
            "sources": [
                {"kind": "books", "path": "/texts/books"},
                {"kind": "wikipedia", "path": "/texts/wiki"},
            ]
        },
        files=(),
    )
    (runs / "one" / "corpus").mkdir()
    artifact.write_manifest(str(runs / "one" / "corpus"), corpus)
    going = shown(runs / "one" / "early")["parents"]["checkpoint"]
    assert going["unfinished"]
    assert going["parents"]["dataset"]["artifact"] == str(dataset)
    assert shown(runs / "one" / "corpus")["parents"]["source/books"]["files"] == ["/texts/books"]
