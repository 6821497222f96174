"""Tables of every width: whole figures in a narrow terminal, no blanks at line ends in a file."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from cloze.flows.graph.estimate import Estimate
from cloze.flows.views import run_tables, terminal
from tests.flows.views.test_plan_tree import place, planned
from tests.flows.views.test_tables import result

assert place  # the fixture


def written(table: Any, monkeypatch: pytest.MonkeyPatch, columns: int | None = None) -> str:
    """Return what both consoles write of a table into a file; it is the same."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    texts = []
    for name, make in (("stdout", terminal.output), ("stderr", terminal.console)):
        stream = io.StringIO()
        monkeypatch.setattr(f"sys.{name}", stream)
        make().print(table)
        texts.append(stream.getvalue())
    assert texts[0] == texts[1]
    return texts[0]


@given(
    st.lists(
        st.tuples(st.text("ab .│é", max_size=9), st.text("ab ;.", max_size=300)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([None, 30, 80, 200]),
    st.booleans(),
)
@settings(max_examples=60)
def test_no_line_of_a_file_ends_in_blanks(
    rows: list[tuple[str, str]], columns: int | None, whole: bool
) -> None:
    table = terminal.table_of(["name", "what"], title="runs/demo", whole=whole)
    for row in rows:
        table.add_row(*row)
    with pytest.MonkeyPatch.context() as patch:
        lines = written(table, patch, columns).splitlines()
    assert [line for line in lines if line != line.rstrip(" ")] == []


def test_one_long_result_does_not_widen_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {name: result(name, 0.5) for name in ("a", "b")}
    notes = [f"split {n}: " + "9,999 of a reason, " * 8 for n in range(4)]
    results["b"].manifest.summary["notes"] = [*notes, "warning: it is slow"]
    _, _, short, long = written(terminal.result_table(results), monkeypatch).splitlines()
    assert short == "a     1 min 00 s    10  accuracy 0.500"
    assert long == (
        "b     1 min 00 s    10  accuracy 0.500; warning: it is slow; 4 more notes in the log"
    )


def test_a_result_that_has_room_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    results = {"a": result("a", 0.5)}
    results["a"].manifest.summary["notes"] = ["dev: 3 length dropped"]
    text = written(terminal.result_table(results), monkeypatch)
    assert text.endswith("accuracy 0.500; dev: 3 length dropped\n")


@pytest.mark.parametrize("width", [12, 30, 40, 60])
def test_a_narrow_terminal_breaks_no_figure_of_a_plan(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = planned(report={})
    costs = Estimate(seconds=492, disk_bytes=2_000_000, memory_bytes=1_220_000_000, basis="scaled")
    table = run_tables.tree(steps, {step.name: costs for step in steps}, width)
    lines = [line for line in written(table, monkeypatch, width).splitlines() if "GB" in line]
    heads = sorted(line.strip("└├│ ").split()[0][:8] for line in lines)
    assert heads == sorted(step.name[:8] for step in steps), "the rest of a name is below it"
    assert all("8 min 12 s  2 MB  1.22 GB  run:" in line for line in lines)


@pytest.mark.parametrize("width", [12, 30, 60])
def test_a_narrow_terminal_breaks_no_state(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    node: dict[str, Any] = {
        "stage": "pretrain",
        "state": "finished",
        "started": 1.0,
        "ended": 493.0,
        "artifact": "/a",
    }
    record: dict[str, Any] = {
        "run": "a-run-with-a-name", "state": "finished", "started": 1.0, "ended": 493.0, "pid": 1,
        "host": "", "error": None, "nodes": {"pretrain@512": node},
    }  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(width))
    for runs in (False, True):
        stream = io.StringIO()
        monkeypatch.setattr("sys.stdout", stream)
        if runs:
            run_tables.show_runs(terminal.output(), {record["run"]: record})
        else:
            run_tables.show_run(terminal.output(), "/runs/a", record)
        assert "finished" in stream.getvalue()
        assert "8 min 12 s" in stream.getvalue()
        assert {"pretrain@512", "a-run-with-a-name"} & set(stream.getvalue().split())


def test_a_terminal_gets_rows_that_are_wider_than_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = terminal.table_of(["name", "what"], whole=True)
    table.add_row("a-name-of-thirty-characters-or", "x")
    out = terminal.output()
    assert isinstance(out, Console)
    with out.capture() as captured:
        out.print(table)
    assert "a-name-of-thirty-characters-or" in captured.get()
