"""A truth value is no number: in every record of a config, and at any depth. Errors name the path
that was typed, in every nested config.
"""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from cloze.core.config import Values, parse_config
from cloze.core.errors import UsageError
from cloze.flows.graph.overrides import read_yaml
from cloze.flows.report.report_nodes import NodePlacement
from cloze.labs.kubernetes.manifest import Options as KubernetesOptions
from cloze.model.objectives.distill_options import DistillOptions
from cloze.model.tasks.table import task_options
from cloze.model.train.config import PretrainConfig
from cloze.model.train.dial import Dial
from cloze.pipeline.dataset.masking.registry import MaskFields, NgramOptions


class Nested(Values):
    """Numbers at several depths."""

    plain: float = 1.0
    optional: Annotated[int, Field(ge=0)] | None = None
    several: tuple[int, ...] = ()
    pair: tuple[str, Annotated[float, Field(ge=0)]] = ("", 0.0)
    by_name: dict[str, float] = Field(default_factory=dict)
    deep: dict[str, list[int]] = Field(default_factory=dict)
    switch: bool | int = 0
    flags: tuple[bool, ...] = ()
    anything: Any = None


@pytest.mark.parametrize(
    ("model", "field"),
    [
        (DistillOptions, "temperature"),
        (DistillOptions, "relation_heads"),
        (Dial, "parameters"),
        (MaskFields, "max_predictions"),
        (NgramOptions, "max_ngram"),
        (KubernetesOptions, "gpus"),
        (Nested, "plain"),
        (Nested, "optional"),
    ],
)
def test_every_record_refuses_a_truth_value_for_a_number(
    model: type[BaseModel], field: str
) -> None:
    needed = {"image": "a"} if model is KubernetesOptions else {}
    for value in (True, False):
        with pytest.raises(UsageError, match=rf"run\.{field} \(found {value}\): .*not a truth"):
            parse_config(model, {**needed, field: value}, "run")


def test_all_records_of_configs_share_the_check() -> None:
    for record in (
        DistillOptions,
        Dial,
        MaskFields,
        NgramOptions,
        KubernetesOptions,
        NodePlacement,
    ):
        assert issubclass(record, Values), record


@given(st.sampled_from(["several", "pair", "by_name", "deep"]), st.booleans())
def test_at_any_depth(field: str, truth: bool) -> None:
    values: dict[str, Any] = {
        "several": [1, truth],
        "pair": ["a", truth],
        "by_name": {"a": 1, "b": truth},
        "deep": {"a": [1], "b": [2, truth]},
    }
    with pytest.raises(UsageError, match="not a truth value"):
        parse_config(Nested, {field: values[field]}, "")


def test_what_takes_a_truth_value_gets_it() -> None:
    found = parse_config(
        Nested, {"switch": True, "flags": [True, False], "anything": [True, 1]}, ""
    )
    assert (found.switch, found.flags, found.anything) == (True, (True, False), [True, 1])


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "Yes", "NO"])
def test_words_that_yaml_1_1_takes_for_truth_are_text(text: str) -> None:
    assert read_yaml(f"a: {text}") == {"a": text}
    with pytest.raises(UsageError, match=f"run.temperature .found '{text}'"):
        parse_config(DistillOptions, {"temperature": text}, "run")


@pytest.mark.parametrize("section", ["pretrain", "pretrain-512", "pretrain@3-wide", ""])
def test_a_nested_config_says_the_path_that_was_typed(section: str) -> None:
    """`--set pretrain.model.nope=1`, a YAML file, and a node of a matrix."""
    prefix = f"{section}." if section else ""
    for model, said in (
        ({"preset": "bert-tiny", "nope": 1}, f"unknown config key {prefix}model.nope;"),
        ({"preset": "bert-tiny", "hidden_size": True}, f"{prefix}model.hidden_size (found True)"),
    ):
        with pytest.raises(UsageError) as caught:
            parse_config(PretrainConfig, {"model": model}, section)
        assert str(caught.value).startswith(said)
    with pytest.raises(UsageError, match=r"^unknown config key options\.nope"):
        task_options("sst2", {"nope": 1})  # alone again
