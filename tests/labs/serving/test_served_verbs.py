"""MLflow's loader finds pipeline and answer of a checkpoint in its verb's row."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any

import pytest

from cloze.labs.serving import verbs
from cloze.model import pyfunc
from cloze.model.use import verb

HEADS = {
    "masked_lm": "fill-mask", "lm": "generate", "seq2seq": "generate", "classifier": "classify",
    "pair_classifier": "classify", "choice": "classify", "span": "answer", "token_classifier": "tag",
    "embedding": "embed",
}  # fmt: skip


@pytest.mark.parametrize(("head", "name"), HEADS.items())
def test_the_verb_of_each_head_is_served(head: str, name: str) -> None:
    assert verb.verb_of_heads({head: {}}) == name
    row = verb.PREDICTORS.find(name)
    assert callable(resolve_name(row.pipeline))
    assert resolve_name(row.served).__doc__
    assert row.columns is not None
    assert row.columns({"heads": {head: {}}}).outputs
    assert verbs.served()[name].examples


def test_heads_that_no_verb_answers_with() -> None:
    assert verb.verb_of_heads({"next_sentence": {}}) is None
    # trained left to right alone, or both ways
    assert verb.verb_of_heads({"masked_lm": {"objectives": ["clm"]}}) == "generate"
    assert verb.verb_of_heads({"masked_lm": {"objectives": ["mlm", "clm"]}}) == "fill-mask"


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
