"""Run a tool stage that writes no artifact (fill-mask, explain, …) in a process of its own, and return its summary."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flows.graph import stages
from pipeline.core.config import parse_config
from pipeline.core.execution import Execution
from pipeline.core.reporting import SILENT, Reporter
from pipeline.core.stage import Build


def run_tool(
    name: str, values: Mapping[str, Any], inputs: Mapping[str, str], report: Reporter = SILENT, where: str | None = None
) -> dict[str, Any]:
    """The summary of tool stage `name`; raises as a stage does.

    Args:
        where: the section that the values come from, for messages.
    """
    stage = stages.stage(name)
    config = parse_config(stage.config, values, where or name)
    with tempfile.TemporaryDirectory(prefix="cloze-") as directory:
        build = Build(path=directory, inputs=dict(inputs), execution=Execution(), fingerprint="", report=report)
        return stage.run(config, build).summary


def run_verb(
    name: str, values: Mapping[str, Any], checkpoint: str, receive: Callable[[Sequence[Mapping[str, Any]]], object]
) -> dict[str, Any]:
    """Ask verb `name` of a checkpoint; see `model.use.verb`.

    Args:
        values: the verb's config.
        receive: called with the answers as they come; what it raises ends the verb.

    Returns:
        The verb's summary.
    """

    class Receiving(Reporter):
        def records(self, values: Sequence[Mapping[str, Any]]) -> None:
            receive(values)

    return run_tool(name, values, {"checkpoint": checkpoint}, Receiving())
