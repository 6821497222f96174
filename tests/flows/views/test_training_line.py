"""A log line in 80 columns, and when it is shown."""

from __future__ import annotations

import io
import time

from rich.console import Console

from cloze.flows.views.live import StageDisplay, training_line

LINE = {
    "step": 123_400, "loss": 6.85512, "mlm_loss": 6.1621, "grad_norm": 1.2345,
    "learning_rate": 9.8e-5, "tokens_per_second": 181_234.5,
    "mfu": 0.4123, "data_wait": 0.001, "time_forward": 0.3,
}  # fmt: skip


def test_it_fits() -> None:
    assert (
        training_line(LINE)
        == "step 123,400  loss 6.855  lr 9.8e-05  tok/s 181k  mfu 41%  |g| 1.2  waits 0%"
    )
    assert len(training_line({**LINE, "heldout_loss": 5.4321}, "finetune@a-long-name")) <= 80
    assert "held out 5.432" in training_line({**LINE, "heldout_loss": 5.4321})
    assert training_line({"step": 3, "documents": 4}) == ""


def test_several_objectives_are_told_each() -> None:
    two = {**LINE, "nsp_loss": 0.69302, "heldout_nsp_loss": 0.7}
    assert (
        training_line(two)
        == "step 123,400  loss 6.855  mlm 6.162  nsp 0.693  lr 9.8e-05  tok/s 181k  mfu 41%"
    )


def shown(terminal: bool, *lines: dict[str, float]) -> list[str]:
    screen = Console(file=io.StringIO(), width=80, force_terminal=terminal)
    display = StageDisplay("pretrain", screen)
    for line in lines:
        display.metrics(line)
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue().splitlines()


def test_lines_come_seldom_and_measured_ones_always() -> None:
    measured = {**LINE, "step": 5, "heldout_loss": 6.0}
    found = shown(False, LINE, {**LINE, "step": 2}, measured)
    assert [line.split()[1] for line in found] == ["123,400", "5"]
    assert [line.split()[1] for line in shown(True, LINE, measured)] == ["5"], (
        "a terminal has its live line for the others"
    )
    assert shown(False, {**LINE, "time": time.time() - 60}) == [], "of an earlier session"
