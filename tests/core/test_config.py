"""Configs: which fields name the result, which are paths, and the messages about mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, SerializeAsAny

from cloze.core.config import (
    InputPath,
    NoFingerprint,
    StageConfig,
    UnionTag,
    parse_config,
    resolve_paths,
)
from cloze.core.errors import DataError, UsageError
from cloze.core.options import field_docs
from cloze.core.stages.stage import BuildContext, Stage, StageResult


class Shape(BaseModel):
    family: UnionTag[str] = "plain"
    width: int = 8
    dropout: float = 0.1


class WideShape(Shape):
    family: Literal["wide"] = "wide"
    width: int = 64


class Source(BaseModel):
    kind: str = "files"
    path: InputPath

    @classmethod
    def names_files(cls, values: Mapping[str, Any]) -> bool:
        return values.get("kind") != "packages"


class Config(StageConfig):
    size: int = Field(default=3, gt=0)
    """How many bytes are written."""

    log_every: NoFingerprint[int | None] = Field(default=None, ge=1)
    shape: SerializeAsAny[Shape] | None = None
    data: InputPath | None = None
    many: tuple[InputPath, ...] = ()
    sources: tuple[Source, ...] = ()
    by_name: dict[str, InputPath] = Field(default_factory=dict)


class NewerConfig(Config):
    """As `Config` was after an upgrade that brought options."""

    strict: bool = False
    ways: tuple[str, ...] = ("a", "b")


def fingerprint(config: StageConfig) -> str:
    def run(config: Any, build: BuildContext) -> StageResult:
        raise AssertionError("never run")

    return Stage(name="toy", version=1, config=type(config), run=run).fingerprint(config, {})


def test_a_new_option_at_its_default_changes_no_fingerprint() -> None:
    for values in ({}, {"size": 4}, {"shape": WideShape(width=2)}):
        assert fingerprint(Config(**values)) == fingerprint(NewerConfig(**values))
    assert fingerprint(NewerConfig(strict=True)) != fingerprint(NewerConfig())
    assert fingerprint(NewerConfig(ways=())) != fingerprint(NewerConfig())


def test_what_is_only_watched_changes_no_fingerprint() -> None:
    assert Config.watching_fields() == ("log_every",)
    assert fingerprint(Config(log_every=1)) == fingerprint(Config())
    assert fingerprint(Config(size=4)) != fingerprint(Config())


def test_a_default_that_is_given_is_no_difference() -> None:
    assert Config(size=3, shape=None).fingerprint_fields() == Config().fingerprint_fields() == {}
    assert Config(size=5, log_every=2).fingerprint_fields() == {"size": 5}


def test_nested_configs_are_compared_with_their_own_class_and_told_apart_by_their_tag() -> None:
    assert Config(shape=Shape()).fingerprint_fields() == {"shape": {"family": "plain"}}
    assert Config(shape=WideShape()).fingerprint_fields() == {"shape": {"family": "wide"}}
    assert Config(shape=WideShape(width=8, dropout=0)).fingerprint_fields() == {
        "shape": {"family": "wide", "width": 8, "dropout": 0}
    }


def test_path_fields_follow_from_the_types() -> None:
    assert Config.path_fields() == ("data", "many", "sources", "by_name")
    assert StageConfig.path_fields() == ()


def test_the_content_behind_paths_counts_and_not_where_it_lies(tmp_path: Path) -> None:
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        (tmp_path / name).write_text(text)
    a, b, c = (str(tmp_path / name) for name in "abc")
    for same, other in (
        ({"data": a}, {"data": c}),
        ({"many": (a, c)}, {"many": (c, a)}),
        ({"sources": [{"path": a}]}, {"sources": [{"path": c}]}),
        ({"sources": [{"path": a}]}, {"sources": [{"path": a, "kind": "other"}]}),
        ({"by_name": {"x": a}}, {"by_name": {"y": a}}),
    ):
        moved = Config.model_validate({key: _replace(value, a, b) for key, value in same.items()})
        assert fingerprint(moved) == fingerprint(Config.model_validate(same))
        assert fingerprint(Config.model_validate(other)) != fingerprint(Config.model_validate(same))
    packages = Config.model_validate({"sources": [{"path": "numpy,click", "kind": "packages"}]})
    assert fingerprint(packages) != fingerprint(Config())
    with pytest.raises(DataError, match="does not exist"):
        fingerprint(Config(many=(str(tmp_path / "none"),)))


def _replace(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _replace(item, old, new) for key, item in value.items()}
    return (
        [_replace(item, old, new) for item in value]
        if isinstance(value, (list, tuple))
        else new
        if value == old
        else value
    )


def test_relative_paths_begin_where_the_config_lies() -> None:
    values = {
        "size": 4,
        "data": "d.txt",
        "many": ["m.txt", "/abs/m.txt", "s3://bucket/m.txt"],
        "sources": [{"path": "dump.bz2"}, {"kind": "packages", "path": "numpy,click"}],
        "by_name": {"x": "x.txt"},
        "shape": "tiny",
        "unknown": ["stays"],
    }
    before = repr(values)
    assert resolve_paths(Config, values, "/base") == {
        **values,
        "data": "/base/d.txt",
        "many": ["/base/m.txt", "/abs/m.txt", "s3://bucket/m.txt"],
        "sources": [{"path": "/base/dump.bz2"}, {"kind": "packages", "path": "numpy,click"}],
        "by_name": {"x": "/base/x.txt"},
    }
    assert repr(values) == before
    assert resolve_paths(Config, {"many": "one.txt", "data": 7, "sources": None}, "/base") == {
        "many": "/base/one.txt",
        "data": 7,
        "sources": None,
    }


def test_a_literal_below_a_field_describes_it() -> None:
    assert field_docs(Config)["size"] == "How many bytes are written."


def test_a_class_that_changes_a_default_alone_keeps_the_description() -> None:
    class Larger(Config):
        size: int = 9
        more: int = Field(default=1, description="What stands at the field itself.")
        """And not this."""
        bare: int = 0

    class Words(Larger):
        size: int = 10
        """Other words,
        over two lines."""

    assert field_docs(Larger) == {**field_docs(Config), "more": "What stands at the field itself."}
    assert field_docs(Words)["size"] == "Other words,\nover two lines."


def test_config_errors_name_field_value_and_remedy() -> None:
    with pytest.raises(UsageError, match=r"unknown config key toy\.sise; did you mean 'size'\?"):
        parse_config(Config, {"sise": 3}, "toy")
    with pytest.raises(UsageError, match=r"toy\.size \(found -1\)"):
        parse_config(Config, {"size": -1}, "toy")
    with pytest.raises(UsageError, match=r"toy\.size \(found 'x'\)"):
        parse_config(Config, {"size": "x"}, "toy")
