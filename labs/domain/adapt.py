"""Command `adapt`: the preset of the same name for a checkpoint and the texts of a domain."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from cloze.core import storage
from cloze.core.errors import DataError, UsageError
from cloze.flows.commands.base.field_options import Count, NameOf
from cloze.flows.commands.base.options import json_option, parsing
from cloze.flows.commands.data_stages import parse_sources
from cloze.flows.commands.run import PREFECT, plan_run, show_plan, start


@click.command(context_settings={"show_default": True})
@click.option(
    "--from",
    "origin",
    required=True,
    metavar="PATH",
    help="Checkpoint to adapt: an artifact that contains one, or a Hugging Face directory.",
)
@click.option(
    "--source",
    "sources",
    required=True,
    multiple=True,
    metavar="KIND=PATH",
    callback=parsing(parse_sources),
    help="Texts of the domain, as in `cloze corpus`. Repeatable.",
)
@click.option(
    "--general",
    multiple=True,
    metavar="KIND=PATH",
    callback=parsing(parse_sources),
    help="General texts, a fifth of the rows, against forgetting. Repeatable. Default: none, so"
    " forgetting is not measured.",
)
@click.option(
    "--add",
    "words",
    type=Count(min=0),
    default=1000,
    metavar="N",
    help="Words of the domain to add.",
)
@click.option(
    "--steps", type=Count(min=1), default=2000, metavar="N", help="Optimizer steps of the training."
)
@click.option(
    "--detour",
    type=Count(min=0),
    default=0,
    metavar="N",
    help="Steps that read from left to right first, of a checkpoint that was pretrained with clm.",
)
@click.option(
    "--task",
    type=NameOf("cloze.model.tasks.table:TASKS"),
    help="Task to fine-tune before and after, with 3 seeds.",
)
@click.option("--data", type=click.Path(), help="Files of the task.")
@click.option(
    "--seeds",
    type=Count(min=1, max=100),
    default=1,
    metavar="N",
    help="Trainings; the report has means.",
)
@click.option("-o", "--out", required=True, metavar="DIR", help="Directory of the run.")
@click.option(
    "--set",
    "texts",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a config value of the preset. Repeatable.",
)
@json_option
@click.option("-n", "--dry-run", "dry_run", is_flag=True, help="Print the plan and exit.")
@PREFECT
def adapt(
    out: str,
    texts: tuple[str, ...],
    as_json: bool,
    dry_run: bool,
    prefect: bool | None,
    **choices: Any,
) -> None:
    """Train a checkpoint further on the texts of a domain.

    Adds words of the domain to the vocabulary, and reports bits per byte in and out of the domain,
    tokens per word, and a task's score, before and after. All steps are nodes of the preset adapt.
    """
    from cloze.flows.graph.overrides import parse

    if storage.has_scheme(out):
        raise UsageError(
            f"--out ({out}) must be a local directory; give one, and set CLOZE_STORE to a URL to "
            f"have the artifacts in a store"
        )
    directory = Path(out).resolve()
    own = {"name": directory.name, **_settings(**choices)}
    settings = [*(f"{key}={json.dumps(value)}" for key, value in own.items()), *texts]
    overrides = parse(settings, "section.key=value, such as pretrain.steps=200", sections=True)
    with _runs_in(directory.parent):
        session = plan_run({"config": "adapt", "overrides": overrides})
        if dry_run:
            show_plan(session, as_json)
        else:
            start(session, prefect=prefect, as_json=as_json)


@contextmanager
def _runs_in(directory: Path) -> Iterator[None]:
    """Keep the runs of this command, and of the processes it starts, in a directory."""
    before = os.environ.get("CLOZE_RUNS_DIR")
    os.environ["CLOZE_RUNS_DIR"] = str(directory)
    try:
        yield
    finally:
        del os.environ["CLOZE_RUNS_DIR"]
        if before is not None:
            os.environ["CLOZE_RUNS_DIR"] = before


def _check_origin(origin: str, path: str) -> None:
    """Raise DataError unless `path` is a checkpoint, or an artifact that has one."""
    from cloze.core.artifacts import artifact, checkpoints

    if checkpoints.is_checkpoint(path) or checkpoints.complete_steps(path):
        return
    manifest = artifact.find_manifest(path)
    if manifest is None or not manifest.summary.get("checkpoint"):
        what = f"is the artifact of a {manifest.stage}" if manifest else "has no checkpoint"
        raise DataError(
            f"--from {origin} {what}; give a checkpoint, RUN/pretrain or a Hugging Face directory"
        )


def _settings(
    *,
    origin: str,
    sources: list[dict[str, Any]],
    general: list[dict[str, Any]] | None,
    words: int,
    steps: int,
    detour: int,
    task: str | None,
    data: str | None,
    seeds: int,
) -> dict[str, Any]:
    """Return config values by dotted key."""
    from cloze.flows.run.targets import resolve_path

    if bool(task) != bool(data):
        raise UsageError("--task and --data belong together; give both, or none")
    values: dict[str, Any] = {}
    checkpoint = storage.absolute(resolve_path(origin, "--from "))
    is_hub = storage.exists(storage.join(checkpoint, "config.json")) and not storage.exists(
        storage.join(checkpoint, "checkpoint.json")
    )
    if not is_hub:
        _check_origin(origin, checkpoint)
    if is_hub:
        values["import.directory"] = checkpoint
    before = "import" if is_hub else checkpoint
    values |= {
        "corpus.sources": sources,
        "pretrain.steps": steps,
        "pretrain.checkpoint": before,
        "likelihood.matrix.row.before.checkpoint": before,
    }
    if words:
        values |= {"extend-vocab.base": checkpoint, "extend-vocab.add": words}
    else:
        values |= {"extend-vocab": False, "vocab.import_path": checkpoint, "vocab.corpus": "corpus"}
    if general:
        values["corpus@general.sources"] = general
    else:
        values |= {
            "corpus@general": False,
            "dataset@general": False,
            "pretrain.dataset": "dataset",
            "pretrain.mixture": {},
            "likelihood.matrix.text.general": False,
        }
    if detour:
        values |= {
            "pretrain@detour.objectives": ["clm"],
            "pretrain@detour.steps": detour,
            "pretrain.checkpoint": "pretrain@detour",
            "pretrain@detour.checkpoint": before,
        }
    if task:
        values |= {
            "finetune.data": data,
            "finetune.matrix.task": {task: {"task": task}},
            "finetune.matrix.row.before.checkpoint": before,
        }
    else:
        values["finetune"] = False
    if seeds > 1:
        values["pretrain.matrix.seed"] = list(range(1, seeds + 1))
    return values
