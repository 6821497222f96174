"""`cloze filter train`: good and bad documents in, a filter for the corpus stage out."""

from __future__ import annotations

import click

from flows.commands.corpus import sources_of
from flows.commands.spelling import Spelled
from flows.commands.stage_command import Given, StageCommand, run_stage


@click.group("filter")
def filter_() -> None:
    """Learned filters: what is wanted, told by examples."""


@filter_.command(
    cls=StageCommand,
    stage="filter",
    spelled={
        "good": Spelled("--good", sources_of, {"multiple": True, "required": True, "metavar": "KIND=PATH"}),
        "bad": Spelled("--bad", sources_of, {"multiple": True, "metavar": "KIND=PATH"}),
    },
)
def train(given: Given) -> None:
    """Learn to tell good documents from bad ones; use it by `cloze corpus --filter DIR`."""
    run_stage(given)
