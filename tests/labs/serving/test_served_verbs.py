"""MLflow's loader finds pipeline and answer of a checkpoint in its verb's row."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import BuildContext
from cloze.flows.tracking.models import served_by, why_not_served
from cloze.labs.serving import verbs, worker
from cloze.model import checkpoint, pyfunc
from cloze.model.checkpoint import CONFIG
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


def test_of_several_heads_the_first_one_counts() -> None:
    order = list(HEADS)
    for size in range(1, len(order) + 1):
        for heads in itertools.combinations(order, size):
            config: dict[str, Any] = {name: {} for name in ("next_sentence", *reversed(heads))}
            assert verb.verb_of_heads(config) == HEADS[heads[0]]


TASKS: list[tuple[str, dict[str, Any], str, tuple[str, ...]]] = [
    ("classifier", {"labels": ["a", "b"]}, "label score", ("text",)),
    ("pair_classifier", {"labels": ["a"], "pairs": True}, "label score", ("text", "text_pair")),
    ("classifier", {"pairs": True}, "score", ("text", "text_pair")),
    ("classifier", {"pairs": False}, "score", ("text",)),
    ("choice", {}, "label score", ("text", "choices")),
    ("span", {}, "question answer score start end", ("question", "passage")),
]


@pytest.mark.parametrize(("head", "task", "outputs", "inputs"), TASKS)
def test_the_columns_are_those_of_the_task(
    head: str, task: dict[str, Any], outputs: str, inputs: tuple[str, ...]
) -> None:
    columns = served_by({"heads": {head: {}}, "task": task})
    assert columns is not None
    assert [each.partition(":")[0] for each in columns.outputs.split()] == outputs.split()
    assert columns.inputs == inputs


def shout(pipeline: Any, model_input: Any, params: Any) -> Any:
    return [f"{pipeline} {text.upper()} {params['times']}" for text in model_input]


def loud(path: str) -> str:
    return f"pipeline of {path}"


def test_a_new_verb_needs_its_row_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """MLflow knows its columns and asks it, and `cloze serve` has it; nothing else names it."""
    config = {"heads": {"megaphone": {}}}
    assert served_by(config) is None
    assert "megaphone" in str(why_not_served(config))
    row = verb.Predictor(
        verb.VerbConfig,
        "no.module:here",
        heads=("megaphone",),
        examples=({"text": "a"},),
        columns=lambda config: verb.TableColumns("loud:string", params={"times": 1}),
        pipeline=f"{__name__}:loud",
        served=f"{__name__}:shout",
    )
    monkeypatch.setitem(verb.PREDICTORS, "shout", row)
    assert served_by(config) == verb.TableColumns("loud:string", params={"times": 1})
    assert why_not_served(config) is None
    assert verbs.served()["shout"] is row
    (tmp_path / CONFIG).write_text(json.dumps(config))
    monkeypatch.setattr(checkpoint, "resolve", str)
    asked = pyfunc._load_pyfunc(str(tmp_path)).predict(["a"], {"times": 2})
    assert asked == [f"pipeline of {tmp_path} A 2"]


def test_a_verb_without_examples_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    bare = verb.PREDICTORS.find("tag")._replace(examples=())
    monkeypatch.setitem(verb.PREDICTORS, "tag", bare)
    assert "tag" not in verbs.served()
    build = BuildContext("", {"checkpoint": "W"}, Execution(), fingerprint="")
    with pytest.raises(UsageError, match=r"^verb tag of W is not served: .*has no examples"):
        worker.run(worker.ServingConfig(verb="tag"), build)


def test_what_no_verb_answers_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text(json.dumps({"heads": {"one": {}, "two": {}}}))
    monkeypatch.setattr(checkpoint, "resolve", str)
    with pytest.raises(UsageError, match=r"has no head that a verb answers with \(one, two\)$"):
        verb.verb_of(str(tmp_path))
