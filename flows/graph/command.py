"""Graph of a command: one node, whose inputs are paths and whose artifact has a given path.

`cloze pretrain --dataset W/dataset --out W/pretrain` is a run of this graph. Its records are in
`RUNS/.commands/HASH`, because the artifact may be in an object store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cloze.core import storage
from cloze.core.artifacts.lock import is_locked
from cloze.core.config import parse_config
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import NULL_REPORTER, BuildContext, Figures, Reporter
from cloze.flows.graph import stages
from cloze.flows.graph.nodes import Node

COMMANDS = ".commands"  # in the directory of all runs
STATUS = "_status"  # in a run's directory: its records
RETAINED_COMMANDS = 100  # commands whose records are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig:
    """Graph of a command; replaces a `RunConfig` in a session."""

    node: Node  # the only node; `node.out` is the artifact's directory
    directory: Path
    is_transient: bool = False  # the artifact is removed after its metrics are shown
    project: str | None = None  # the environment's
    left_out: Mapping[str, str] = field(default_factory=dict)  # as of a run; nothing

    @property
    def name(self) -> str:
        """The artifact's directory, which names the command in `cloze status`."""
        return self.node.out

    @property
    def nodes(self) -> dict[str, Node]:
        return {self.node.name: self.node}

    @property
    def values(self) -> dict[str, Any]:
        """The command's options that differ from the defaults, for the record."""
        return {
            self.node.stage: self.node.config.model_dump(mode="json", exclude_defaults=True),
            "inputs": {role: origin.path for role, origin in self.node.inputs.items()},
            "run": self.node.execution.model_dump(mode="json", exclude_defaults=True),
        }


def command_directory(runs: Path, out: str) -> Path:
    """Return the directory of the records of the command that builds the artifact at `out`."""
    digest = hashlib.sha256(storage.absolute(out).rstrip("/").encode()).hexdigest()
    return runs / COMMANDS / digest[:16]


def run_folders(runs: Path) -> list[Path]:
    """Return the directories whose subdirectories are runs: `runs`, and for `USER/NAME` `USER`."""
    below = (path for path in sorted(runs.glob("[!.]*")) if not os.path.isdir(path / STATUS))
    return [runs, *(path for path in below if any(path.glob(f"[!.]*/{STATUS}")))]


def run_directories(runs: Path) -> list[Path]:
    """Return the directories of all runs that were ever started, sorted by name."""
    found = (path for folder in run_folders(runs) for path in folder.glob(f"[!.]*/{STATUS}"))
    return sorted(path.parent for path in found)


def command_directories(runs: Path) -> list[Path]:
    """Return the record directories of all commands, oldest first."""
    with suppress(OSError):
        return sorted((runs / COMMANDS).iterdir(), key=lambda path: path.stat().st_mtime)
    return []


@contextmanager
def records_directory(runs: Path, out: str, *, is_transient: bool) -> Iterator[Path]:
    """Yield a directory for a command's records, and delete those of the oldest commands.

    The directory is temporary if the artifact is transient, if the artifact's directory contains
    the runs, or if the runs' directory is not writable.
    """
    directory = command_directory(runs, out)
    contains_runs = storage.is_local(out) and runs.resolve().is_relative_to(
        Path(storage.filesystem(out)[1]).resolve()
    )
    is_transient = is_transient or contains_runs
    with ExitStack() as stack:
        try:
            if not is_transient:
                directory.mkdir(parents=True, exist_ok=True)
                os.utime(directory)
        except OSError:
            is_transient = True
        if is_transient:
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="cloze-")))
        for old in command_directories(runs)[:-RETAINED_COMMANDS]:
            if not is_locked(str(old)):
                shutil.rmtree(old, ignore_errors=True)
        yield directory


def run_tool(
    name: str,
    values: Mapping[str, Any],
    inputs: Mapping[str, str],
    report: Reporter = NULL_REPORTER,
    where: str | None = None,
) -> dict[str, Any]:
    """Run the tool stage `name` in a temporary directory and return its summary.

    `where`: config section of the values, for messages.
    """
    stage = stages.executable(name)
    config = parse_config(stage.config, values, where or name)
    with tempfile.TemporaryDirectory(prefix="cloze-") as directory:
        build = BuildContext(
            path=directory,
            inputs=dict(inputs),
            execution=Execution(),
            fingerprint="",
            report=report,
        )
        return stage.run(config, build).summary


def run_inference(
    name: str,
    values: Mapping[str, Any],
    checkpoint: str,
    receive: Callable[[Sequence[Mapping[str, Any]]], object],
    report: Reporter = NULL_REPORTER,
) -> dict[str, Any]:
    """Run the inference stage `name` on a checkpoint and return its summary.

    See `cloze.model.use.verb`.

    `receive`: called with each batch of predictions; an exception ends the stage.
    """

    class Receiving(Reporter):
        def predictions(self, values: Sequence[Mapping[str, Any]]) -> None:
            receive(values)

        def progress(self, done: float, total: float | None, unit: str, figures: Figures) -> None:
            report.progress(done, total, unit, figures)

    return run_tool(name, values, {"checkpoint": checkpoint}, Receiving())
