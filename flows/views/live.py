"""Live progress of stages on standard error, and log lines of trainings in 80 columns.

`docs/reference/metrics.md` lists the names of all metrics.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from cloze.core.humanize import format_count, format_number
from cloze.core.stages.stage import Reporter

WIDTH = 80
_OF_ONE = "_loss"  # suffix of one objective's loss
SHOWN: tuple[
    tuple[str, str, Callable[[float], str]], ...
] = (  # by priority: what does not fit is left out
    ("loss", "loss", "{:.3f}".format),
    ("heldout_loss", "held out", "{:.3f}".format),
    ("learning_rate", "lr", "{:.1e}".format),
    ("tokens_per_second", "tok/s", format_count),
    ("mfu", "mfu", "{:.0%}".format),
    ("grad_norm", "|g|", "{:.2g}".format),
    ("data_wait", "waits", "{:.0%}".format),
)


def training_line(values: Mapping[str, Any], name: str = "") -> str:
    """Return `step 1,200  loss 6.512  held out 6.431  lr 9.8e-05  tok/s 18.2k  mfu 41%`.

    With several objectives, their losses follow the total loss. Empty if `values` is not a
    training's log entry.
    """
    if "step" not in values or "learning_rate" not in values:
        return ""
    line = f"{name} step {values['step']:,}".lstrip()
    for metric in _parts({**values, **_objectives(values)}):
        if len(line) + 2 + len(metric) <= WIDTH:
            line += f"  {metric}"
    return line


def live_figures(values: Mapping[str, Any], most: int) -> str:
    """Return the first `most` metrics of a training's log entry; empty for other entries."""
    return "  ".join(islice(_parts(values), most)) if "learning_rate" in values else ""


def _objectives(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the total loss with the losses of several objectives; empty for a single objective."""
    losses = {
        name: value
        for name, value in values.items()
        if name.endswith(_OF_ONE) and not name.startswith("heldout_")
    }
    texts = [
        f"{name.removesuffix(_OF_ONE)} {value:.3f}"
        for name, value in losses.items()
        if isinstance(value, float)
    ]
    return (
        {"loss": "  ".join([f"loss {values['loss']:.3f}", *texts])}
        if len(texts) > 1 and "loss" in values
        else {}
    )


def _parts(values: Mapping[str, Any]) -> Iterator[str]:
    for name, label, format_value in SHOWN:
        value = values.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, (int, float)):
            yield f"{label} {format_value(value)}"


# Live lines with bar, total, rate and time left.

WIDE = 120  # terminal columns for a long bar, the elapsed time and more metrics
FEW, MORE = 2, 4  # number of metrics on a narrow and on a wide terminal
# minimum seconds between a training's lines on a non-terminal; evaluations are always shown
LINES_APART = 10.0
FRAMES = (
    "note",
    "step",
    "warning",
)  # text entries, shown without names; notes and warnings get lines of their own
CHOSEN = (
    "precision",
    "device",
    "engine",
    "micro_batch",
)  # shown once, when a training starts


def _fixed() -> Column:
    return Column(no_wrap=True)


class _Rate(ProgressColumn):
    """Units per second since the stage began."""

    def render(self, task: Task) -> Text:
        if not task.speed:
            return Text("")
        return Text(
            f"{format_count(task.speed)} {task.fields.get('unit', '')}/s",
            style="progress.data.speed",
        )


class _Left(ProgressColumn):
    """Time left, as `12:34` or `1:02:34`."""

    def render(self, task: Task) -> Text:
        remaining_seconds = task.time_remaining
        if task.total is None or remaining_seconds is None:
            return Text("")
        hours, remainder = divmod(int(remaining_seconds), 3600)
        text = (
            f"{hours}:{remainder // 60:02d}:{remainder % 60:02d}"
            if hours
            else f"{remainder // 60}:{remainder % 60:02d}"
        )
        return Text(f"{text} left", style="progress.remaining")


class _Elapsed(ProgressColumn):
    """Time since the stage began, over all its parts."""

    def render(self, task: Task) -> Text:
        started = task.fields.get("began", time.monotonic())
        return Text(
            str(datetime.timedelta(seconds=int(time.monotonic() - started))),
            style="progress.elapsed",
        )


class _Figures(ProgressColumn):
    """Metrics of the stage, cut to the remaining width."""

    max_refresh = None

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("note", ""), style="dim", no_wrap=True, overflow="ellipsis")


def live_lines(screen: Console) -> Progress:
    """Return a display for the stages' live lines; it is disabled if `screen` is not a terminal."""
    wide = screen.width >= WIDE
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", style="bold cyan", markup=False, table_column=_fixed()),
        BarColumn(bar_width=28 if wide else 10, table_column=_fixed()),
        TextColumn("{task.fields[count]}", markup=False, table_column=_fixed()),
        _Rate(_fixed()),
        *([_Elapsed(_fixed())] if wide else []),
        _Left(_fixed()),
        _Figures(),
    ]
    return Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)


