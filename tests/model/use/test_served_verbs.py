"""MLflow's loader finds pipeline and answer of a checkpoint in its verb's row."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest

from cloze.model import pyfunc
from cloze.model.use import serving, verb


def test_the_verb_of_each_head_is_served() -> None:
    for name in serving.VERB_OF_HEAD.values():
        row = verb.PREDICTORS.find(name)
        assert callable(resolve_name(row.pipeline)), name
        assert resolve_name(row.served).__doc__, name


def shout(pipeline: Any, model_input: Any, params: Any) -> Any:
    return [f"{pipeline} {text.upper()} {params['times']}" for text in model_input]


def loud(path: str) -> str:
    return f"pipeline of {path}"


def test_a_new_verb_needs_its_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    row = verb.PREDICTORS.find("tag")._replace(
        pipeline=f"{__name__}:loud", served=f"{__name__}:shout"
    )
    monkeypatch.setitem(verb.PREDICTORS, "shout", row)
    monkeypatch.setattr(pyfunc, "verb_of", lambda path: "shout")
    assert pyfunc._load_pyfunc("there").predict(["a"], {"times": 2}) == ["pipeline of there A 2"]
