"""A dry run of a night, and the night itself, say why a checkpoint is not evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.flows.commands.nightly import _show_preview
from cloze.flows.nightly import suite
from cloze.flows.nightly.nightly_run import nightly_run, preview
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
    outcome = nightly_run(settings, run=lambda session: None)
    assert f"{len(shown['passed'])} skipped: {why}" in outcome.message
