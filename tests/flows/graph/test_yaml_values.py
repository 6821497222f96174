"""A config says what it says: no value changes its type, no key counts twice, none is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cloze.core.config import _alternatives, parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.graph.config import load, read
from cloze.flows.graph.overrides import parse, read_yaml
from cloze.flows.graph.stages import TABLE
from cloze.flows.graph.stages import stage as load_stage
from cloze.model.train.config import PretrainConfig
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.vocab.config import VocabConfig


@pytest.mark.parametrize("word", ["no", "NO", "on", "off", "yes", "y", "Off"])
def test_a_word_is_no_truth_value(word: str) -> None:
    """`language: no` is Norwegian, and a run may be called `on`."""
    assert read_yaml(f"language: {word}") == {"language": word}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", "010"),
        ("-007", "-007"),
        ("1:30", "1:30"),
        ("190:20:30", "190:20:30"),
        ("1:30.5", "1:30.5"),
        ("0b11", "0b11"),
        ("1_000", 1000),
        ("0x10", 16),
        ("0", 0),
        ("-3", -3),
        ("+3", 3),
        ("1.5", 1.5),
        ("1.5e-4", 1.5e-4),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
    ],
)
def test_a_number_is_read_as_it_is_written(text: str, value: Any) -> None:
    """Octal numbers and base 60 are YAML 1.1's; `steps: 010` was 8, `seed: 1:30` was 90."""
    found = read_yaml(f"value: {text}")["value"]
    assert (type(found), found) == (type(value), value)


@given(st.integers(0, 10**9), st.integers(0, 4))
def test_a_number_with_zeros_before_it_is_the_same_number(number: int, zeros: int) -> None:
    values = read_yaml(f"seed: {'0' * zeros}{number}")
    assert parse_config(PretrainConfig, {"steps": 5, **values}, "pretrain").seed == number


def test_a_number_in_another_form_is_told_with_its_text() -> None:
    with pytest.raises(UsageError, match=r"pretrain.steps \(found '1:30'\)"):
        parse_config(PretrainConfig, read_yaml("steps: 1:30"), "pretrain")


def test_a_switch_still_takes_the_words() -> None:
    for word, value in (("yes", True), ("on", True), ("no", False), ("off", False)):
        assert parse_config(VocabConfig, read_yaml(f"lowercase: {word}"), "v").lowercase is value
    norwegian = {"sources": [{"kind": "text", "path": "x"}], **read_yaml("language: no")}
    assert parse_config(CorpusConfig, norwegian, "corpus").language == "no"


@pytest.mark.parametrize("field", ["steps", "seed", "learning_rate", "global_batch"])
@pytest.mark.parametrize("value", [True, False])
def test_a_number_is_no_truth_value(field: str, value: bool) -> None:
    with pytest.raises(UsageError, match=rf"pretrain.{field} \(found {value}\): .*a number"):
        parse_config(PretrainConfig, {"steps": 5, field: value}, "pretrain")


@pytest.mark.parametrize(
    "text",
    [
        "pretrain: {steps: 40, steps: 4000}",
        "pretrain:\n  steps: 40\n  seed: 1\n  steps: 4000\n",
        "pretrain: {steps: 40}\nreport: {}\npretrain: {seed: 2}\n",
        "corpus: {sources: [{kind: text, path: a, path: b}]}",
        "finetune: {matrix: {task: [rte], task: [sst2]}}",
    ],
)
def test_a_key_that_stands_twice_is_refused(text: str, tmp_path: Path) -> None:
    config = tmp_path / "twice.yaml"
    config.write_text(text)
    with pytest.raises(UsageError, match=r"'(steps|pretrain|path|task)' stands twice.*line \d"):
        read(str(config))


def test_anchors_and_merged_keys_still_work() -> None:
    text = "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}], x: 9}\n"
    assert read_yaml(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 3},
        "c": {"x": 9, "y": 2, "z": 4},
    }


@pytest.mark.parametrize("setting", ["pretrain.steps=", "pretrain.data= ", "name="])
def test_an_empty_value_is_refused(setting: str) -> None:
    """As of an unset variable, `--set pretrain.steps=$STEPS`: it was the default, a million."""
    with pytest.raises(UsageError, match="has no value; .* null"):
        parse([setting], "x", sections=True)
    assert parse(["pretrain.steps=null"], "x") == {"pretrain": {"steps": None}}


@pytest.mark.parametrize("text", ["1.10", "true", "[a]", "{a: b}"])
def test_a_name_that_is_no_text_is_refused(text: str, tmp_path: Path) -> None:
    """Run 1.10 would be run 1.1, another one."""
    config = tmp_path / "own.yaml"
    config.write_text(f"name: {text}\ncorpus: {{sources: [{{kind: text, path: x}}]}}\n")
    with pytest.raises(UsageError, match="name .*quote"):
        load(str(config))


