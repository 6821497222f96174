"""A cleaning step of another package: its option, place, warning, meaning and fingerprint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.installing import declared, install

ROWS = (
    '{"steps": {"short": Row("cloze_short.it:STEP", before="letters", version=%d),'
    ' "ready": Row("cloze_short.it:PREPARED"), "broken": Row("cloze_short.broken:STEP")}}'
)
STEPS = '''
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import CleaningResult, CleaningStep, drop_if


class ShortOptions(CorpusOptions):
    """Of the step `short`."""

    shortest: int = 0
    """Characters."""


class ReadyOptions(CorpusOptions):
    """Of the step `ready`."""

    made_ready: bool = False
    """Whether."""


def _build(options):
    limit = options.shortest
    return drop_if(lambda one: "short" if len(one.text) < limit else None) if limit else None


STEP = CleaningStep(options=ShortOptions, build=_build, reasons={"short": "of few characters"})
PREPARED = CleaningStep(options=ReadyOptions, build=lambda *_: None, prepare=lambda *_: {})
'''
ASKED = """
import json
from cloze.core.config import parse_config
from cloze.core.plugins import faults
from cloze.pipeline.corpus import stage
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.steps.chain import STEPS, build_steps

def made(**values):
    source = {"kind": "text", "path": __file__}
    config = parse_config(CorpusConfig, {"sources": [source], **values}, "corpus")
    lineage = stage.STAGE.lineage(config, {})[0]
    return [name for name, _ in build_steps(config)], sorted(config.plugin_rows()), lineage

print(json.dumps({
    "off": made(), "on": made(shortest=3), "ready": made(made_ready=True),
    "names": list(STEPS), "warning": stage.most_dropped({"short": 8}, 2), "faults": list(faults),
}))
"""


def ask(path: Path) -> dict[str, object]:
    """What a process with that directory on its path says."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (path, REPOSITORY / "src", REPOSITORY))),
    }
    script = path.parent / "asked.py"
    script.write_text(ASKED)
    run = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    told: dict[str, object] = json.loads(run.stdout)
    return told


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Answers with version 1 and 2 of the step."""
    base = tmp_path_factory.mktemp("steps")
    answers = []
    for version in (1, 2):
        place = base / f"v{version}"
        install(place, "cloze-short", declared("short", ROWS % version), {"it": STEPS})
        answers.append(ask(place))
    return answers


def test_a_step_is_in_its_place_and_sentences_stay_last(versions: list[dict[str, object]]) -> None:
    names = versions[0]["names"]
    assert names[names.index("short") + 1] == "letters"  # type: ignore[attr-defined, index]
    assert names[-1] == "sentences"  # type: ignore[index]
    assert "short" in versions[0]["on"][0]  # type: ignore[index]


def test_what_it_drops_is_warned_of_with_its_option(versions: list[dict[str, object]]) -> None:
    assert "short dropped 8 of 10 documents" in str(versions[0]["warning"])
    assert "corpus.shortest" in str(versions[0]["warning"])


def test_only_a_step_that_is_on_enters_the_fingerprint(versions: list[dict[str, object]]) -> None:
    first, second = versions
    for name, rows in {"off": [], "on": ["steps/short"], "ready": ["steps/ready"]}.items():
        assert first[name][1] == rows, name  # type: ignore[index]
    assert first["off"][2] == second["off"][2]  # type: ignore[index]
    assert first["ready"][2] == second["ready"][2]  # type: ignore[index]
    assert first["on"][2] != second["on"][2]  # type: ignore[index]


def test_a_broken_step_is_left_out_and_said(versions: list[dict[str, object]]) -> None:
    assert "No module named 'cloze_short.broken'" in str(versions[0]["faults"])
