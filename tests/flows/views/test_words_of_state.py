"""What `status` says of nodes that wait, retry or were stopped; words that agree; no wrapped line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cloze.core.humanize import agree, an
from cloze.flows.graph import stages
from cloze.flows.run import status_file, status_writer
from cloze.flows.run.session import RunParameters, RunSession
from cloze.flows.run.status_file import RETRYING, RUNNING, STOPPED
from cloze.flows.views import run_tables, terminal
from tests.flows import toy_run
from tests.flows.graph.test_record import begun, step


def shown(record: status_writer.RunStatusFile, width: int = 200) -> str:
    out = Console(file=io.StringIO(), width=width)
    run_tables.show_run(out, "/runs/night", record.content)
    return out.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_a_stopped_or_failed_node_says_how_far_it_came_and_no_reason_to_run(tmp_path: Path) -> None:
    record = begun(tmp_path, "a")
    record.node("a", RUNNING, why="not made yet")
    record.progress("a", 282, 400, "steps", {"loss": 3.25})
    for state in (STOPPED, status_file.FAILED, status_file.CRASHED):
        record.node("a", state, error="stopped at step 282")
        text = shown(record)
        assert "282/400 steps" in text
        assert "not made yet" not in text
        assert "stopped at step 282" in text


def test_a_node_that_was_stopped_in_a_queue_waits_for_nothing(tmp_path: Path) -> None:
    record = begun(tmp_path, "a")
    record.node("a", status_file.QUEUED, why="waits for a slot: CPU 0 is held by demo")
    error = status_writer.message(KeyboardInterrupt(), step("a"), status_file.QUEUED)
    assert error == "stopped while it waited, before it started; run again"
    record.node("a", STOPPED, error=error)
    assert "waits for a slot" not in shown(record)
    assert status_writer.message(KeyboardInterrupt(), step("a"), RUNNING) == (
        "stopped before the first checkpoint; run again"
    )


@pytest.mark.parametrize(
    ("node", "run", "lines"),
    [
        ("stopped while it waited; run again", "suspended in Prefect: nothing saved", 2),
        ("saved step 20", "suspended in Prefect, where Resume continues it: saved step 20", 2),
        ("saved step 20", "saved step 20", 1),
        ("stopped while it waited; run again", "stopped; run again", 1),
        ("the shard is cut short", "a: the shard is cut short", 1),
        ("saved step 20", None, 1),
        (None, "the disk is full", 1),
    ],
)
def test_what_the_run_says_beyond_its_nodes_is_below_them_and_in_the_list(
    tmp_path: Path, node: str | None, run: str | None, lines: int
) -> None:
    record = begun(tmp_path, "a")
    record.node("a", STOPPED, error=node)
    record.content.update(state=status_file.CANCELLED, error=run)
    below = shown(record).strip().splitlines()[4:]
    assert len([line for line in below if line.strip()]) == lines
    once = run and run.removesuffix(f": {node}")  # the node's line has the rest
    assert all(text in "\n".join(below) for text in (node, once) if lines > 1 and text)
    out = Console(file=io.StringIO(), width=200)
    run_tables.show_runs(out, {"night": record.content})
    assert (run or "") in out.file.getvalue()  # type: ignore[attr-defined]


def test_an_attempt_has_its_own_progress(tmp_path: Path) -> None:
    record = begun(tmp_path, "a")
    record.node("a", RUNNING)
    record.progress("a", 80, 400, "steps", {"loss": 7.091})
    record.node("a", status_file.FAILED, error="rank 1 was killed")
    record.node("a", RETRYING, why="retry 1 of 2 in 10 s: rank 1 was killed")
    assert "retrying" in shown(record)
    assert "retry 1 of 2 in 10 s" in shown(record)
    record.node("a", RUNNING, why="continues from step 80")
    text = shown(record)
    assert "continues from step 80" in text
    assert "7.091" not in text
    record.node("a", RETRYING, why="x")
    record.end(status_file.CANCELLED)
    assert record.content["nodes"]["a"]["state"] == STOPPED


def test_a_run_retries_in_words_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))
    monkeypatch.setenv("CLOZE_SLOTS_DIR", str(tmp_path / "slots"))
    monkeypatch.setattr(stages, "TABLE", toy_run.TABLE)
    fault = tmp_path / "fault"
    fault.touch()
    config = tmp_path / "toy.yaml"
    config.write_text(
        f"{{name: toy, letters: {{}}, count: {{fault: {fault}}}, run: {{retries: 2, retry_seconds: 0.1}}}}"
    )
    seen: list[tuple[str, Any]] = []
    whole = status_writer.RunStatusFile.node

    def node(self: Any, name: str, state: str, **values: Any) -> None:
        seen.append((state, values.get("why")))
        whole(self, name, state, **values)

    monkeypatch.setattr(status_writer.RunStatusFile, "node", node)
    with RunSession(RunParameters(config=str(config)), Console(quiet=True)) as session:
        for planned in session.steps:
            session.make(planned)
    words = [why for state, why in seen if state == RETRYING]
    assert len(words) == 1
    assert words[0].startswith("retry 1 of 2 in 0 s: RuntimeError: the file")


@pytest.mark.parametrize("make", [terminal.console, terminal.output])
def test_what_no_terminal_shows_is_not_wrapped(
    make: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    name = "susp/pretrain-" + "2a15a8b9e55" * 20
    table = terminal.table_of(("name", "why"), title="/x" * 100, whole=True)
    table.add_row(name, terminal.ellipsized("waits for a slot: " + "CPU " * 50))
    make().print(table)
    make().print("0.00 % of characters unknown, " * 20)
    captured = capsys.readouterr()
    lines = [line.rstrip() for line in (captured.out + captured.err).splitlines()]
    assert len(lines) == 4
    assert lines[0] == "/x" * 100
    assert lines[2].startswith(name)
    assert lines[2].endswith("CPU")
    assert max(map(len, lines)) < 1000
    monkeypatch.setenv("COLUMNS", "80")  # asked for
    make().print("word " * 100)
    captured = capsys.readouterr()
    assert max(map(len, (captured.out + captured.err).splitlines())) <= 80


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 documents, 3kB, 0 dropped", "1 document, 3kB, 0 dropped"),
        ("11 documents, 1 spans in 1 sentences", "11 documents, 1 span in 1 sentence"),
        ("1 entities, 1 copies, 21 rows", "1 entity, 1 copy, 21 rows"),
        (
            "0.1 steps, 1,001 rows, 2-1 goals, v1 files",
            "0.1 steps, 1,001 rows, 2-1 goals, v1 files",
        ),
        ("1 loss, 1 s, 1 min, 1 class, 1 of 3 nodes", "1 loss, 1 s, 1 min, 1 class, 1 of 3 nodes"),
    ],
)
def test_nouns_agree_with_their_count(text: str, expected: str) -> None:
    assert agree(text) == expected


@given(st.integers(2, 10**9), st.sampled_from(["documents", "entities", "rows"]))
def test_other_counts_stay(count: int, noun: str) -> None:
    assert agree(f"{count:,} {noun}") == f"{count:,} {noun}"
    assert agree(f"{count} {noun}") == f"{count} {noun}"


def test_every_stage_and_family_has_its_article() -> None:
    assert [an(name) for name in ("export", "corpus", "index", "ALBERT", "import")] == [
        "an export", "a corpus", "an index", "an ALBERT", "an import"
    ]  # fmt: skip