def test_a_name_of_digits_stays(tmp_path: Path) -> None:
    config = tmp_path / "own.yaml"
    for text, name in (("007", "007"), ("2026", "2026"), ("'1.10'", "1.10"), ("on", "on")):
        config.write_text(f"name: {text}\ncorpus: {{sources: [{{kind: text, path: x}}]}}\n")
        assert load(str(config)).name == name


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_another_encoding_is_named(encoding: str, tmp_path: Path) -> None:
    """As PowerShell's `>` and old editors write."""
    config = tmp_path / "own.yaml"
    config.write_bytes("name: Übung\n".encode(encoding))
    with pytest.raises(UsageError, match="UTF-8"):
        read(str(config))


def test_a_directory_is_no_config(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").mkdir()
    with pytest.raises(UsageError) as told:
        read(str(tmp_path / "own.yaml"))
    assert "is a directory" in str(told.value)
    assert "did you mean" not in str(told.value)


def test_all_presets_read_as_before() -> None:
    for path in Path(read.__code__.co_filename).parents[1].rglob("*.yaml"):
        assert read_yaml(path.read_text()) == yaml.safe_load(path.read_text()), path


NUMBERS = [
    (stage, name)
    for stage in TABLE
    for name, field in load_stage(stage).config.model_fields.items()
    if {int, float} & _alternatives(field.annotation)
] + [("run", name) for name in ("timeout_minutes", "checkpoint_every", "processes")]


@pytest.mark.parametrize("text", [".nan", ".inf", "-.inf", "1e400", "18446744073709551616"])
def test_a_number_that_is_none_or_has_no_end_is_refused(text: str) -> None:
    """An infinite learning rate trained, and 10^20 steps were planned at 178734643772 years."""
    value = read_yaml(f"value: {text}")["value"]
    for stage, name in NUMBERS:
        model = Execution if stage == "run" else load_stage(stage).config
        taken = _alternatives(model.model_fields[name].annotation)
        if str in taken or (isinstance(value, int) and float in taken):
            continue
        with pytest.raises(ValidationError) as told:
            model.model_validate({name: value})
        assert name in {fault["loc"][0] for fault in told.value.errors()}, stage


@pytest.mark.parametrize("header", ["letters:", "letters: null", "letters: true", "letters: {}"])
def test_a_section_without_keys_keeps_those_it_stands_over(header: str, tmp_path: Path) -> None:
    """Its keys are commented out: the section was the stage's defaults, a BERT-base of 374 days."""
    (tmp_path / "base.yaml").write_text("vocab: {size: 4}\nrun: {workers: 3}\n")
    above = tmp_path / "above.yaml"
    above.write_text(f"extends: base.yaml\n{header.replace('letters', 'vocab')}\nrun:\n")
    assert read(str(above))["vocab"] == {"size": 4}
    assert read(str(above))["run"] == {"workers": 3}
    above.write_text("extends: base.yaml\nsizes: {big: {vocab: }}\nsize: big\n")
    assert read(str(above), {"vocab": True})["vocab"] == {"size": 4}


@pytest.mark.parametrize(
    "text",
    [
        "pretrain:\n  steps:\n",
        "pretrain: {seed: 1, steps: }",
        "pretrain@b: {steps: }",
        "run: {steps:}",
    ],
)
def test_an_empty_value_of_a_file_is_refused(text: str, tmp_path: Path) -> None:
    """As of an unset variable in a template, `steps: ${STEPS}`: it was the default."""
    config = tmp_path / "own.yaml"
    config.write_text(text)
    with pytest.raises(UsageError, match=r"'steps' has no value; .* null .*line \d"):
        read(str(config))
    config.write_text("vocab:\nreport: {table: null}\nfinetune: {matrix: {row: {low: , high: }}}\n")
    assert read(str(config))["vocab"] is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sizes: [a]", "sizes"),
        ("sizes: word", "sizes"),
        ("sizes: {a: 3}", r"sizes\.a"),
        ("sizes: {a: [b]}", "sizes.a"),
        ("tokenizer: 5", "tokenizer"),
        ("tokenizer: [a]", "tokenizer"),
        ("extends: [a]", "extends"),
        ("extends: 5", "extends"),
        ("name: " + "n" * 201, "name"),
        ("name: " + "名" * 100, "name"),
    ],
)
def test_a_key_beside_the_sections_is_checked(text: str, named: str, tmp_path: Path) -> None:
    """They were internal errors, or `cfg/['a']` that is no file."""
    config = tmp_path / "own.yaml"
    config.write_text(f"{text}\ncorpus: {{sources: [{{kind: text, path: x}}]}}\nvocab: {{}}\n")
    with pytest.raises(UsageError, match=rf"^{named} \("):
        load(str(config))


def test_a_mapping_over_a_list_is_told_by_its_key(tmp_path: Path) -> None:
    """The message named `--set`, though it is a file that says it."""
    (tmp_path / "base.yaml").write_text("corpus: {sources: [{kind: text, path: x}]}\n")
    config = tmp_path / "own.yaml"
    config.write_text("extends: base.yaml\ncorpus: {sources: {kind: books, path: x}}\n")
    with pytest.raises(UsageError, match=r"^corpus.sources.kind .*corpus.sources"):
        read(str(config))
