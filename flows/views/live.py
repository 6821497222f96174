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
from cloze.core.stages.stage import Figures, Reporter

WIDTH = 80
_LOSS_SUFFIX = "_loss"  # suffix of one objective's loss
# metric, label, format; by priority: what does not fit is left out
SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
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
    texts = [
        f"{name.removesuffix(_LOSS_SUFFIX)} {value:.3f}"
        for name, value in values.items()
        if name.endswith(_LOSS_SUFFIX)
        and not name.startswith("heldout_")
        and isinstance(value, float)
    ]
    if len(texts) < 2 or "loss" not in values:
        return {}
    return {"loss": "  ".join([f"loss {values['loss']:.3f}", *texts])}


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
# text entries, shown without names; notes and warnings get lines of their own
FRAMES = ("note", "step", "warning")
# shown once, when a training starts
RESOLVED_FIELDS = ("precision", "device", "engine", "micro_batch")


def _fixed() -> Column:
    return Column(no_wrap=True)


class _Column(ProgressColumn):
    """Column whose text is a function of the task."""

    max_refresh = None

    def __init__(self, text: Callable[[Task], str], style: str, fixed: bool = True) -> None:
        super().__init__(_fixed() if fixed else None)
        self._text, self._style = text, style

    def render(self, task: Task) -> Text:
        return Text(self._text(task), style=self._style, no_wrap=True, overflow="ellipsis")


def _rate(task: Task) -> str:
    """Return the units per second since the stage began."""
    unit = task.fields.get("unit", "")
    return f"{format_count(task.speed)} {unit}/s" if task.speed else ""


def _left(task: Task) -> str:
    """Return the time left, as `12:34 left` or `1:02:34 left`."""
    seconds = task.time_remaining
    if task.total is None or seconds is None:
        return ""
    hours, remainder = divmod(int(seconds), 3600)
    minutes = f"{hours}:{remainder // 60:02d}" if hours else f"{remainder // 60}"
    return f"{minutes}:{remainder % 60:02d} left"


def _elapsed(task: Task) -> str:
    """Return the time since the stage began, over all its parts."""
    seconds = time.monotonic() - task.fields.get("began", time.monotonic())
    return str(datetime.timedelta(seconds=int(seconds)))


def live_lines(screen: Console) -> Progress:
    """Return a display for the stages' live lines; it is disabled if `screen` is not a terminal."""
    wide = screen.width >= WIDE
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", style="bold cyan", markup=False, table_column=_fixed()),
        BarColumn(bar_width=28 if wide else 10, table_column=_fixed()),
        TextColumn("{task.fields[count]}", markup=False, table_column=_fixed()),
        _Column(_rate, "progress.data.speed"),
        *([_Column(_elapsed, "progress.elapsed")] if wide else []),
        _Column(_left, "progress.remaining"),
        _Column(lambda task: task.fields.get("note", ""), "dim", fixed=False),
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
        # time of the newest log entry; entries of earlier sessions are reported again
        self._newest = time.time()
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

    def progress(self, done: float, total: float | None, unit: str, figures: Figures) -> None:
        """Show progress; `figures["step"]` names a part of the stage, which restarts the bar."""
        if figures.get("step") != self._step:
            self._step = figures.get("step")
            self._progress.reset(self._task)
        of_total = f"/{format_count(total)}" if total else ""
        count, note = f"{format_count(done)}{of_total} {unit}", self._note(figures)
        self._progress.update(
            self._task, completed=done, total=total, count=count, unit=unit, note=note
        )
        settings = (f"{name} {figures[name]}" for name in RESOLVED_FIELDS if name in figures)
        resolved = ", ".join(settings) if "precision" in figures else ""
        for text in (resolved, str(figures.get("note", ""))):
            if text and text != self._noted:  # a repeated note is printed once
                self._noted = text
                name = "" if self._own else f"{self.name}: "
                self.screen.print(f"{name}{text}", style="dim", markup=False, highlight=False)
        if warning := figures.get("warning"):
            self.screen.print(f"[yellow]warning:[/] {escape(str(warning))}")

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Print log entries with a held-out loss; on a non-terminal, others every LINES_APART s."""
        now = time.monotonic()
        logged_at = values.get("time", time.time())
        if logged_at <= self._newest:  # shown by an earlier session, or before a restart of ranks
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

    def _note(self, figures: Mapping[str, Any]) -> str:
        limit = MORE if self._wide else FEW
        if training := live_figures(figures, limit):
            return training
        parts = [str(figures["step"])] if "step" in figures else []
        parts += [f"{key} {format_number(figures[key])}" for key in figures if key not in FRAMES]
        return "  ".join(parts[:limit])
