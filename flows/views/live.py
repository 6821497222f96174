"""Stages at work: a live line each with bar, total, rate and time left, on standard error.

On a terminal it is rewritten in place, and above it stay notes, and a training's log lines that were measured; elsewhere one line says that
the stage begins, and notes and a training's log lines follow, not too many of them. What must be read at a glance is never squeezed: only the
figures at the end give way, at most `FEW` of them on a narrow terminal.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from flows.views.training_line import live_figures, training_line
from pipeline.core.humanize import short, si
from pipeline.core.reporting import Reporter

WIDE = 120  # columns from which there is room for a long bar, the time spent and more figures
FEW, MORE = 2, 4  # figures shown on a narrow and on a wide terminal
LINES_APART = 10.0  # seconds between a training's lines where nothing is rewritten in place; measured ones always come
FRAMES = ("note", "step", "warning")  # figures that are words: shown without their names, notes and warnings on lines that stay
CHOSEN = ("precision", "device", "engine", "micro_batch")  # by a training at its beginning: told like a note


def _fixed() -> Column:
    return Column(no_wrap=True)


class _Rate(ProgressColumn):
    """Units a second, since the stage began."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(f"{si(task.speed)} {task.fields.get('unit', '')}/s", style="progress.data.speed")


class _Left(ProgressColumn):
    """The time left, as `12:34` or `1:02:34`."""

    def render(self, task: Task) -> Text:
        left = task.time_remaining
        if task.total is None or left is None:
            return Text("")
        hours, rest = divmod(int(left), 3600)
        told = f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
        return Text(f"{told} left", style="progress.remaining")


class _Elapsed(ProgressColumn):
    """The time since the stage began, all its parts together."""

    def render(self, task: Task) -> Text:
        began = task.fields.get("began", time.monotonic())
        return Text(str(datetime.timedelta(seconds=int(time.monotonic() - began))), style="progress.elapsed")


class _Figures(ProgressColumn):
    """What the stage tells beside its progress, in the room that is left."""

    max_refresh = None

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("note", ""), style="dim", no_wrap=True, overflow="ellipsis")


def live_lines(screen: Console) -> Progress:
    """Where lines of stages can stand, one below the other; nothing on what is no terminal."""
    wide = screen.width >= WIDE
    columns: list[ProgressColumn] = [
        TextColumn("[bold cyan]{task.description}", table_column=_fixed()),
        BarColumn(bar_width=28 if wide else 10, table_column=_fixed()),
        TextColumn("{task.fields[count]}", table_column=_fixed()),
        _Rate(_fixed()),
        *([_Elapsed(_fixed())] if wide else []),
        _Left(_fixed()),
        _Figures(),
    ]
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


class StageDisplay(Reporter):
    """A stage's live line; a context manager and a `Reporter` in one."""

    def __init__(self, name: str, screen: Console, lines: Progress | None = None) -> None:
        """Args: lines: those that it stands among; None: it is alone."""
        self.name, self.screen = name, screen
        self._wide = screen.width >= WIDE
        self._own = lines is None
        self._progress = live_lines(screen) if lines is None else lines
        self._step: Any = None
        self._line_at = float("-inf")  # when the last log line was shown
        self._noted = ""  # the last note
        self._began = time.time()

    def __enter__(self) -> StageDisplay:
        if not self.screen.is_terminal:
            self.screen.print(f"{time.strftime('%H:%M:%S')} {self.name} …")
        self._task = self._progress.add_task(self.name, total=None, count="", unit="", note="starting", began=time.monotonic())
        if self._own:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._progress.stop()
        else:
            self._progress.remove_task(self._task)

    def progress(self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]) -> None:
        """Show progress; `figures["step"]` names a part of the stage, and its change restarts the bar."""
        if figures.get("step") != self._step:
            self._step = figures.get("step")
            self._progress.reset(self._task)
        count = f"{si(done)}/{si(total)} {unit}" if total else f"{si(done)} {unit}"
        note = self._note(figures)
        self._progress.update(self._task, completed=done, total=total, count=count, unit=unit, note=note)
        self._notes(figures)
        warning = figures.get("warning")
        if warning:
            self.screen.print(f"[yellow]warning:[/] {warning}")

    def metrics(self, values: Mapping[str, Any]) -> None:
        """A training's log line, to stay: measured ones, and others where there is no live one."""
        now = time.monotonic()
        if values.get("time", self._began) < self._began:  # of an earlier session, told again
            return
        if "heldout_loss" not in values and (self.screen.is_terminal or now - self._line_at < LINES_APART):
            return
        line = training_line(values, "" if self._own else self.name)
        if line:
            self._line_at = now
            self.screen.print(line, soft_wrap=True, markup=False, highlight=False)

    def _notes(self, figures: Mapping[str, Any]) -> None:
        """Lines that stay; what is said again and again, like that a host is waited for, once."""
        chosen = ", ".join(f"{name} {figures[name]}" for name in CHOSEN if name in figures)
        for told in (chosen if "precision" in figures else "", str(figures.get("note", ""))):
            if told and told != self._noted:
                self._noted = told
                self.screen.print(f"{'' if self._own else f'{self.name}: '}{told}", style="dim", markup=False, highlight=False)

    def _note(self, figures: Mapping[str, Any]) -> str:
        most = MORE if self._wide else FEW
        if training := live_figures(figures, most):
            return training
        numbers = [f"{name} {short(value)}" for name, value in figures.items() if name not in FRAMES]
        return "  ".join([*([str(figures["step"])] if "step" in figures else []), *numbers][:most])
