"""What is said of a wrong value in a config, word for word; where a value is left as it is."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from cloze.core.config import InputPath, StageConfig, parse_config, resolve_paths
from cloze.core.errors import UsageError


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    weight: float = 1.0


class Config(StageConfig):
    place: str = Field(examples=["/data/a", "/data/b"])
    plain: int
    kind: Literal["a", "b"] = "a"
    part: Part | None = None
    parts: tuple[Part, ...] = ()
    numbers: dict[str, int] = Field(default_factory=dict)
    least: int = 0
    most: int = 1

    @field_validator("least")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2:
            raise ValueError("give an even number")
        return value

    @model_validator(mode="after")
    def _in_order(self) -> Config:
        if self.least > self.most:
            raise ValueError(f"least ({self.least}) is more than most ({self.most})")
        return self


GIVEN: dict[str, Any] = {"place": "p", "plain": 1}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"place": "p"}, "toy.plain is missing; give it a value"),
        ({"place": "p", "plian": 1}, "unknown config key toy.plian; did you mean 'plain'?"),
        ({"plain": 1}, "toy.place is missing; give it: --set toy.place='/data/a'"),
        ({**GIVEN, "part": {}}, "toy.part.name is missing; give it a value"),
        ({**GIVEN, "part": {"name": "n", "wight": 2}}, "unknown config key toy.part.wight; did you mean 'weight'?"),
        ({**GIVEN, "parts": [{"name": "n"}, {"name": "n", "nam": 2}]},
         "unknown config key toy.parts.1.nam; did you mean 'name'?"),
        ({**GIVEN, "plan": 3}, "unknown config key toy.plan; did you mean 'plain'?"),
        ({**GIVEN, "kind": "c"}, "toy.kind (found 'c'): Input should be 'a' or 'b'"),
        ({**GIVEN, "least": 3}, "toy.least (found 3): give an even number"),
        ({**GIVEN, "least": 2}, "toy: least (2) is more than most (1)"),
        ({**GIVEN, "numbers": {"x": "y"}},
         "toy.numbers.x (found 'y'): Input should be a valid integer, unable to parse string as an integer"),
        ({**GIVEN, "plain": "x", "kind": "c"},
         "toy.plain (found 'x'): Input should be a valid integer, unable to parse string as an integer"),
    ],
)  # fmt: skip
def test_the_first_fault_is_told(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_config(Config, values, "toy")
    assert str(refused.value) == told


def test_a_config_without_a_section_is_named_by_its_keys() -> None:
    with pytest.raises(UsageError) as refused:
        parse_config(Config, {"place": "p"}, "")
    assert str(refused.value) == "plain is missing; give it a value"


class Paths(StageConfig):
    pair: tuple[str, InputPath] = ("", "")
    either: InputPath | int | None = None
    deep: dict[str, tuple[InputPath, ...]] = Field(default_factory=dict)
    plain: str = ""


@pytest.mark.parametrize(
    ("values", "resolved"),
    [
        ({"pair": ["a", "b"]}, {"pair": ["a", "/base/b"]}),
        ({"pair": ["a", "b", "c"]}, {"pair": ["a", "b", "c"]}),
        ({"either": "a"}, {"either": "/base/a"}),
        ({"either": 3}, {"either": 3}),
        ({"either": None}, {"either": None}),
        ({"either": "s3://b/a"}, {"either": "s3://b/a"}),
        ({"either": "/a"}, {"either": "/a"}),
        ({"deep": {"x": "a"}}, {"deep": {"x": "/base/a"}}),
        ({"deep": {"x": ["a", "/b"]}}, {"deep": {"x": ["/base/a", "/b"]}}),
        ({"deep": 5}, {"deep": 5}),
        ({"plain": "a", "other": "b"}, {"plain": "a", "other": "b"}),
    ],
)
def test_paths_are_of_the_files_place(values: dict[str, Any], resolved: dict[str, Any]) -> None:
    assert resolve_paths(Paths, values, "/base") == resolved
