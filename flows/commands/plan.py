"""`cloze plan`: what a run would do, and why."""

from __future__ import annotations

from typing import Any

import click

from flows.commands.run_options import parameters_of, run_options, show_plan


@click.command()
@run_options
def plan(as_json: bool, **values: Any) -> None:
    """Show what a run of CONFIG would do, and why."""
    from flows.session import Session

    show_plan(Session(parameters_of(**values)), as_json)
