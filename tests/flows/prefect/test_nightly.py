"""The nightly flow: what it asks of a run's config."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.prefect.nightly import NightlySession
from pipeline.core.errors import UsageError


def test_a_night_without_its_sections_is_told(tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("corpus: {sources: [{kind: docstrings, path: stdlib}]}\n")
    with pytest.raises(UsageError, match="'mine' has no section finetune, which the night runs"):
        NightlySession(str(config), {})
