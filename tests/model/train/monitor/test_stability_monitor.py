"""What is said of a loss curve: of one that is stuck, jumps or lies flat, and nothing of one that
is as it should be.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cloze.model.train.monitor import stability_monitor
from cloze.model.train.monitor.stability_monitor import StabilityMonitor, high_learning_rate_warning
from tests.model.datasets import write_dataset
from tests.model.train.ranks import config, here

GUESSING = 6.75


def said(
    losses: list[float], every: int = 50, rate: float = 1e-3, batch: int = 32, pairs: bool = True
) -> list[str]:
    watched = StabilityMonitor("mlm", lambda: GUESSING, batch, pairs)
    found = []
    for number, loss in enumerate(losses):
        found += watched.check(
            {"step": (number + 1) * every, "mlm_loss": loss, "learning_rate": rate}
        )
    return found


def falling(steps: int, noise: float = 0.03) -> list[float]:
    rng = np.random.default_rng(1)
    return [
        2.5 + 7 * math.exp(-number / 20) + 4 / (1 + number / 10) + noise * rng.standard_normal()
        for number in range(steps)
    ]


def test_nothing_is_said_of_a_good_curve() -> None:
    assert said(falling(100)) == []


def test_a_loss_that_is_stuck_at_the_frequencies_is_told_once_with_what_is_typical() -> None:
    (sentence,) = said([9.0, *[6.6] * 40])
    assert sentence.startswith(
        "after step 1500 the loss (6.60) is still about that of guessing by frequency (6.75)"
    )
    assert "with a pair task a batch of 32 is small" in sentence
    (alone,) = said([9.0, *[6.6] * 40], pairs=False)
    assert "pair task" not in alone
    assert said([9.0, *[6.6] * 20]) == []  # it is early
    assert said([9.0, *[6.2] * 40]) == []


def test_without_frequencies_or_once_it_learns_nothing_is_stuck() -> None:
    watched = StabilityMonitor("mlm", lambda: None, 32, False)
    lines = [{"step": 50 * n, "mlm_loss": 6.6, "learning_rate": 1e-3} for n in range(1, 42)]
    assert not any("guessing" in sentence for line in lines for sentence in watched.check(line))
    learnt = [9.0, *[6.2] * 31, *[6.6] * 3]
    assert not any("guessing" in sentence for sentence in said(learnt))


def test_nothing_is_expected_of_a_warm_up() -> None:
    watched = StabilityMonitor("mlm", lambda: GUESSING, 32, False, chance=9.01)
    told = [
        watched.check({"step": step, "mlm_loss": 9.0, "learning_rate": 1e-8 * step})
        for step in range(0, 10_000, 100)
    ]
    assert not any(told)
    (sentence,) = watched.check({"step": 10_000, "mlm_loss": 6.9, "learning_rate": 9e-5})
    assert "is still about that of guessing by frequency" in sentence


def test_a_loss_above_ln_v_diverges() -> None:
    watched = StabilityMonitor("mlm", lambda: 0.02, 32, False, chance=9.01)
    assert (
        watched.check({"step": 1, "mlm_loss": 10.5, "learning_rate": 1.0}) == []
    )  # the first loss has its own sentence
    (sentence,) = watched.check(
        {"step": 2, "mlm_loss": 11.5, "learning_rate": 1.0, "update_ratio_heads": 0.9}
    )
    assert sentence.startswith("up to step 2 the loss (11.50) is above ln V (9.01)")
    assert "Lower learning_rate (1 now)" in sentence
    assert not any(
        watched.check({"step": step, "mlm_loss": 15.0, "learning_rate": 1.0}) for step in (3, 2000)
    )


def test_a_short_run_on_the_plateau_is_as_it_should_be() -> None:
    rng = np.random.default_rng(3)
    plateau = [8.3, 8.1, 7.6, 7.0, *(6.7 + 0.03 * rng.standard_normal(96))]
    assert said(plateau, every=2) == said(plateau, every=12) == []


def test_a_spike_is_told_and_noise_is_not() -> None:
    good = falling(60)
    (sentence,) = said([*good[:40], good[40] + 0.9, *good[41:]])
    assert f"up to step {41 * 50}" in sentence
    assert "a spike" in sentence
    assert said([*good[:40], good[40] + 0.3, *good[41:]]) == []
    wild = [loss + 0.8 * (-1) ** number for number, loss in enumerate(good)]
    assert said(wild[20:]) == []  # where it always jumps, a jump says nothing


def test_a_flat_loss_is_told_while_the_rate_is_high() -> None:
    rng = np.random.default_rng(2)
    flat = [*falling(40), *(3.4 + 0.03 * rng.standard_normal(80))]
    (sentence,) = said(flat)
    assert "has not fallen since step" in sentence
    watched = StabilityMonitor("mlm", lambda: GUESSING, 32, False)
    found = [
        watched.check({"step": 50 * n, "mlm_loss": loss, "learning_rate": 1e-3 / (1 + n)})
        for n, loss in enumerate(flat)
    ]
    assert not any(found)


def test_lines_without_a_loss_are_passed_over() -> None:
    watched = StabilityMonitor("mlm", lambda: None, 32, False)
    assert watched.check({"step": 1, "learning_rate": 0.1}) == []
    assert [
        watched.check({"step": step, "learning_rate": 0.1, "mlm_loss": 6.7})
        for step in (3000, 4000)
    ] == [[], []]


def test_a_loss_that_is_not_finite_is_told_once() -> None:
    watched = StabilityMonitor("mlm", lambda: GUESSING, 32, False)
    (sentence,) = watched.check({"step": 2, "learning_rate": 0.1, "mlm_loss": math.nan})
    assert sentence.startswith("the loss is nan up to step 2; lower learning_rate (0.1 now)")
    assert watched.check({"step": 3, "learning_rate": 0.1, "mlm_loss": math.inf}) == []


def test_a_rate_too_high_for_the_width_is_told_before_training() -> None:
    assert high_learning_rate_warning(2e-3, 3e-4, "adamw") is None
    assert "is 20 times what suits a model of this width (0.0003)" in str(
        high_learning_rate_warning(6e-3, 3e-4, "adamw")
    )
    assert high_learning_rate_warning(6e-3, 3e-4, "lamb") is None


def test_a_run_says_it_and_a_resumed_one_does_not_say_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stability_monitor, "STUCK_STEPS", 4)
    dataset = write_dataset(tmp_path / "dataset")
    settings = config(steps=8, log_every=1, learning_rate=0.03)
    first = here(settings, dataset, tmp_path / "run", stop_at=5)
    assert (
        "learning_rate (0.03) is 12 times what suits a model of this width (0.0024)"
        in first.said("warning")
    )
    assert "after step 4 the loss" in first.said("warning")
    assert "with a pair task a batch of 8 is small" in first.said("warning")
    again = here(settings, dataset, tmp_path / "run")
    assert "the loss" not in again.said("warning")


@pytest.mark.parametrize("every", [1, 10, 11, 50])
def test_flat_is_what_has_not_fallen_for_thirty_lines_and_three_hundred_steps(every: int) -> None:
    """Two windows of thirty lines are compared; short runs log every other step."""
    lines = [3.4, 3.5] * 40
    told = [bool(said(lines[:count], every)) for count in range(len(lines))]
    assert told.index(True) == 60 if 29 * every >= 300 else True not in told
