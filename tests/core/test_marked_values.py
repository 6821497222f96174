"""Marked strings in the values of a config: each form of a type that may hold one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from cloze.core.config import (
    InputPath,
    InputPathMark,
    NoFingerprint,
    NoFingerprintMark,
    has_field_marker,
    has_mark,
    map_marked,
    marked_fields,
)


class Files(BaseModel):
    path: InputPath
    note: str = ""

    @classmethod
    def names_files(cls, values: Mapping[str, Any]) -> bool:
        return values.get("note") != "packages"


class Tree(BaseModel):
    leaf: InputPath | None = None
    below: Tree | None = None


class Config(BaseModel):
    path: InputPath = ""
    bounded: Annotated[InputPath, Field(min_length=1)] = "x"
    plain: str = ""
    several: tuple[InputPath, ...] = ()
    pair: tuple[str, InputPath] = ("", "")
    by_name: dict[str, InputPath] = Field(default_factory=dict)
    words: dict[str, int] = Field(default_factory=dict)
    files: tuple[Files, ...] = ()
    tree: Tree | None = None
    watched: NoFingerprint[int] = 0


class Child(Config):
    watched: int = 1


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("path", "a", "A"),
        ("path", 3, 3),
        ("path", None, None),
        ("bounded", "a", "A"),
        ("plain", "a", "a"),
        ("several", ["a", "b"], ["A", "B"]),
        ("several", ("a",), ["A"]),
        ("several", "a", "A"),  # a single value of a field that takes several
        ("several", [], []),
        ("several", {"a": "b"}, {"a": "b"}),
        ("pair", ["a", "b"], ["a", "B"]),
        ("pair", ["a", "b", "c"], ["a", "b", "c"]),
        ("by_name", {"k": "a", "l": "b"}, {"k": "A", "l": "B"}),
        ("by_name", "a", "a"),
        ("words", {"k": "a"}, {"k": "a"}),
        ("files", [{"path": "a", "note": "n", "other": "o"}], [{"path": "A", "note": "n", "other": "o"}]),
        ("files", [{"path": "a", "note": "packages"}], [{"path": "a", "note": "packages"}]),
        ("files", ["a", 3], ["a", 3]),
        ("tree", {"leaf": "a", "below": {"leaf": "b"}}, {"leaf": "A", "below": {"leaf": "B"}}),
        ("tree", None, None),
    ],
)  # fmt: skip
def test_only_marked_strings_change(name: str, value: Any, expected: Any) -> None:
    assert map_marked(Config, {name: value}, InputPathMark, str.upper) == {name: expected}


def test_a_value_that_is_no_config_stays() -> None:
    for value in ("a", ["a"], None, 3):
        assert map_marked(Config, value, InputPathMark, str.upper) == value
    assert map_marked(Config, {"unknown": "a"}, InputPathMark, str.upper) == {"unknown": "a"}


def test_marks_are_found_in_each_form_of_a_type() -> None:
    found = marked_fields(Config, InputPathMark)
    assert found == ("path", "bounded", "several", "pair", "by_name", "files", "tree")
    assert marked_fields(Config, NoFingerprintMark) == ("watched",)
    assert not has_mark(Literal["a"], InputPathMark)
    assert has_mark(list[InputPath | None], InputPathMark)
    assert has_field_marker(Child, "watched", NoFingerprintMark)  # by its base
    assert has_field_marker(Config, "watched", NoFingerprintMark)
    assert has_field_marker(Config, "plain", NoFingerprintMark) is False
