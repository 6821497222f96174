"""What a person sees: the stage at work with rate and time left, then a table of stages.

All of it goes to standard error. On a terminal it is a live display, elsewhere one line as each stage begins and ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from flows.graph import stages
from flows.graph.plan import Step
from pipeline.core.artifact import Manifest
from pipeline.core.execute import Result
from pipeline.core.humanize import duration, short, si
from pipeline.core.reporting import Reporter


def console() -> Console:
    return Console(stderr=True, highlight=False)


class _Rate(ProgressColumn):
    """Units a second, since the stage began."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{si(task.speed)} {task.fields.get('unit', '')}/s", style="progress.data.speed")


class StageDisplay(Reporter):
    """A stage's live line; a context manager and a `Reporter` in one."""

    def __init__(self, name: str, screen: Console) -> None:
        self.name, self.screen = name, screen
        self.figures: dict[str, Any] = {}
        self._progress = Progress(
            TextColumn("[bold cyan]{task.description:<10}"),
            BarColumn(bar_width=28),
            TextColumn("{task.fields[count]:>17}"),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            TextColumn("[dim]{task.fields[note]}"),
            console=screen,
            transient=True,
            disable=not screen.is_terminal,
        )
        self._task = self._progress.add_task(name, total=None, count="", unit="", note="starting")
        self._step: Any = None

    def __enter__(self) -> StageDisplay:
        if not self.screen.is_terminal:
            self.screen.print(f"{time.strftime('%H:%M:%S')} {self.name} …")
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        """Show progress; `figures["step"]` names a part of the stage, and its change restarts the bar."""
        if figures.get("step") != self._step:
            self._step = figures.get("step")
            self._progress.reset(self._task)
        self.figures.update(figures)
        count = f"{si(done)}/{si(total)} {unit}" if total else f"{si(done)} {unit}"
        note = "  ".join(f"{key} {short(value)}" for key, value in figures.items())
        self._progress.update(self._task, completed=done, total=total, count=count, unit=unit, note=note)
        warning = figures.get("warning")
        if warning:
            self.screen.print(f"[yellow]warning:[/] {warning}")


def headline(manifest: Manifest) -> str:
    """The one or two figures that say most about a stage's result."""
    return stages.stage(manifest.stage).headline(manifest.summary)


def done_line(result: Result) -> str:
    how = "cached" if result.cached else duration(result.seconds)
    return f"[green]✓[/] [bold]{result.manifest.stage:<9}[/] {how:>12}  {headline(result.manifest)}"


def result_table(results: Iterable[Result]) -> Table:
    """Stage, time, rows, result, and the link that leads to the artifact."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title, justify in (("stage", "left"), ("time", "right"), ("rows", "right"), ("result", "left"), ("artifact", "left")):
        table.add_column(title, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for result in results:
        manifest = result.manifest
        spent = f"cached ({duration(manifest.seconds)})" if result.cached else duration(manifest.seconds)
        rows = f"{manifest.rows:,}" if manifest.rows else ""
        table.add_row(manifest.stage, spent, rows, headline(manifest), str(Path(result.artifact).parent / manifest.stage))
    return table


def plan_table(steps: Iterable[Step]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("stage", "what", "why", "last time", "artifact"):
        table.add_column(title, overflow="fold")
    for step in steps:
        last = duration(step.last_seconds) if step.last_seconds is not None else "–"
        what = "[dim]nothing to do[/]" if step.cached else "[bold yellow]run[/]"
        table.add_row(step.name, what, step.why, last, step.artifact)
    return table
