"""Consoles, and tables and lines about stages.

In a terminal of few columns a row is wider than the screen, and its figures stay whole. In a file
or a pipe no line ends in blanks.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import posixpath
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import click
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cloze.core.figures import goodness, is_finite
from cloze.core.humanize import agree, format_duration, on_one_line, printable
from cloze.core.stages.execute import BuildResult
from cloze.flows.graph.stages import headline

QUIET_SECONDS = 5.0  # after which a command says what it waits for
GAP = 2  # columns between two of a table
UNWRAPPED = 100_000  # columns
NARROWEST = 10  # minimum columns of a text that is wrapped beside others
RESULT = 100  # characters of a node's result in a table
MAX_LINES = 40  # nodes with a line each
FEWEST = 3  # minimum number of instances that share a line


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """Say on stderr what the block waits for, if it takes longer than `QUIET_SECONDS`."""
    line = f"cloze: {what}; Ctrl-C ends it"
    timer = threading.Timer(QUIET_SECONDS, lambda: print(line, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def group_instances(
    names: Iterable[str], sections: Mapping[str, str], apart: Iterable[str] = ()
) -> dict[str, list[str]]:
    """Return nodes by line: a node's own name, or `finetune (250)` for the instances of a section.

    Args:
        sections: section by node; a node without one gets its own line.
        apart: nodes that always get their own line.
    """
    all_names, separate = list(names), set(apart)
    lines: dict[str, list[str]] = {}
    if len(all_names) <= MAX_LINES:
        return {name: [name] for name in all_names}
    by_section: dict[str, list[str]] = {}
    for name in all_names:
        if name not in separate:
            by_section.setdefault(sections.get(name, name), []).append(name)
    for name in all_names:
        instances = by_section.get(sections.get(name, name), [])
        if name in separate or len(instances) < FEWEST:
            lines[name] = [name]
        elif instances[0] == name:
            lines[f"{sections[name]} ({len(instances)})"] = instances
    return lines


def console() -> Console:
    """Return the console of progress and notes: standard error, silent with --quiet."""
    stream: Any = _Screen(sys.stderr)
    return WholeConsole(file=stream, highlight=False, emoji=False, quiet=has_flag("quiet"))


class _Screen:
    """A stream to a terminal; a run goes on when that is closed."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> None:
        with contextlib.suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()


def output() -> Console:
    """Return the console of results, standard output; `:key:` in a text is no emoji."""
    return WholeConsole(highlight=False, emoji=False)


class WholeConsole(Console):
    """A console that cuts no row of a table.

    What is no terminal gets lines of any length, so that grep finds no half of a name, and without
    the blanks that fill a table's columns.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # 0: of some terminals, who would show nothing
        if not self.width or (not self.is_terminal and "COLUMNS" not in os.environ):
            self.width = UNWRAPPED

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is printed; a control character of a text is shown, and controls nothing."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)

    def print(self, *objects: Any, **how: Any) -> None:
        how.setdefault("crop", False)
        if self.is_terminal:
            super().print(*objects, **how)
            return
        with self.capture() as captured:
            super().print(*objects, **how)
        self.file.write(re.sub(r"[ \t]+$", "", captured.get(), flags=re.MULTILINE))
        self.file.flush()


def has_flag(name: str) -> bool:
    """Report whether the running command has this global option."""
    context = click.get_current_context(silent=True)
    return bool(context and context.find_root().params.get(name))


def done_line(result: BuildResult, name: str | None = None) -> str:
    """Return a line about a finished stage, called `name` or else by the stage's name."""
    duration = "cached" if result.cached else format_duration(result.seconds)
    return (
        f"[green]✓[/] [bold]{name or result.manifest.stage:<9}[/] {duration:>12}  "
        f"{escape(headline(result.manifest))}"
    )


class _Table(Table):
    """A table whose fixed columns are whole, also where the terminal is too narrow for them.

    A cell of text is one line: a line break in a name is no second row.
    """

    def add_row(self, *cells: RenderableType | None, **how: Any) -> None:
        lines = (on_one_line(cell) if isinstance(cell, str) else cell for cell in cells)
        super().add_row(*lines, **how)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = GAP * (len(self.columns) - 1)
        for column in self.columns:
            cells = [column.header, *column.cells] if column.no_wrap else []
            wide = [Measurement.get(console, options.update(width=UNWRAPPED), cell).maximum
                    for cell in cells]  # fmt: skip
            needed += max(wide, default=NARROWEST)
        wider = options.update(width=max(options.max_width, needed))
        yield from super().__rich_console__(console, wider)


