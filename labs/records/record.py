"""Command `record`: check trainings against a record book, and enter a record."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloze.core import storage
from cloze.core.errors import DataError, UsageError
from cloze.flows.commands.base.field_options import Count
from cloze.flows.commands.base.options import complete_targets, emit, json_option
from cloze.flows.commands.base.stage_command import StageArguments, run_stage

if TYPE_CHECKING:
    from cloze.core.stages.execute import BuildResult

ALL_ROWS, MASKED = 1 << 30, ("mlm", "mntp")  # objectives that predict the masked tokens
TOLERANCE = 0.002  # nats by which the loss of one checkpoint may differ between machines


@click.command()
@click.argument("paths", nargs=-1, metavar="[RUN]...", shell_complete=complete_targets)
@click.option(
    "--book",
    type=click.Path(path_type=Path),
    default="benchmarks/records",
    metavar="DIR",
    help="Directory of the book. Default: benchmarks/records.",
)
@click.option("--dataset", metavar="PATH", help="The book's dataset artifact, to score RUNs on.")
@click.option("--track", metavar="NAME", help="Track of the book whose rules the RUNs follow.")
@click.option("--enter", metavar="TEXT", help="Write the RUNs into the book as a record: its name.")
@click.option(
    "--lines-added",
    "lines",
    type=Count(min=0),
    default=0,
    metavar="N",
    help="Product lines that the record adds to those of the last one. Default: 0.",
)
@json_option
def record(
    paths: tuple[str, ...],
    book: Path,
    dataset: str | None,
    track: str | None,
    enter: str | None,
    lines: int,
    as_json: bool,
) -> None:
    """Check trainings against a record book; enter a record.

    Without RUN, all records are verified by their logs, and the tables are printed in Markdown. A
    RUN is an artifact of pretrain or merge. Its last checkpoint is scored on all held-out rows. The
    RUNs of a record must have the losses of the book; others are judged by the rules of the track.
    """
    from cloze.flows.run.targets import resolve_path
    from cloze.labs.records import record_book

    content = record_book.Book.load(book)
    entries = content.verify(book)
    if not paths:
        if as_json:
            rows = [{**entry.record.model_dump(), "p": entry.p} for entry in entries]
            emit({"records": rows})
        else:
            click.echo("\n".join(record_book.markdown(content, entries)))
        return
    if dataset is None or track is None:
        raise UsageError("RUNs are scored on --dataset by the rules of a --track; give both")
    commit = "" if enter is None else _commit()
    directories, dataset = [resolve_path(path) for path in paths], resolve_path(dataset)
    if record_book.content_hash(dataset) != content.heldout:
        raise UsageError(f"{dataset} is not the dataset of the book; build it as its page says")
    evidences: list[record_book.Evidence] = [
        {"artifacts": record_book.collect(path), "loss": 0.0} for path in directories
    ]
    for path, evidence in zip(directories, evidences, strict=True):
        content.run_of(track, evidence)  # rules first: scoring takes longer
        evidence["loss"] = _loss(path, dataset)
    date, name = f"{datetime.now(timezone.utc):%Y-%m-%d}", enter or "entry"
    new = record_book.Record(track=track, name=name, date=date, commit=commit, lines=lines, logs=[])
    runs = [content.run_of(track, evidence) for evidence in evidences]
    same_track = [one for one in entries if one.record.track == track]
    known = {run.checkpoint: (one.record.name, run) for one in same_track for run in one.runs}
    if enter is None and all(run.checkpoint in known for run in runs):
        for run in runs:
            name, entered = known[run.checkpoint]
            if abs(run.loss - entered.loss) > TOLERANCE:
                raise DataError(f"seed {run.seed} has loss {run.loss}, {name!r} {entered.loss}")
        verdict = f"as {name!r} in the book"
    else:
        p = content.judge(new, evidences, entries).p
        verdict = f"a record of {track}" + ("" if p is None else f", p = {p:.2g}")
    if enter is not None:
        content.enter(new, evidences, book)
    if as_json:
        emit({"verdict": verdict, "losses": [run.loss for run in runs]})
        return
    for path, run in zip(paths, runs, strict=True):
        click.echo(f"{path}: seed {run.seed}, {run.steps:,} steps, {run.loss:.4f} nats")
    click.echo(verdict)


def _loss(path: str, dataset: str) -> float:
    """Return the loss of a run's last checkpoint on all held-out rows of a dataset, in nats."""
    losses: list[float] = []

    def keep(result: BuildResult) -> dict[str, Any]:
        summary = result.manifest.summary
        scored = storage.read_json(storage.join(result.artifact, summary["losses"]))
        objective = scored["objective"]
        if objective not in MASKED:
            raise UsageError(f"{path} is scored by {objective}; train it last by {MASKED}")
        losses.append(summary["metrics"]["heldout_loss"])
        return {}

    run_stage(
        StageArguments(
            stage="perplexity",
            config={"rows": ALL_ROWS, "precision": "fp32"},
            inputs={"checkpoint": path, "dataset": dataset},
            transient=True,
        ),
        keep,
    )
    return losses[0]


def _commit() -> str:
    """Return the commit of this program; raise `UsageError` if its files were modified."""
    from cloze.flows.tracking import metadata

    tags = metadata.tags()
    commit = tags.get("mlflow.source.git.commit")
    if commit is None or tags["cloze.modified"] == "true":
        raise UsageError("this program is no unchanged git checkout; commit its changes first")
    return commit