class StageDisplay(Reporter):
    """A stage's live line; a context manager and a `Reporter` in one."""

    def __init__(self, name: str, screen: Console, lines: Progress | None = None) -> None:
        """Create the line in `lines`, a display shared with other stages; None: its own."""
        self.name, self.screen = name, screen
        self._wide = screen.width >= WIDE
        self._own = lines is None
        self._progress = live_lines(screen) if lines is None else lines
        self._step: Any = None
        self._line_at = float("-inf")  # when the last log entry was shown
        self._newest = (
            time.time()
        )  # time of the newest log entry; entries of earlier sessions are reported again
        self._noted = ""  # the last note

    def __enter__(self) -> StageDisplay:
        if not self.screen.is_terminal:
            self.screen.print(f"{time.strftime('%H:%M:%S')} {self.name} …", markup=False)
        self._task = self._progress.add_task(
            self.name, total=None, count="", unit="", note="starting", began=time.monotonic()
        )
        if self._own:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self._progress.stop()
        else:
            self._progress.remove_task(self._task)

    def progress(
        self, done: float, total: float | None, unit: str, figures: Mapping[str, Any]
    ) -> None:
        """Show progress; `figures["step"]` names a part of the stage, which restarts the bar."""
        if figures.get("step") != self._step:
            self._step = figures.get("step")
            self._progress.reset(self._task)
        count = (
            f"{format_count(done)}/{format_count(total)} {unit}"
            if total
            else f"{format_count(done)} {unit}"
        )
        note = self._note(figures)
        self._progress.update(
            self._task, completed=done, total=total, count=count, unit=unit, note=note
        )
        self._notes(figures)
        warning = figures.get("warning")
        if warning:
            self.screen.print(f"[yellow]warning:[/] {escape(str(warning))}")

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Print log entries with a held-out loss; on a non-terminal, others every LINES_APART s."""
        now = time.monotonic()
        logged_at = values.get("time", time.time())
        if (
            logged_at <= self._newest
        ):  # already shown: by an earlier session, or before a restart of ranks
            return
        self._newest = logged_at
        if "heldout_loss" not in values and (
            self.screen.is_terminal or now - self._line_at < LINES_APART
        ):
            return
        line = training_line(values, "" if self._own else self.name)
        if line:
            self._line_at = now
            self.screen.print(line, soft_wrap=True, markup=False, highlight=False)

    def _notes(self, figures: Mapping[str, Any]) -> None:
        """Print notes on lines of their own; a repeated note is printed once."""
        settings = ", ".join(f"{name} {figures[name]}" for name in CHOSEN if name in figures)
        for note in (settings if "precision" in figures else "", str(figures.get("note", ""))):
            if note and note != self._noted:
                self._noted = note
                self.screen.print(
                    f"{'' if self._own else f'{self.name}: '}{note}",
                    style="dim",
                    markup=False,
                    highlight=False,
                )

    def _note(self, figures: Mapping[str, Any]) -> str:
        limit = MORE if self._wide else FEW
        if training := live_figures(figures, limit):
            return training
        numbers = [
            f"{name} {format_number(value)}"
            for name, value in figures.items()
            if name not in FRAMES
        ]
        return "  ".join([*([str(figures["step"])] if "step" in figures else []), *numbers][:limit])
