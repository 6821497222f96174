"""What the documents say of tests and of `make` is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from cloze.flows.cli import command_names
from tests.conftest import REPOSITORY

DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "infra/**/*.md", "tests/*.md", ".github/**/*.md")
    for path in REPOSITORY.glob(pattern)
    if path.name != "CHANGELOG.md"
)
# "A test …", "tested on …": a claim that a reader wants to follow.
CLAIM = re.compile(
    r"\b(?:is|are|was|were) (?:all )?tested\b|\b[Aa] test (?:compares|checks|shows|fails)"
)
PLACE = re.compile(r"tests/[a-z][\w/.-]*\w|\btest_\w+\.py")


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_each_test_that_a_document_names_exists(path: Path) -> None:
    text = path.read_text()
    files = {file.name: file for file in REPOSITORY.glob("tests/**/*.py")}
    for named in PLACE.findall(text):
        assert (REPOSITORY / named).exists() or Path(named).name in files, named
    for file, function in re.findall(r"(test_\w+\.py)::(test_\w+)", text):
        assert function in functions(files[file]), f"{file} has no {function}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_who_says_that_something_is_tested_says_where(path: Path) -> None:
    for paragraph in path.read_text().split("\n\n"):
        if CLAIM.search(paragraph):
            assert PLACE.search(paragraph) or "make " in paragraph, paragraph


def test_each_target_of_make_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (REPOSITORY / "Makefile").read_text(), re.M))
    for path in DOCUMENTS:
        for line in re.findall(r"`make ([\w-]+)|^    make ([\w-]+)", path.read_text(), re.M):
            assert set(line) - {""} <= targets, f"{path}: make {line}"


OF_THE_HOUSE = ("README.md", "AGENTS.md", "CONTRIBUTING.md", "docs/architecture.md")
MADE = {"dist/", "_logs/", "_logs/launches/"}  # folders that a command makes


@pytest.mark.parametrize("name", OF_THE_HOUSE)
def test_each_room_that_a_page_names_exists(name: str) -> None:
    """Paths may leave out the package, as `corpus/explain.py` does; a name in brackets is in it."""
    text = re.sub(r"```.*?```", "", (REPOSITORY / name).read_text(), flags=re.S)
    places = {
        "/" + path.relative_to(REPOSITORY).as_posix() + "/" * path.is_dir(): path
        for top in (*ROOMS, "docs", "tests", "benchmarks", "infra", "src/cloze")
        for path in (REPOSITORY / top, *(REPOSITORY / top).rglob("*"))
    }
    for named, function in re.findall(r"`([\w./-]+(?:/|\.py))`(?: \(`(\w+)`)?", text):
        if "NAME" in named or "/" not in named or named in MADE:
            continue
        found = [path for place, path in places.items() if place.endswith("/" + named)]
        assert found, f"{name} names {named}"
        if function and named.endswith(".py"):
            assert any(re.search(rf"\b{function}\b", path.read_text()) for path in found), function


ROOMS = ("core", "pipeline", "model", "flows", "labs")


def test_the_page_of_the_architecture_shows_each_room() -> None:
    """A folder has a row of its own, or is named in its package's part of the table."""
    table = (REPOSITORY / "docs/architecture.md").read_text().partition("## Package layout")[2]
    table = table.partition("## Stages")[0]
    for room in ROOMS:
        part = table.partition(f"**`{room}/`**")[2].partition("**`")[0]
        for folder in (REPOSITORY / room).iterdir():
            if (folder / "__init__.py").exists():
                assert re.search(rf"`(\w+/)*{folder.name}/", part), f"{room}/{folder.name}"


def test_each_variable_that_a_page_names_is_in_the_help() -> None:
    """Those of the team's stack are in its example of an environment."""
    topic = (REPOSITORY / "flows/commands/topics/environment.txt").read_text()
    stack = topic + (REPOSITORY / "infra/.env.example").read_text()
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")):
        known = stack if path.name == "operations.md" else topic
        named = set(re.findall(r"\bCLOZE_[A-Z_]*[A-Z]\b", path.read_text()))
        lacking = {name for name in named if not re.search(rf"\b{name}\b", known)}
        assert not lacking, f"{path.relative_to(REPOSITORY)}: {sorted(lacking)}"


def test_each_command_that_a_page_names_is_listed() -> None:
    """Old names, which are other commands' options, work but are not shown."""
    known = {*command_names(), *(lab.name for lab in (REPOSITORY / "labs").iterdir())}
    for path in DOCUMENTS:
        text = re.sub(r"\s+", " ", path.read_text())
        named = set(re.findall(r"`cloze ([a-z][a-z-]+)\b", text))
        assert named <= known, f"{path.relative_to(REPOSITORY)}: {sorted(named - known)}"
