"""`cloze logs`: the end of what a stage's processes have said, and its last lines of metrics."""

from __future__ import annotations

import json
from pathlib import Path

import click

FINGERPRINT = 12  # letters of it in a directory's name
METRICS = "metrics.jsonl"  # in the artifact of a training: one line a logged step


@click.command()
@click.argument("what")
@click.option("--lines", type=click.IntRange(min=1), default=50, show_default=True, help="Last lines of each log.")
def logs(what: str, lines: int) -> None:
    """Print the end of the logs of WHAT: an artifact's path, a run, a node (RUN/NODE, such as sample/finetune@sst2-1), or a stage.

    Of a run, and of a stage or node that several runs have, the one that wrote last.
    """
    from pipeline.core.worker import LOGS

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
    from pipeline.core.errors import DataError, did_you_mean
    from pipeline.core.worker import LOGS, local_directory

    given = local_directory(what)
    if given.is_dir() and any((given / LOGS).glob("*.log")):
        return given
    runs = plan.runs_directory()
    found = [log for place in _meant(what, runs) for log in (place / LOGS).glob("*.log")]
    newest = max(found, key=lambda log: log.stat().st_mtime_ns, default=None)
    if newest is None:
        nodes = {name for run in _names(runs) for name in (run, *(f"{run}/{node}" for node in _nodes(runs / run)))}
        near = did_you_mean(what, {*nodes, *stages.TABLE})
        raise DataError(
            f"{what} has no logs ({LOGS}/ is missing or empty); name a run, a node of one (sample/finetune@sst2-1), a stage, or an"
            f" artifact, such as runs/demo/pretrain: {near}"
        )
    return newest.parent.parent


def _meant(what: str, runs: Path) -> list[Path]:
    """The directories that a run's name means, or a node's, section's or stage's in all runs, or in the one before the slash."""
    run, _, node = what.rpartition("/")
    if not run and node in _names(runs):
        return [place for places in _nodes(runs / node).values() for place in places]
    return [
        place
        for name in ([run] if run else sorted(_names(runs)))
        for known, places in _nodes(runs / name).items()
        if known == node or known.partition("@")[0] == node or ("@" in node and known.startswith(f"{node}-"))
        for place in places
    ]


def _nodes(run: Path) -> dict[str, list[Path]]:
    """The directories of each node below a run's, `NODE-FINGERPRINT`."""
    found: dict[str, list[Path]] = {}
    for place in run.glob("*/"):
        name, dash, fingerprint = place.name.rpartition("-")
        if dash and len(fingerprint) == FINGERPRINT and not place.is_symlink():
            found.setdefault(name, []).append(place)
    return found


def _names(runs: Path) -> set[str]:
    return {place.name for place in runs.glob("*/") if not place.name.startswith(".")}


def _end(path: Path, lines: int) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]


def _figures(line: str) -> str:
    """A line of metrics as a person reads it; one that is still being written, as it is."""
    from flows.views.training_line import training_line
    from pipeline.core.humanize import short

    try:
        values = json.loads(line)
    except ValueError:
        return line
    figures = "  ".join(f"{name} {short(value)}" for name, value in values.items() if name not in ("step", "time"))
    return training_line(values) or f"step {values.get('step')}  {figures}"
