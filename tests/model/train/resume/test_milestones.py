"""Checkpoints that are kept beside the newest: milestones, and the last ones for merging."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cloze.core.errors import UsageError
from cloze.model.train.config import PretrainConfig
from tests.model.datasets import lines
from tests.model.train.ranks import config, here
from tests.model.train.resume.test_continuation import data as data
from tests.model.train.resume.test_continuation import logged, pretrain
from tests.model.train.resume.test_continuation import trunk as trunk


def test_milestones_in_words(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs one dataset that knows its words"):
        pretrain(data / "short", tmp_path / "none", steps=2, milestone_words=(10,))
    pretrain(data / "short", tmp_path / "plain", steps=6)
    tokens = [line["tokens"] for line in logged(tmp_path / "plain")]
    shutil.copytree(data / "short", tmp_path / "counted")
    manifest = tmp_path / "counted" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["summary"]["words_per_token"] = 0.5
    manifest.write_text(json.dumps(content))
    words = (tokens[1] // 2, tokens[3] // 2 - 1, 10**9)
    settings = {"milestone_words": words, "keep_for_merge": 1, "steps": 6}
    execution = {"keep_checkpoints": 1}
    run = pretrain(tmp_path / "counted", tmp_path / "run", execution=execution, **settings)
    assert kept(tmp_path / "run") == [2, 4, 6]
    assert run.manifest.summary["milestone_words"] == {
        str(words[0]): "checkpoints/step-00000002",
        str(words[1]): "checkpoints/step-00000004",
    }
    assert logged(tmp_path / "run") == logged(tmp_path / "plain")
    more = {"continue": str(tmp_path / "run")}
    settings = {"milestone_words": (*words, tokens[5]), "keep_for_merge": 1, "steps": 20}
    phase = pretrain(tmp_path / "counted", tmp_path / "phase", more, **settings)
    assert list(phase.manifest.summary["milestone_words"]) == [str(tokens[5])]


def test_milestones_are_saved_between_other_checkpoints_and_survive_them(
    data: Path, tmp_path: Path
) -> None:
    settings = config(steps=11, milestones=(3, 5, 10))
    here(
        settings,
        str(data / "short"),
        tmp_path / "run",
        stop_at=10,
        checkpoint_every=4,
        keep_checkpoints=1,
    )
    assert kept(tmp_path / "run") == [3, 5, 10]
    run = here(
        settings, str(data / "short"), tmp_path / "run", checkpoint_every=4, keep_checkpoints=1
    )
    assert kept(tmp_path / "run") == [3, 5, 10, 11]
    assert run.outcome is not None
    assert list(run.outcome.summary["milestones"]) == ["3", "5", "10"]


def test_the_last_tenths_of_a_training_stay_for_merging(
    data: Path, trunk: Path, tmp_path: Path
) -> None:
    """Of steps and of tokens, of a phase under a longer schedule, and through a stop between them;
    `cloze merge` takes three by default.
    """
    assert PretrainConfig().keep_for_merge == 3
    settings = config(steps=20, schedule_steps=40, keep_for_merge=3)
    begin = {"continue": str(trunk)}
    here(
        settings,
        str(data / "short"),
        tmp_path / "run",
        more=begin,
        stop_at=27,
        checkpoint_every=1,
        keep_checkpoints=1,
    )
    assert kept(tmp_path / "run") == [26, 27]
    run = here(
        settings,
        str(data / "short"),
        tmp_path / "run",
        more=begin,
        checkpoint_every=1,
        keep_checkpoints=1,
    )
    assert kept(tmp_path / "run") == [26, 28, 30]
    assert run.outcome is not None
    assert run.outcome.summary["milestones"] == {}  # nobody asked for them
    settings = config(steps=None, tokens=2500, keep_for_merge=2, log_every=1)
    here(settings, str(data / "short"), tmp_path / "tokens", stop_at=5)
    here(settings, str(data / "short"), tmp_path / "tokens")
    tokens = {line["step"]: line["tokens"] for line in lines(tmp_path / "tokens" / "metrics.jsonl")}
    nearly, whole = kept(tmp_path / "tokens")
    assert tokens[nearly - 1] < 2250 <= tokens[nearly] < tokens[whole]
    assert whole == max(tokens)


def kept(run: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())
