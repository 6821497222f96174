"""How the flow run of a night ends: stopped, with an error of ours, by a fault, or with results."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import ClozeError, StoppedError
from cloze.flows.prefect import nightly


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The flow's function, outside Prefect, with an evaluation that does what it is told."""
    monkeypatch.setattr(nightly, "install_log_filter", lambda: None)
    monkeypatch.setattr(nightly, "deployment", SimpleNamespace(id=None))
    monkeypatch.setattr(nightly, "get_run_logger", lambda: logging.getLogger("night"))
    monkeypatch.setattr(nightly, "_trend_page", lambda outcome: "trend.html")

    def run(found: Any) -> Any:
        def evaluate(*_: Any) -> Any:
            if isinstance(found, Exception):
                raise found
            return found

        monkeypatch.setattr(nightly, "_evaluate", evaluate)
        return nightly.nightly_evaluation.fn("night")

    return run


@pytest.mark.parametrize(
    ("found", "name", "message"),
    [
        (StoppedError("a person stopped it"), "Cancelled", "a person stopped it"),
        (ClozeError("no champion"), "Failed", "no champion"),
        (SimpleNamespace(errors={}, evaluated=[], summary="nothing new"), "Completed", "nothing new"),
        (SimpleNamespace(errors={}, evaluated=["a"], summary="a wins"), "Evaluated",
         "a wins; trend: trend.html"),
        (SimpleNamespace(errors={"b": ClozeError("b is gone")}, evaluated=["a"], summary="a wins"),
         "Failed", "b is gone; trend: trend.html"),
    ],
)  # fmt: skip
def test_each_end_has_its_state_and_words(flow: Any, found: Any, name: str, message: str) -> None:
    state = flow(found)
    assert (state.name, state.message) == (name, message)


def test_a_fault_of_cloze_is_no_decision_of_a_person(flow: Any) -> None:
    with pytest.raises(KeyError):
        flow(KeyError("metrics"))
