"""What an error says, to the letter: the file, the cause without the input's text, the remedy."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import zlib
from xml.parsers.expat import ExpatError, ParserCreate

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cloze.core import errors
from cloze.core.errors import (
    ClozeError,
    DataError,
    NotFiniteError,
    StoppedError,
    SupersededError,
    TimeLimitError,
    UsageError,
    shell_command,
)
from tests.conftest import REPOSITORY


def test_each_error_has_its_exit_code() -> None:
    codes = {
        ClozeError: 1,
        UsageError: 2,
        SupersededError: 2,
        DataError: 3,
        TimeLimitError: 1,
        NotFiniteError: 1,
        StoppedError: 4,
    }
    assert {kind: kind("x").exit_code for kind in codes} == codes
    assert {2: UsageError, 3: DataError, 4: StoppedError} == errors.BY_EXIT_CODE
    for kind in codes:  # also from a process on another host
        assert errors.error_class(errors.error_event(kind("x"))) is kind
    assert (ClozeError("x").step, ClozeError("x").process_died) == (None, False)


@pytest.mark.parametrize(
    ("word", "otherwise", "says"),
    [
        ("corpsu", None, "did you mean 'corpus'?"),
        ("corpsu", "see help", "did you mean 'corpus'?"),
        ("xyz", None, "choose from corpus, dataset"),
        ("xyz", "see help", "see help"),
    ],
)
def test_the_nearest_choice_or_all_of_them(word: str, otherwise: str | None, says: str) -> None:
    assert errors.did_you_mean(word, ("dataset", "corpus"), otherwise) == says
    assert errors.did_you_mean(word, (), otherwise) == (otherwise or "there is none yet")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "free some of your quota"),
        (errno.EROFS, "mount it writable again, or choose another path"),
        (errno.EACCES, "choose a path that you may write to"),
        (errno.EPERM, "choose a path that you may write to"),
        (errno.EMFILE, "raise the limit of open files (ulimit -n)"),
        (errno.ENOENT, "check the path, its permissions and the disk"),
    ],
)
def test_an_error_of_the_system_names_file_cause_and_remedy(number: int, remedy: str) -> None:
    text = os.strerror(number)
    named, unnamed = OSError(number, text, "/a/b"), OSError(number, text)
    assert errors.describe_os_error(named, "output") == f"/a/b: {text}; {remedy}"
    assert errors.describe_os_error(unnamed, "output") == f"output: {text}; {remedy}"
    assert errors.describe_error("unit 3", named) == f"/a/b: {text}; {remedy}"
    assert errors.describe_error("unit 3", unnamed) == (
        f"input or output of unit 3: {text}; {remedy}"
    )


def test_an_error_of_the_system_without_a_number_keeps_its_text() -> None:
    assert errors.describe_os_error(OSError("the store is away"), "output") == (
        "output: the store is away; check the path, its permissions and the disk"
    )


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError(), "unit 3 did not fit in memory; use fewer"),
        (MemoryError("9 TiB"), "unit 3 did not fit in memory (9 TiB); use fewer"),
        (KeyError("two\n lines"), "unit 3 failed: KeyError: 'two\\n lines'"),
        (ValueError("two\n lines"), "unit 3 failed: ValueError: two lines"),
    ],
)
def test_a_failed_unit_is_named(error: Exception, says: str) -> None:
    rest = " --workers, smaller shards, or a machine with more memory"
    expected = says + rest if isinstance(error, MemoryError) else says
    assert errors.describe_error("unit 3", error) == expected


def expat(text: str) -> ExpatError:
    with pytest.raises(ExpatError) as caught:
        ParserCreate().Parse(text)
    return caught.value


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SyntaxError("bad", ("a", 7, 1, "the secret text")), "it is not well-formed in line 7"),
        (SyntaxError("bad"), "it is not well-formed in line 1"),
        (zlib.error("Error -3: incorrect header"), "Error -3: incorrect header"),
        (EOFError(), "EOFError"),
        (json.JSONDecodeError("Expecting value", "x", 0), "Expecting value: line 1 column 1 (char 0)"),
        (ValueError("cannot convert: 'the secret text'"), "cannot convert"),
        (ValueError('"the secret text" is no number'), "ValueError"),
        (ValueError("no number in a@b.org"), "no number in"),
        (ValueError("first line\nthe secret text"), "first line"),
        (ValueError("x" * 500), "x" * 120),
        (ValueError("it ends, "), "it ends"),
    ],
)  # fmt: skip
def test_a_cause_quotes_nothing_of_the_input(error: Exception, cause: str) -> None:
    assert errors.cause_of(error) == cause


def test_a_phrase_with_its_place_is_kept() -> None:
    assert errors.cause_of(expat("<a><b></a>")) == "mismatched tag: line 1, column 8"


@given(st.text())
def test_a_sentence_is_one_line_and_bounded(text: str) -> None:
    found = errors.bounded(text)
    assert found == " ".join(found.split())
    assert len(found) <= 401
    line = " ".join(text.split())
    assert found == line if len(line) <= 400 else found == f"{line[:400]}…"


def test_a_sentence_of_the_limit_is_whole() -> None:
    assert errors.bounded("x" * 400) == "x" * 400
    assert errors.bounded("x" * 401) == "x" * 400 + "…"


@pytest.mark.parametrize(
    ("number", "given_name", "named"),
    [
        (errno.ENOSPC, None, "/a/b"),
        (errno.EIO, None, "/a/b"),
        (errno.ENOSPC, "/c", "/c"),
        (errno.ECONNRESET, None, None),  # no error of the disk
    ],
)
def test_a_failed_write_is_named(number: int, given_name: str | None, named: str | None) -> None:
    with pytest.raises(OSError, match="x") as caught, errors.naming("/a/b"):
        raise OSError(number, "x", given_name)
    assert caught.value.filename == named


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("torch", "run `pip install 'cloze-pretraining-base[train]'`"),
        ("mlflow.tracking", "mlflow is not installed here; run `pip install "),
        ("tokenizers", "run `pip install 'cloze-pretraining-base[data,train]'`"),
        ("transformers", "run `pip install 'cloze-pretraining-base[onnx]'`"),
        ("nobodys", "No module named 'nobodys'; install the package that provides it"),
        (None, "No module named None; install the package that provides it"),
    ],
)
def test_a_missing_package_is_told_with_its_extra(name: str | None, says: str) -> None:
    error = ModuleNotFoundError(f"No module named {name!r}", name=name)
    assert says in errors.describe_missing_package(error)


def test_packages_are_looked_for_without_an_import() -> None:
    errors.require_packages("json", "os")
    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_thing'") as caught:
        errors.require_packages("json", "no_such_thing")
    assert caught.value.name == "no_such_thing"


@pytest.mark.parametrize(
    ("error", "event"),
    [
        (
            DataError("x is bad"),
            {"error": "x is bad", "exit_code": 3, "type": "DataError"},
        ),
        (
            OSError(errno.ENOSPC, "No space left on device", "/a"),
            {
                "error": "/a: No space left on device; free some space and run again",
                "exit_code": 1,
            },
        ),
        (
            ModuleNotFoundError("No module named 'x'", name="x"),
            {"error": "No module named 'x'; install the package that provides it", "exit_code": 2},
        ),
        (ValueError("x"), {"error": "ValueError: x", "exit_code": 1, "unexpected": True}),
    ],
)
def test_the_last_event_of_a_failed_worker(error: Exception, event: dict[str, object]) -> None:
    assert errors.error_event(error) == event


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="<>")))
def test_a_message_survives_what_stands_around_it(text: str, around: str) -> None:
    assert errors.extract_message(f"{around}{errors.wrap_message(text)}\n{around}") == text
    assert errors.extract_message(around) is None


def test_the_first_of_two_messages_counts() -> None:
    both = errors.wrap_message('a "quoted" one') + errors.wrap_message("second")
    assert errors.extract_message(both) == 'a "quoted" one'


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1))
@example("-x")
@example("--json")
@example("it's `ls` $(ls) *?[a] \\ #")
def test_advice_can_be_pasted_into_a_shell(name: str) -> None:
    advice = shell_command("resume", name)
    assert (advice[0], advice[-1]) == ("`", "`")
    assert [word for word in shlex.split(advice[1:-1]) if word != "--" or name == "--"][-1] == name
    assert name[0] != "-" or "--" in shlex.split(advice)[2:3]


def test_no_advice_puts_a_name_into_a_command_unquoted() -> None:
    """Names of runs and paths may have blanks and `$`; words of Cloze, in capitals here, have none."""
    unquoted = []
    for package in ("core", "flows", "model", "pipeline", "labs"):
        for path in (REPOSITORY / package).rglob("*.py"):
            joined = re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8"))
            found = re.findall(r"`cloze [a-z-]+ (?:--?\S+ )*\{([^}]+)\}", joined)
            unquoted += [(str(path), name) for name in found if name not in ("recipe",)]
    assert not unquoted
