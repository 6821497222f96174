"""A dry run of a night, and the night itself, say why a checkpoint is not evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.flows.commands.nightly import _show_preview
from cloze.flows.nightly import suite
from cloze.flows.nightly.nightly_run import nightly_run, preview
from cloze.flows.run.session import RunSession
from tests.flows.nightly.test_looking import training
from tests.flows.nightly.test_not_finite import runs as runs


@pytest.mark.parametrize(
    ("kinds", "why"),
    [
        (["newest", "milestones"], "not the newest of a training and no milestone"),
        (["newest"], "not the newest of a training"),
        (["milestones"], "no milestone"),
    ],
)
def test_a_dry_run_says_why_it_skips_as_the_night_does(
    runs: Path, capsys: pytest.CaptureFixture[str], kinds: list[str], why: str
) -> None:
    training(runs / "demo" / "pretrain-aaa", "a" * 64, [10, 20, 30, 40], milestones=(30,))
    settings = suite.load(overrides={"night": {"limit": 1, "checkpoints": kinds}})
    shown = preview(settings)
    _show_preview(shown)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert f"demo 20 skip: {why}" in lines
    if len(kinds) == 2:
        assert "demo 30 wait for the next night: night.limit is 1" in lines
    assert "given up" not in " ".join(lines)
    outcome = nightly_run(settings, run=lambda session: None)
    assert f"{len(shown['passed'])} skipped: {why}" in outcome.message


@pytest.mark.parametrize("steps", [[20], [10, 20, 30]])
def test_a_dry_run_and_the_night_count_what_was_given_up(
    runs: Path, capsys: pytest.CaptureFixture[str], steps: list[int]
) -> None:
    """Also beside checkpoints that are new."""
    settings = suite.load(overrides={"night": {"checkpoints": ["all"]}})

    def fail(session: RunSession) -> None:
        session.failures |= {step.name: RuntimeError("no space") for step in session.steps}

    training(runs / "demo" / "pretrain-aaa", "a" * 64, steps)
    for _ in range(3):
        nightly_run(settings, run=fail)
    training(runs / "other" / "pretrain-bbb", "b" * 64, [40])
    told = f"{len(steps)} given up after 3 failed evaluations, such as demo step {max(steps)}"
    _show_preview(preview(settings))
    shown = capsys.readouterr().out
    assert told in shown
    assert "other" in shown
    outcome = nightly_run(settings, run=lambda session: None)
    assert outcome.message.startswith("0 of 1 new checkpoints evaluated; ")
    assert told in outcome.message
    assert len(outcome.as_json()["given_up"]) == len(steps)
