"""`cloze logs`: the end of what a stage's processes have said, and its last lines of metrics."""

from __future__ import annotations

import json
from pathlib import Path

import click

METRICS = "metrics.jsonl"  # in the artifact of a training: one line a logged step


@click.command()
@click.argument("what")
@click.option("--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Last lines of each log.")
def logs(what: str, lines: int) -> None:
    """Print the end of the logs of WHAT: an artifact's path, a run's name, or a stage's name.

    Of a run, and of a stage that several runs have, the one that wrote last.
    """
    from flows.graph.launch import LOGS

    directory = _find(what)
    for log in sorted((directory / LOGS).glob("*.log")):
        click.echo(f"==> {log} <==")
        for line in _end(log, lines):
            click.echo(line)
    if (directory / METRICS).exists():
        click.echo(f"==> {directory / METRICS} <==")
        for line in _end(directory / METRICS, min(lines, 10)):
            click.echo(_figures(line))


def _find(what: str) -> Path:
    """The directory whose logs are meant."""
    from flows.graph import plan, stages
    from flows.graph.launch import LOGS, local_directory
    from pipeline.core.errors import DataError, did_you_mean

    given = local_directory(what)
    if given.is_dir() and any((given / LOGS).glob("*.log")):
        return given
    runs = plan.runs_directory()
    run, _, stage = what.rpartition("/")
    if what in stages.TABLE or (stage in stages.TABLE and run in _names(runs)):
        pattern = f"{run or '*'}/{stage}-*/{LOGS}/*.log"
    else:
        pattern = f"{Path(what).name}/*/{LOGS}/*.log"
    newest = max(runs.glob(pattern), key=lambda log: log.stat().st_mtime_ns, default=None)
    if newest is None:
        near = did_you_mean(what, {*_names(runs), *stages.TABLE})
        raise DataError(
            f"{what} has no logs ({LOGS}/ is missing or empty); name a run, a stage, or an artifact, such as runs/demo/pretrain: {near}"
        )
    return newest.parent.parent


def _names(runs: Path) -> set[str]:
    return {place.name for place in runs.glob("*/") if not place.name.startswith(".")}


def _end(path: Path, lines: int) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


def _figures(line: str) -> str:
    """A line of metrics as a person reads it; one that is still being written, as it is."""
    from pipeline.core.humanize import short

    try:
        values = json.loads(line)
    except ValueError:
        return line
    figures = "  ".join(f"{name} {short(value)}" for name, value in values.items() if name not in ("step", "time"))
    return f"step {values.get('step')}  {figures}"
