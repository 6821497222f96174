"""The command track: `metrics.jsonl` of trainings, for a tracker, while they run or afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from cloze.core import storage
from cloze.core.errors import DataError
from cloze.core.humanize import agree
from cloze.core.places import runs_directory
from cloze.core.stages.stage import METRICS_LOG
from cloze.flows.commands.base.field_options import NameOf
from cloze.flows.commands.base.options import GroupedCommand, complete_targets, emit, json_option
from cloze.flows.tracking.trackers import TRACKERS, Tracker

STEP, TIME = "step", "time"  # keys of a line that are no metrics
SECONDS = 2.0  # between two looks at a run that goes on


@dataclass(slots=True)
class Training:
    """A training whose metrics go to a tracker.

    Attributes:
        step: last step that was sent.
        lines: number of lines that were sent.
        skipped: names of values that are no numbers.
    """

    path: str
    tracker: Tracker
    step: int = -1
    lines: int = 0
    skipped: set[str] = field(default_factory=set)

    def send(self) -> None:
        """Send the lines after the last step.

        A resumed training writes the lines after its checkpoint again, and these are the same.
        """
        for line in read_lines(self.path):
            if line[STEP] <= self.step:
                continue
            numbers = {
                name: float(value)
                for name, value in line.items()
                if name not in (STEP, TIME) and isinstance(value, (int, float))
            }
            self.skipped |= line.keys() - numbers.keys() - {STEP, TIME}
            self.tracker.log(line[STEP], float(line.get(TIME) or 0), numbers)
            self.step, self.lines = line[STEP], self.lines + 1
        self.tracker.flush()


def read_lines(path: str) -> Iterator[dict[str, Any]]:
    """Iterate over the lines of a log; the last one may still be incomplete."""
    content = storage.read_at_once(storage.join(path, METRICS_LOG))
    for text in content.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get(STEP), int):
            yield line


def follow(
    paths: Callable[[], dict[str, str]],
    begin: Callable[[str], Tracker],
    goes_on: Callable[[], bool],
    pause: Callable[[], None] = lambda: time.sleep(SECONDS),
) -> tuple[dict[str, Training], list[str]]:
    """Send the metrics of all trainings until `goes_on` is false; once if it is from the start.

    Args:
        paths: function that returns the artifacts as they are now, by name.
        begin: function that returns the tracker of a name.

    Returns:
        Trainings by name, and the names of artifacts without metrics.
    """
    trainings: dict[str, Training] = {}
    try:
        while True:
            again = goes_on()  # before the look: lines that come meanwhile are seen by the next one
            found = paths()
            for name, path in found.items():
                if storage.has_file(storage.join(path, METRICS_LOG)):
                    if name not in trainings:
                        trainings[name] = Training(path, begin(name))
                    trainings[name].send()
            if not again:
                return trainings, [name for name in found if name not in trainings]
            pause()
    finally:
        for training in trainings.values():
            training.tracker.close()


@click.command(cls=GroupedCommand)
@click.argument("target", shell_complete=complete_targets)
@click.option(
    "--to",
    "tracker",
    type=NameOf("cloze.flows.tracking.trackers:TRACKERS", "TRACKER"),
    required=True,
    help="Tracker: tensorboard, wandb, or one of a plug-in.",
)
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    help="Directory to write to; each training gets one in it. Default: the tracker's name.",
)
@click.option("--follow", "follows", is_flag=True, help="Go on until the run has ended.")
@json_option
def track(target: str, tracker: str, out: str | None, follows: bool, as_json: bool) -> None:
    """Write a run's metrics for TensorBoard or Weights & Biases.

    TARGET is a run, a node (RUN/NODE), or the directory of an artifact. MLflow has the metrics
    without this command.
    """
    from cloze.flows.run import status_file, targets

    directory, kind = Path(out or tracker), TRACKERS.find(tracker)
    run = targets.resolve(target).run

    def paths() -> dict[str, str]:
        found = targets.resolve(target).paths
        return {path.rstrip("/").rpartition("/")[2]: path for path in found}

    def goes_on() -> bool:
        record = status_file.newest(runs_directory() / run) if follows and run else None
        return record is not None and record["state"] == status_file.RUNNING

    trainings, others = follow(
        paths, lambda name: kind(directory / name, f"{run}/{name}".strip("/")), goes_on
    )
    if not trainings:
        raise DataError(
            f"{target} has no training with metrics yet ({METRICS_LOG}); name a run that has one, "
            f"or wait for it with --follow"
        )
    if as_json:
        emit({
            "directory": str(directory),
            "trainings": {name: own.lines for name, own in trainings.items()},
            "without_metrics": others,
            "skipped": sorted(set[str]().union(*(own.skipped for own in trainings.values()))),
        })  # fmt: skip
        return
    click.echo(describe(trainings, others, directory))


def describe(trainings: dict[str, Training], others: list[str], directory: Path) -> str:
    """Return what was written, and what was not."""
    lines = sum(own.lines for own in trainings.values())
    skipped = sorted(set[str]().union(*(own.skipped for own in trainings.values())))
    parts = [f"{agree(f'{len(trainings)} trainings, {lines:,} log lines')} in {directory}"]
    if others:
        parts.append(f"no metrics by step in {', '.join(others)}")
    if skipped:
        parts.append(f"values that are no numbers are left out ({', '.join(skipped)})")
    return "; ".join(parts)
