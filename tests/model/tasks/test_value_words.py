"""Values of files as text, numbered sentences of SemEval's files, and which file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import DataError
from cloze.labs.relations.official import SENTENCE
from cloze.model.tasks.files import split_file
from cloze.model.tasks.formats.table_files import as_text
from cloze.model.tasks.options import TextOptions


@pytest.mark.parametrize(
    ("value", "text"),
    [("a", "a"), ("", ""), (None, ""), (True, "true"), (False, "false"), (3, "3"), (2.5, "2.5")],
)
def test_a_value_is_a_text(value: Any, text: str) -> None:
    assert as_text(value, "f, row 1", "sentence") == text


@pytest.mark.parametrize(
    ("value", "kind"),
    [([], "a list"), (["a"], "a list"), ({}, "an object"), ({"a": 1}, "an object")],
)
def test_what_is_no_text_is_named(value: Any, kind: str) -> None:
    with pytest.raises(DataError) as caught:
        as_text(value, "f, row 1", "sentence")
    assert str(caught.value) == (
        f"f, row 1: the sentence is {kind} instead of a text; name another column"
    )


@pytest.mark.parametrize(
    ("line", "number", "text"),
    [
        ('1\t"The <e1>cat</e1> sat."', "1", "The <e1>cat</e1> sat."),
        ('12\t"It said "no" again."  ', "12", 'It said "no" again.'),
        ("3\tWithout marks \r", "3", "Without marks"),
        ('4\t""', "4", ""),
    ],
)
def test_a_numbered_sentence(line: str, number: str, text: str) -> None:
    match = SENTENCE.fullmatch(line)
    assert match is not None
    assert match.groups() == (number, text)


@pytest.mark.parametrize("line", ["Cause-Effect(e1,e2)", "Comment: 5", "", "x1\ta", "1 a"])
def test_what_is_no_numbered_sentence(line: str) -> None:
    assert SENTENCE.fullmatch(line) is None


def test_the_file_of_a_split_is_the_path_or_the_first_that_exists(tmp_path: Path) -> None:
    options = TextOptions(folder="glue/CoLA", files={"test": ("a.tsv", "b.tsv")})

    def found(path: Path, split: str = "dev") -> Path:
        return Path(split_file(str(path), split, options, (".tsv", ".csv"), "files of a task"))

    folders = [tmp_path / "glue" / "CoLA", tmp_path / "CoLA", tmp_path]
    for folder in reversed(folders):  # the later, the more it is preferred
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("dev.csv", "dev.tsv"):
            (folder / name).touch()
            assert found(tmp_path) == folder / name
        assert found(folder / "dev.csv", "train") == folder / "dev.csv"
    for name in ("b.tsv", "a.tsv"):
        (tmp_path / "CoLA" / name).touch()
        assert found(tmp_path, "test") == tmp_path / "CoLA" / name
    with pytest.raises(DataError, match="files of a task"):
        found(tmp_path, "train")
    with pytest.raises(DataError, match="files of a task"):
        found(tmp_path / "none")
