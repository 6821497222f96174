"""Configs that are composed of the options of a table's rows."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cloze.core.config import StageConfig
from cloze.core.options import Options, compose_config_class, field_docs


class Shared(Options):
    rate: float = 0.5
    """How often."""


class First(Shared):
    first: int = 1
    """Of the first."""


class Second(Shared):
    second: int = 2
    """Of the second."""


class Other(Options):
    rate: int = 3


def test_a_config_has_the_options_of_all_rows_with_what_they_say() -> None:
    config = compose_config_class(
        "Config",
        StageConfig,
        [f"{__name__}:First", None, f"{__name__}:Second", f"{__name__}:First"],
    )
    found = config(second=5)
    assert found.model_dump() == {"rate": 0.5, "first": 1, "second": 5}
    assert isinstance(found, First)
    assert isinstance(found, Second)
    assert field_docs(config) == {
        "rate": "How often.",
        "first": "Of the first.",
        "second": "Of the second.",
    }
    with pytest.raises(ValidationError, match="third"):
        config(third=1)


def test_two_rows_may_not_declare_the_same_option() -> None:
    with pytest.raises(TypeError, match="Other and Shared both declare rate; rename one"):
        compose_config_class("Config", StageConfig, [f"{__name__}:First", f"{__name__}:Other"])
