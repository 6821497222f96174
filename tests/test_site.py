"""The generated pages of the documentation site."""

import importlib.util
import re
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from cloze.core.options import field_docs
from cloze.flows.cli import command_names
from cloze.flows.graph.stages import TABLE

HOOK = Path(__file__).parents[1] / "docs" / "reference_pages.py"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", HOOK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_config_page_has_every_stage_and_every_field(pages: ModuleType) -> None:
    sections = dict(
        re.findall(r"^## `([\w-]+)`\n(.*?)(?=^## |\Z)", pages.config_page(), re.M | re.S)
    )
    assert list(sections) == [*TABLE, "run", "night"]
    for name, reference in TABLE.items():
        config = resolve_name(reference).config
        for field in config.model_fields:
            row = re.search(rf"^\| `{field}` \|(.*)\|$", sections[name], re.M)
            assert row, f"{name}.{field}"
            described = row[1].rsplit(" | ", 1)[-1].strip()
            assert bool(described) == (field in field_docs(config)), f"{name}.{field}"


def test_the_commands_page_has_every_command(pages: ModuleType) -> None:
    page = pages.commands_page()
    assert re.findall(r"^### `cloze ([\w-]+)`$", page, re.M) == command_names()
    assert "--global-batch" in page
