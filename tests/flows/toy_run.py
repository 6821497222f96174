"""A run of two toy stages that run in this process: `letters` writes a file, `count` reads it. Each
writes down that it ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.core import storage
from cloze.core.config import InputPath, StageConfig
from cloze.core.plugins import Table
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult

LETTER = ["a"]  # what `letters` writes: a change that no fingerprint shows
RAN: list[str] = []  # the stages that ran, in order
ROWS = {"letters": "tests.flows.toy_run:LETTERS", "count": "tests.flows.toy_run:COUNT"}
TABLE: Table[Stage] = Table("toys", "stage", ROWS)


class LettersConfig(StageConfig):
    """Which letters."""

    size: int = 3
    """How many."""

    source: InputPath | None = None
    """A file that they are taken from."""

    told: dict[str, Any] | None = None
    """A training's log line, that it reports."""


class CountConfig(StageConfig):
    """What is counted, and by what."""

    model: dict[str, Any] | None = None
    fault: str | None = None
    """A file that makes the stage fail once: it is removed then."""

    @classmethod
    def expand_shorthand(cls, field: str, value: Any) -> Mapping[str, Any] | None:
        return {"preset": value} if field == "model" else None


def write_letters(config: LettersConfig, build: BuildContext) -> StageResult:
    RAN.append("letters")
    text = storage.read_text(config.source) if config.source else LETTER[0] * config.size
    storage.write_bytes(build.file("letters.txt"), text.encode())
    build.report.progress(1, 1, "letters", {"step": "writing"})
    if config.told:
        build.report.metrics(config.told)
    return StageResult(rows=len(text), summary={"file": "letters.txt", "letters": len(text)})


def count_letters(config: CountConfig, build: BuildContext) -> StageResult:
    RAN.append("count")
    if config.fault and Path(config.fault).exists():
        Path(config.fault).unlink()
        raise RuntimeError("the file that forbids it was there")
    text = storage.read_text(storage.join(build.inputs["letters"], "letters.txt"))
    storage.write_bytes(build.file("count.txt"), str(len(text)).encode())
    return StageResult(summary={"letters": len(text)})


LETTERS = Stage(
    name="letters",
    version=1,
    config=LettersConfig,
    run=write_letters,
    outputs=("file",),
    headline=lambda summary: f"{summary['letters']} letters",
    comparison_metrics=("letters",),
)
COUNT = Stage(
    name="count",
    version=1,
    config=CountConfig,
    run=count_letters,
    inputs={"letters": InputSpec(kinds=("letters",), required=True)},
    comparison_metrics=("letters",),
)
