"""A name with control characters steers no terminal, makes no row of its own, and is readable."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.humanize import on_one_line, printable, templates_in
from cloze.flows.cli import main
from cloze.flows.run import status_file
from cloze.flows.views.terminal import WholeConsole, ellipsized, table_of

# colour, title of the window, a row that was never there, C1, order of letters, overwriting
EVIL = (
    "a\x1b[31mb",
    "a\x1b]0;owned\x07b",
    "a\nfake  finished",
    "a\x9b2Jb",
    "a\u202eb",
    "a\rb",
    "\x7f",
)
STEERING = {chr(code) for code in (*range(32), *range(0x7F, 0xA0))} - {"\n"}


@given(st.text(), st.sampled_from(EVIL))
def test_what_is_printable_stays_and_what_is_not_is_shown(text: str, evil: str) -> None:
    shown = on_one_line(text + evil)
    assert not STEERING & {*shown}
    assert "\n" not in shown
    assert printable(printable(text)) == printable(text)
    if text.isprintable():
        assert shown == text + on_one_line(evil)


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_table_and_a_line_show_a_name_in_its_row(name: str, is_terminal: bool) -> None:
    out = io.StringIO()
    console = WholeConsole(file=out, width=80, force_terminal=is_terminal, color_system=None)
    table = table_of(("run", "state"), title=name)
    table.add_row(name, ellipsized(name))
    console.print(table, markup=False)
    assert len(out.getvalue().splitlines()) == 3
    console.print(name, markup=False)
    assert not STEERING & {*out.getvalue()}


def test_colours_of_our_own_stay() -> None:
    out = io.StringIO()
    console = WholeConsole(file=out, width=80, force_terminal=True, color_system="standard")
    console.print("[red]left\x1b[31m[/]")
    assert "\x1b[31mleft\\x1b" in out.getvalue()


@pytest.mark.parametrize("name", EVIL)
def test_a_page_s_title_has_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<title>{{ name }}</title>{{ 3 }}{{ '<b>' | safe }}")
    page = templates_in.__wrapped__(tmp_path).get_template("page.html").render(name=name)
    assert not STEERING & {*page}
    assert page.endswith("</title>3<b>")


@pytest.mark.parametrize("name", EVIL)
@pytest.mark.parametrize("command", ["status", "clean", "nightly --dry-run"])
def test_commands_over_such_directories_print_no_control_characters(
    name: str,
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CLOZE_RUNS_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    status = tmp_path / name / status_file.DIRECTORY
    status.mkdir(parents=True)
    record = {"run": name, "state": "finished", "pid": 1, "host": "h", "started": 1.0,
              "ended": 2.0, "prefect": None, "nodes": {}}  # fmt: skip
    (status / "1.json").write_text(json.dumps(record))
    main(command.split())
    main([*command.split()[:1], f"no-{name}"])
    printed = "".join(capsys.readouterr())
    assert not STEERING & {*printed}
    assert "\nfake" not in printed
    assert len(printed) > 20
