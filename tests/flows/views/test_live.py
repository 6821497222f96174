"""The live line at its two widths: bar, total, rate and time left are whole, and figures take what room is left."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from flows.views.live import StageDisplay
from flows.views.terminal import status_table

FIGURES = {"loss": 6.85512, "mlm_loss": 6.1621, "nsp_loss": 0.6931, "tokens_per_second": 18234.5, "learning_rate": 1e-4}


def line(width: int, figures: dict[str, object], done: float = 189_600, total: float = 1_000_000) -> str:
    """The line as the terminal shows it, after one report half a minute ago and one now."""
    screen = Console(file=io.StringIO(), width=width, force_terminal=True, record=True)
    display = StageDisplay("pretrain", screen)
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
    assert line(80, FIGURES, 40, 200).count("loss") <= 2
    assert "tokens" not in line(80, FIGURES, 40, 200)
    assert "nsp_loss 0.6931" in line(140, FIGURES, 40, 200)


def test_a_long_note_gives_way() -> None:
    found = line(80, {"note": "reading the dataset, building the model, starting the processes"})
    assert "…" in found
    assert re.search(r"\d:\d\d left", found)


def test_a_status_fits_80_columns() -> None:
    rows = [
        {
            "stage": "pretrain",
            "state": "interrupted",
            "made": "2026-11-21T16:15:47+00:00",
            "seconds": 754.0,
            "artifact": "/long/path/of/runs/sample/pretrain-0123456789ab",
        }
    ]
    screen = Console(file=io.StringIO(), width=80, record=True)
    screen.print(status_table("runs/sample", rows))
    lines = [found.split() for found in screen.export_text().splitlines()]
    assert lines[-1] == "pretrain interrupted 2026-11-21 16:15 12 min 34 s pretrain-0123456789ab".split()
