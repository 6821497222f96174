"""The fixtures of the presets' tests: GLUE's files, and presets with what a user must name."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.flows.graph import config as configs
from cloze.flows.graph.config import RunConfig
from cloze.flows.graph.overrides import parse
from tests.flows.presets.reading import OF_A_CHECKPOINT, SOURCES, WITHOUT_TEXT, Load
from tests.glue_files import write_glue


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GLUE's files, in a directory of tasks."""
    return write_glue(tmp_path_factory.mktemp("tasks") / "glue")


@pytest.fixture(scope="session")
def load(glue: Path) -> Load:
    """A preset's graph under some settings, with text or tasks where it needs them."""

    def loaded(name: str, *settings: str) -> RunConfig:
        given: list[str] = [SOURCES, *settings] if name in WITHOUT_TEXT else list(settings)
        if name in OF_A_CHECKPOINT:
            given = [f"finetune.data={glue.parent if name == 'transfer' else glue}", *given]
        return configs.load(name, parse(given, "section.key=value", sections=True))

    return loaded
