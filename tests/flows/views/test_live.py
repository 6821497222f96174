"""The live line at its two widths: bar, total, rate and time left are whole, and figures take what
room is left.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable

import pytest
from rich.console import Console

from cloze.flows.views.live import StageDisplay, live_lines
from cloze.flows.views.run_tables import show_run, show_runs

FIGURES = {
    "loss": 6.85512,
    "mlm_loss": 6.1621,
    "nsp_loss": 0.6931,
    "tokens_per_second": 18234.5,
    "learning_rate": 1e-4,
}


def line(
    width: int, figures: dict[str, object], done: float = 189_600, total: float = 1_000_000
) -> str:
    """The line as the terminal shows it, after one report half a minute ago and one now."""
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, record=True)
    display = StageDisplay("pretrain", screen, live_lines(screen))
    display.__enter__()
    clock = [1000.0]
    display._progress.get_time = lambda: clock[0]
    display.progress(0, total, "steps", figures)
    clock[0] += 30
    display.progress(done / 2, total, "steps", figures)
    clock[0] += 30
    display.progress(done, total, "steps", figures)
    with screen.capture() as shown:
        screen.print(display._progress.get_renderable())
    found = re.sub(r"\x1b\[[0-9;]*m", "", shown.get()).rstrip("\n")
    assert "\n" not in found
    return found


@pytest.mark.parametrize("width", [80, 140])
def test_what_one_looks_for_is_whole(width: int) -> None:
    found = line(width, FIGURES)
    assert len(found) <= width
    for part in ("pretrain", "190k/1M steps", "steps/s", " left", "━━━━━"):
        assert part in found
    assert "loss 6.855" in found


def test_at_80_columns_there_are_at_most_two_figures() -> None:
    assert line(80, FIGURES, 40, 200).endswith(" left loss 6.855  lr 1.0e-04")
    assert line(140, FIGURES, 40, 200).endswith(" left loss 6.855  lr 1.0e-04  tok/s 18.2k")
    assert line(80, {"rows": 5.0, "shards": 2, "files": 3}, 40, 200).endswith(
        " left rows 5  shards 2"
    )


def test_notes_and_what_was_chosen_stay_once() -> None:
    screen = Console(file=io.StringIO(), width=80)
    display = StageDisplay("pretrain", screen)
    with display:
        display.progress(
            0,
            9,
            "steps",
            {
                "precision": "bf16",
                "device": "cpu",
                "engine": "torch",
                "micro_batch": "32 x 1 x 2",
                "threads": 1,
            },
        )
        for _ in range(3):
            display.progress(5, 9, "steps", {"note": "profiled 5 steps from step 6 on: [here]"})
            display.progress(5, 9, "steps", {"loss": 3.0})
    assert isinstance(screen.file, io.StringIO)
    assert screen.file.getvalue().splitlines()[1:] == [
        "precision bf16, device cpu, engine torch, micro_batch 32 x 1 x 2",
        "profiled 5 steps from step 6 on: [here]",
    ]


def test_a_long_note_gives_way() -> None:
    found = line(80, {"step": "reading the dataset, building the model, starting the processes"})
    assert "…" in found
    assert re.search(r"\d:\d\d left", found)


RECORD = {
    "run": "sample",
    "state": "running",
    "pid": 17,
    "host": "here",
    "started": 1e9,
    "ended": 1e9 + 754,
    "error": None,
    "nodes": {
        "dataset": {"state": "cached",
        "artifact": "/long/path/of/runs/sample/dataset-0123456789ab"},
        "pretrain": {
            "state": "running", "started": 1e9, "ended": 1e9 + 75, "done": 40, "total": 5500,
            "unit": "steps", "seconds_left": 7300,
            "figures": {"precision": "bf16", "loss": 6.85512, "mlm_loss": 6.1621,
            "nsp_loss": 0.6931},
        },
        "finetune@sst2-1": {"state": "failed", "error": "dev.tsv is cut short; [fetch] it again"},
    },
}  # fmt: skip


def shown(show: Callable[..., None], *values: object, width: int = 80) -> list[list[str]]:
    screen = Console(file=io.StringIO(), width=width, record=True)
    show(screen, *values)
    return [found.split() for found in screen.export_text().splitlines()]


def test_the_status_of_a_run_fits_80_columns() -> None:
    lines = shown(show_run, "runs/sample", RECORD)
    assert any(
        " ".join(found).startswith("pretrain running 1 min 15 s 2 h 01 min 40/5500 steps loss 6.8")
        for found in lines
    )
    assert "dataset cached dataset-0123456789ab".split() in lines
    assert lines[-1] == "finetune@sst2-1: dev.tsv is cut short; [fetch] it again".split()


def test_the_status_of_all_runs_says_what_runs_and_what_failed() -> None:
    lines = shown(show_runs, {"sample": RECORD})
    assert " ".join(lines[-1]).endswith("12 min 34 s failed: finetune@sst2-1; runn…")
    assert lines[-1][:3] == ["sample", "running", "1/3"]


def test_brackets_in_what_a_library_says_are_no_markup() -> None:
    """As in a path of a compiler's: rich takes it for a closing tag that nothing has opened."""
    told = (
        "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/tcp/pair.cc:144] no error "
        "[red]"
    )
    screen = Console(file=(file := io.StringIO()), width=200)
    with StageDisplay("pretrain [/x]", screen) as display:
        display.progress(1, 3, "steps", {"warning": told, "note": told})
    assert file.getvalue().count(told) == 2
    assert line(140, {"note": "[/x]"}, total=100).startswith("pretrain")


def test_log_lines_that_ranks_tell_again_are_shown_once() -> None:
    """They tell all lines of their file when they are started again."""
    screen = Console(file=(file := io.StringIO()), width=200)
    began = time.time() + 1
    with StageDisplay("pretrain", screen) as display:
        for step in (1, 2, 1, 2, 3):
            display.metrics(
                {**FIGURES, "step": step, "time": began + 10 * step, "heldout_loss": 2.0}
            )
    assert re.findall(r"step (\d)", file.getvalue()) == ["1", "2", "3"]
