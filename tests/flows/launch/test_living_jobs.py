"""Whether a TrainJob still trains in a directory: by the conditions that the cluster tells of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloze.core.errors import ClozeError
from cloze.labs.kubernetes import launcher

NOT_FOUND = 'Error from server (NotFound): trainjobs.trainer.kubeflow.org "j" not found'
Answers = dict[str, "list[dict[str, Any]] | str"]


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Answers:
    """By the TrainJob's name: its conditions, or what kubectl says instead."""
    found: Answers = {}

    def kubectl(*words: str, content: str = "") -> subprocess.CompletedProcess[str]:
        del content
        assert words[0] == "get"
        assert "--namespace=n" in words
        answer = found[words[2]]
        if isinstance(answer, str):
            return subprocess.CompletedProcess(words, 1, "", answer)
        return subprocess.CompletedProcess(
            words, 0, json.dumps({"status": {"conditions": answer}}), ""
        )

    monkeypatch.setattr(launcher, "_kubectl", kubectl)
    return found


def submitted(path: Path, *names: str) -> str:
    """A directory with the manifests of these TrainJobs, the oldest first."""
    place = path / "_logs" / "kubernetes"
    place.mkdir(parents=True)
    for number, name in enumerate(names):
        content = {"metadata": {"name": name, "namespace": "n"}}
        (place / f"{number}.yaml").write_text(yaml.safe_dump(content))
    return str(path)


def condition(kind: str, status: str) -> dict[str, Any]:
    return {"type": kind, "status": status}


@pytest.mark.parametrize("kind", ["Failed", "Complete"])
@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_condition_that_is_not_true_has_ended_nothing(
    answers: Answers, tmp_path: Path, kind: str, status: str
) -> None:
    answers["j"] = [condition("Suspended", "True"), condition(kind, status)]
    assert launcher.living(submitted(tmp_path, "j")) == ("j", "n")


@pytest.mark.parametrize("kind", ["Failed", "Complete"])
def test_one_that_is_true_has_ended_it(answers: Answers, tmp_path: Path, kind: str) -> None:
    other = {"Failed": "Complete", "Complete": "Failed"}[kind]
    answers["j"] = [condition(other, "False"), condition(kind, "True")]
    assert launcher.living(submitted(tmp_path, "j")) is None


def test_one_that_has_just_been_made_lives(answers: Answers, tmp_path: Path) -> None:
    answers["j"] = []
    assert launcher.living(submitted(tmp_path, "j")) == ("j", "n")


def test_an_older_one_that_lives_is_found_behind_one_that_ended(
    answers: Answers, tmp_path: Path
) -> None:
    answers |= {"old": [], "new": [condition("Failed", "True")], "last": NOT_FOUND}
    assert launcher.living(submitted(tmp_path, "old", "new", "last")) == ("old", "n")


def test_a_deleted_one_does_not_live(answers: Answers, tmp_path: Path) -> None:
    answers["j"] = NOT_FOUND
    assert launcher.living(submitted(tmp_path, "j")) is None


def test_a_cluster_that_does_not_answer_is_no_leave_to_train(
    answers: Answers, tmp_path: Path
) -> None:
    answers["j"] = "The connection to the server 10.0.0.1:6443 was refused"
    with pytest.raises(ClozeError, match="does not say whether TrainJob j still trains in .*6443"):
        launcher.living(submitted(tmp_path, "j"))


def test_where_none_was_submitted_none_lives(answers: Answers, tmp_path: Path) -> None:
    assert launcher.living(str(tmp_path)) is None