def table_of(
    columns: Sequence[str], right: Sequence[str] = (), title: str | None = None, whole: bool = False
) -> Table:
    """Return an empty table in the common style.

    `whole`: no cell is broken but in the last column, whose cells from `ellipsized` are cut off.
    """
    table = _Table(
        box=None,
        header_style="bold",
        pad_edge=False,
        title=title and escape(on_one_line(title)),
        title_justify="left",
        title_style="dim",
    )
    for name in columns:
        fixed = whole and name != columns[-1]
        table.add_column(
            escape(name),
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=fixed,
        )
    return table


def ellipsized(text: str) -> Text:
    """Return text that is cut off at the end of its column."""
    return Text(on_one_line(text), no_wrap=True, overflow="ellipsis")


def summary_tables(content: Mapping[str, Any], width: int) -> Iterator[Table]:
    """Yield the table in an artifact's summary: `title`, `columns`, `rows` of text.

    All columns but the first contain numbers. Columns that do not fit beside the others without a
    break within a number are in further tables, which repeat the first column.

    `width`: columns of the terminal.
    """
    columns = [[str(row[i]) for row in content["rows"]] for i in range(len(content["columns"]))]
    names = [str(name) for name in content["columns"]]
    widths = [
        max(map(cell_len, [*name.split(), *cells]), default=0)
        for name, cells in zip(names, columns, strict=True)
    ]
    words = [word for text in [names[0], *columns[0]] for word in text.split()]
    first = max([min(widths[0], width // 3), *map(cell_len, words)])
    title, rest = str(content["title"]), list(range(1, len(names)))
    while rest or title:
        sums = itertools.accumulate((GAP + widths[i] for i in rest), initial=first)
        count = max(1, sum(total <= width for total in sums) - 1)
        shown, rest = [0, *rest[:count]], rest[count:]
        is_folded = first + sum(GAP + widths[i] for i in shown[1:]) > width
        table = table_of([names[i] for i in shown], right=names[1:], title=title or None)
        table.min_width = min(cell_len(title), width)  # rich breaks a longer title within words
        for column, i in zip(table.columns[1:], shown[1:], strict=True):
            column.width = None if is_folded else widths[i]
        for row in zip(*(columns[i] for i in shown), strict=True):
            table.add_row(*map(escape, row))
        yield table
        title = ""


def result_table(
    results: Mapping[str, BuildResult], sections: Mapping[str, str] | None = None
) -> Table:
    """Return a table of nodes with time, rows and result; its title is their directory.

    `sections`: section by node; many instances of a section share a line.
    """
    directory = next((posixpath.dirname(result.artifact) for result in results.values()), None)
    columns = ("node", "time", "rows", "result")
    table = table_of(columns, right=columns[1:3], title=directory, whole=True)
    for label, names in group_instances(results, sections or {}).items():
        group = [results[name] for name in names]
        seconds, cached = (
            sum(member.manifest.seconds for member in group),
            sum(member.cached for member in group),
        )
        rows = sum(member.manifest.rows for member in group)
        cached_note = f", {cached} cached" if cached else ""
        duration = (
            f"cached ({format_duration(seconds)})"
            if cached == len(group)
            else f"{format_duration(seconds)}{cached_note}"
        )
        text = _result(headline(group[0].manifest)) if len(group) == 1 else _mean(group)
        table.add_row(escape(label), duration, f"{rows:,}" if rows else "", escape(text))
    return table


def _result(text: str) -> str:
    """Return a result for a table: figures, warnings, and the number of notes that are left out."""
    figures, *others = text.split("; ")
    left_out = 0
    for clause in others:
        if clause.startswith("warning:") or len(figures) + len(clause) < RESULT:
            figures += f"; {clause}"
        else:
            left_out += 1
    more = agree(f"; {left_out} more notes in the log")
    return figures + more * bool(left_out)


def _mean(results: Sequence[BuildResult]) -> str:
    """Return the mean and the best value of the artifacts' main metric."""
    metrics = [item.manifest.summary.get("metrics") or {} for item in results]
    name = str(results[0].manifest.summary.get("metric") or next(iter(metrics[0]), ""))
    values = [value for item in metrics if is_finite(value := item.get(name))]
    if not values:
        return ""
    best = max(values, key=lambda value: goodness(value, name))
    return f"{name} {sum(values) / len(values):.3f} on average, best {best:.3f}"
