"""Each warning about a loss, word for word, and the border at which it is given."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cloze.model.train.monitor.stability_monitor import StabilityMonitor, high_learning_rate_warning

GUESSING = 6.75


def monitor(**values: Any) -> StabilityMonitor:
    given = {"objective": "mlm", "guessing": lambda: GUESSING, "batch": 32, "pairs": True}
    return StabilityMonitor(**{**given, **values})


def line(step: int, loss: float, rate: float = 1e-3) -> dict[str, Any]:
    return {"step": step, "mlm_loss": loss, "learning_rate": rate, "loss": loss}


def test_a_loss_that_is_no_number() -> None:
    for loss in (math.nan, math.inf, -math.inf):
        watched = monitor()
        assert watched.check(line(40, loss, 2.5e-4)) == [
            f"the loss is {loss} up to step 40; lower learning_rate (0.00025 now) or grad_clip, or "
            f"use precision fp32"
        ]
        assert watched.check(line(41, loss)) == []


@pytest.mark.parametrize(("loss", "told"), [(8.9, True), (9.0, False), (11.0, False), (11.1, True)])
def test_a_first_loss_that_untrained_weights_do_not_give(loss: float, told: bool) -> None:
    watched = monitor(expected=10.0, chance=9.9)
    found = watched.check(line(1, loss))
    assert found == [
        f"THE FIRST LOSS IS {loss:.3f}, untrained weights should give 10.000 (ln V, and ln 2 for "
        f"pairs): check vocabulary, masks and initializer_range"
    ] * told  # fmt: skip
    assert monitor(expected=None).check(line(1, loss)) == []
    assert watched.check(line(2, 5.0)) == [], "only the first is told"


def test_a_first_loss_is_that_of_all_objectives() -> None:
    assert monitor(expected=10.0).check({**line(1, 9.5), "loss": 10.2}) == []
    assert len(monitor(expected=10.0).check({**line(1, 10.0), "loss": 12.0})) == 1


def test_a_loss_above_that_of_guessing_all_pieces_alike() -> None:
    watched = monitor(chance=9.0)
    assert watched.check(line(1, 12.0)) == [], "the first has its own sentence"
    assert watched.check(line(2, 10.0)) == []
    assert watched.check(line(3, 10.01)) == [
        "up to step 3 the loss (10.01) is above ln V (9.00), what guessing all pieces alike costs; "
        "usually it begins there and falls: training diverges. Lower learning_rate (0.001 now)"
    ]
    assert watched.check(line(4, 12.0)) == []
    assert [monitor(chance=None).check(line(step, 12.0)) for step in (1, 2)] == [[], []]


SMALL_BATCH = (
    "; with a pair task a batch of 127 is small, its gradient is mostly noise: use 128 or more, or "
    "mlm alone"
)


@pytest.mark.parametrize(
    ("batch", "pairs", "more"),
    [(127, True, SMALL_BATCH), (128, True, ""), (127, False, ""), (512, False, "")],
)
def test_a_loss_that_is_stuck(batch: int, pairs: bool, more: str) -> None:
    watched = monitor(batch=batch, pairs=pairs)
    assert watched.check(line(1499, 6.6)) == []
    assert watched.check(line(1500, 6.46)) == [
        "after step 1500 the loss (6.46) is still about that of guessing by frequency (6.75): "
        "nothing is read from the context yet; models with norms behind their blocks (bert, "
        "roberta) stay there for 2,000 to 4,000 steps, modern for some 200"
        + more
        + ". A lower learning rate or a longer warm-up may help"
    ]
    assert watched.check(line(1501, 6.6)) == []


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({}, [line(1500, 6.44), line(1501, 6.6)]),  # once it learns, it is free
        ({"guessing": lambda: None}, [line(1500, 6.6), line(1501, 6.6)]),
        ({}, [line(1499, 6.6, 1e-4), line(1500, 6.6, 2e-4), line(1501, 6.6, 3e-4)]),  # warm-up
        ({"chance": 5.0}, [line(1500, 6.6)]),  # it has diverged
    ],
)
def test_a_loss_that_is_not_stuck(values: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    watched = monitor(**values)
    assert [sentence for given in lines for sentence in watched.check(given)] == []


def test_guessing_is_counted_once_and_only_when_it_is_needed() -> None:
    calls = []

    def guessing() -> float:
        calls.append(1)
        return GUESSING

    watched = monitor(guessing=guessing)
    watched.check(line(1499, 6.6))
    assert calls == []
    for step in range(1500, 1600):
        watched.check(line(step, 6.6))
    assert calls == [1]


@pytest.mark.parametrize(("rise", "told"), [(0.49, False), (0.51, True)])
def test_a_spike_is_above_the_line_through_the_last_twelve(rise: float, told: bool) -> None:
    """They fall by 0.1 a line here, so that the line ends at the last of them."""
    for lines, seen in ((12, told), (11, False)):
        watched = monitor()
        losses = [5.0 - 0.1 * number for number in range(lines)]
        before = [watched.check(line(1 + number, loss)) for number, loss in enumerate(losses)]
        assert not any(before)
        loss = losses[-1] + rise
        assert watched.check(line(100, loss)) == [
            f"the loss rose to {loss:.2f} up to step 100, from about {losses[-1]:.2f}: a spike. "
            f"Where it does not come back within some hundred steps, resume from an earlier "
            f"checkpoint with a lower learning_rate or grad_clip, or beta2 .98"
        ] * seen  # fmt: skip


@pytest.mark.parametrize(("rise", "told"), [(5.2, False), (5.5, True)])
def test_a_spike_is_six_times_what_the_loss_does_anyway(rise: float, told: bool) -> None:
    """Of deviations of 0.6 from a level line, a standard one is 0.6 / 0.6745 = 0.89."""
    watched = monitor()
    for number in range(12):
        off = 0.6 if number in (0, 3, 4, 7, 8, 11) else -0.6
        assert watched.check(line(1 + number, 5.0 + off)) == []
    assert bool(watched.check(line(13, 5.0 + rise))) is told


@pytest.mark.parametrize(
    ("later_rate", "learns", "told"),
    [(5.1e-4, True, True), (5e-4, True, False), (1e-3, False, False)],
)
def test_a_loss_that_lies_flat(later_rate: float, learns: bool, told: bool) -> None:
    """Thirty lines of 20 steps against the thirty before; the rate is more than half its peak."""
    watched = monitor(guessing=lambda: 3.75 if learns else 3.7)
    found = []
    for number in range(62):
        loss = 3.4 + (0.01 if number % 2 else -0.01) + (0.02 if number >= 30 else 0)
        rate = 1e-3 if number < 30 else later_rate
        found.append(watched.check(line(20 + 20 * number, loss, rate)))
    sentence = (
        "the loss has not fallen since step 20 (3.400 then, 3.420 now) at a learning rate near its "
        "peak: let it fall (a shorter schedule, wsd's decay), or the model is too small, or the "
        "rate too high"
    )
    assert [told for told in found if told] == [[sentence]] * told
    assert not told or found[59] == [sentence]


def test_a_rate_that_is_too_high_for_the_width() -> None:
    assert high_learning_rate_warning(0.012, 0.001, "adamw") is None
    assert high_learning_rate_warning(0.0126, 0.001, "lamb") is None
    for name in ("adamw", "fused-adamw"):
        assert high_learning_rate_warning(0.0126, 0.001, name) == (
            "learning_rate (0.0126) is 13 times what suits a model of this width (0.001); such "
            "trainings often spike or stay on the plateau of the first steps"
        )
