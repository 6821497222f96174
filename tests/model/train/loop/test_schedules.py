"""The learning rate's course: its form, its bounds, and what a config must not say of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.humanize import parse_duration
from cloze.model.train.config import PretrainConfig
from cloze.model.train.spec.schedules import SCHEDULES, Schedule


def course(name: str, steps: int, warmup: float = 0, **shape: float) -> list[float]:
    schedule = Schedule(name=name, warmup=warmup, **shape)
    return [schedule.factor(step, steps) for step in range(steps)]


@given(st.sampled_from(sorted(SCHEDULES)), st.integers(1, 500), st.data())
def test_schedules_rise_to_one_and_never_leave_the_unit_interval(
    name: str, steps: int, data: st.DataObject
) -> None:
    warmup = data.draw(st.integers(int(SCHEDULES[name].needs_warmup), steps))
    values = course(name, steps, warmup)
    assert all(0.0 <= value <= 1.0 for value in values)
    assert max(values) == pytest.approx(1.0)
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(1, 10**9),
    st.floats(0, 1),
    st.floats(0, 1),
    st.data(),
)
def test_any_unit_will_do(
    name: str, whole: int, share: float, final: float, data: st.DataObject
) -> None:
    """Steps, tokens, billionths of a budget: the same share of the way has the same factor."""
    warmup = data.draw(st.floats(0.01, 0.8))
    schedule = Schedule(name=name, warmup=warmup * whole, final=final)
    shares = Schedule(name=name, warmup=warmup, final=final)
    found = schedule.factor(share * whole, whole, 1e-9 * whole)
    assert found == pytest.approx(shares.factor(share, 1.0, 1e-9), abs=1e-6)
    assert -1e-9 <= found <= 1 + 1e-9
    if share > warmup:
        assert found >= final - 1e-9


def test_schedules_are_what_their_papers_say() -> None:
    assert course("linear", 100)[99] == pytest.approx(0.01)
    assert course("cosine", 100)[50] == pytest.approx(0.5)
    assert course("constant", 100, 10)[99] == 1.0
    inverse = course("inverse-sqrt", 1000, 100)
    assert (inverse[99], inverse[200], inverse[400]) == pytest.approx((1.0, 1 / math.sqrt(2), 0.5))
    stable = course("wsd", 1000, 100, decay=0.2)
    assert stable[99:800] == [1.0] * 701  # then the fall begins
    assert (stable[850], stable[900]) == pytest.approx((1 - math.sqrt(0.25), 1 - math.sqrt(0.5)))
    assert stable[999] < 0.003
    assert course("inverse-sqrt", 4, 1) == pytest.approx(
        [1.0, 1.0, 1 / math.sqrt(2), 1 / math.sqrt(3)]
    )
    assert course("linear", 100, 0, final=0.1)[50] == pytest.approx(0.1 + 0.9 * 0.5)


def test_the_warm_up_is_a_share_of_what_it_is_counted_in() -> None:
    assert PretrainConfig(steps=1_000_000).lr_schedule(1_000_000).warmup == 10_000
    assert PretrainConfig(steps=200).lr_schedule(200).warmup == 20
    assert PretrainConfig(steps=200, warmup_steps=7).lr_schedule(200).warmup == 7
    assert PretrainConfig(steps=200, warmup_share=0.5).lr_schedule(200).warmup == 100
    assert (
        PretrainConfig(tokens=10**9).lr_schedule(10**9).warmup == 10**8
    )  # tokens know no 10,000 steps
    assert (
        PretrainConfig(steps=5, schedule="inverse-sqrt").lr_schedule(5).warmup == 1
    )  # it falls from where that ends
    assert PretrainConfig(steps=5).lr_schedule(5).warmup == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2 min", 120), ("1h 5s", 3605)],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert PretrainConfig(max_time=text).seconds == seconds


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "5d", "m", "-3s", "1m1h"])
def test_other_texts_are_no_lengths_of_time(text: str) -> None:
    assert parse_duration(text) is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"schedule": "wds"}, "did you mean 'wsd'?"),
        ({"steps": 3, "max_time": "10m"}, "steps and max_time exclude each other"),
        ({"tokens": 3, "max_time": "10m"}, "tokens and max_time exclude each other"),
        ({"max_time": "soon"}, "write it as 90s, 10m or 1h30m"),
        ({"max_time": 0}, "write it as 90s, 10m or 1h30m"),
        (
            {"max_time": "10m", "warmup_steps": 5},
            "warmup_steps goes by steps, and max_time says how long to train; use warmup_share",
        ),
        (
            {"tokens": 100, "schedule_steps": 5},
            "schedule_steps goes by steps, and tokens says how long to train; leave it out",
        ),
        ({"warmup_steps": 5, "warmup_share": 0.1}, "exclude each other"),
        (
            {"schedule": "linear", "decay_share": 0.1},
            "decay_share is not for schedule linear; leave it out, or use wsd",
        ),
        ({"schedule": "inverse-sqrt", "warmup_steps": 0}, "warm up for some steps"),
        ({"schedule": "wsd", "warmup_share": 0.9}, "are more than the whole"),
        ({"min_lr_ratio": 2}, "pretrain.min_lr_ratio"),
    ],
)
def test_what_a_schedule_cannot_serve_is_one_sentence(
    values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(PretrainConfig, values, "pretrain")
    assert sentence in str(caught.value)
