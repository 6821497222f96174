"""What `cloze import` and `cloze export --push` ask of a Hub, word for word, without one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cloze.core.errors import ClozeError, UsageError
from cloze.flows.commands import hub
from cloze.flows.commands.base.stage_command import StageArguments

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub ([hub])")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """What is asked of the Hub; a snapshot lies in a directory named by its commit."""
    calls: list[Any] = []

    def note(name: str, answer: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            calls.append((name, *arguments, named))
            return SimpleNamespace(oid=f"c{len(calls)}") if answer is None else answer

        return call

    class Api:
        create_repo = staticmethod(note("create_repo", 0))
        create_branch = staticmethod(note("create_branch", 0))
        upload_folder = staticmethod(note("upload_folder", None))

    stand_in = SimpleNamespace(
        HfApi=Api, snapshot_download=note("download", str(tmp_path / "snapshots" / "0c0ffee"))
    )
    monkeypatch.setattr(hub, "_transfer", lambda transfer: transfer(stand_in))
    monkeypatch.setattr(hub, "run_stage", lambda arguments: calls.append(arguments))
    return calls


def imported(source: str, **config: Any) -> None:
    arguments = StageArguments(
        stage="import", inputs={"directory": source}, config=config, execution={}
    )
    hub.import_model.callback(arguments)  # type: ignore[misc]


FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]


@pytest.mark.parametrize(
    ("source", "name", "revision"),
    [
        ("org/model", "org/model", None),
        ("Org-1/my_model.v2@main", "Org-1/my_model.v2", "main"),
        ("org/model@refs/pr/1", "org/model", "refs/pr/1"),
    ],
)
@pytest.mark.parametrize("trust", [None, False, True])
def test_an_import_fetches_what_it_reads_and_records_the_commit(
    asked: list[Any], tmp_path: Path, source: str, name: str, revision: str | None,
    trust: bool | None,
) -> None:  # fmt: skip
    config = {} if trust is None else {"trust_pickle": trust}
    imported(source, **config)
    download, arguments = asked
    patterns = [*FILES, "*.bin"] if trust else FILES
    assert download == ("download", name, {"revision": revision, "allow_patterns": patterns})
    assert arguments.inputs == {"directory": str(tmp_path / "snapshots" / "0c0ffee")}
    assert arguments.config == {**config, "repository": f"{name}@0c0ffee"}


def test_a_directory_is_read_where_it_lies_though_its_name_may_be_a_repositorys(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for source in ("org/model", "org", str(tmp_path), "s3://bucket/a/model", "./none/at/all"):
        imported(source, name="x")
        (arguments,) = asked
        assert (arguments.inputs, arguments.config) == ({"directory": source}, {"name": "x"})
        asked.clear()
    with pytest.raises(
        UsageError,
        match=r"^model does not exist; a repository of a Hub is ORG/NAME, such as google-bert/bert",
    ):
        imported("model")
    assert asked == []


def pushed(*words: str) -> Any:
    return CliRunner().invoke(hub.export, [words[0], "--push", *words[1:]], catch_exceptions=False)


@pytest.mark.parametrize("kind", ["model", "dataset"])
@pytest.mark.parametrize("private", [True, False])
def test_a_push_uploads_main_and_each_revision_to_its_branch(
    asked: list[Any], tmp_path: Path, kind: str, private: bool
) -> None:
    (tmp_path / {"model": "config.json", "dataset": "croissant.json"}[kind]).touch()
    for name in ("step-4", "chck_1M"):
        (tmp_path / "revisions" / name).mkdir(parents=True)
    (tmp_path / "revisions" / "README").touch()
    done = pushed(str(tmp_path), "org/name", *(["--private"] if private else []))
    assert asked[0] == (
        "create_repo",
        "org/name",
        {"repo_type": kind, "private": private, "exist_ok": True},
    )
    expected: list[Any] = []
    for branch, directory in (
        ("main", tmp_path),
        ("chck_1M", tmp_path / "revisions" / "chck_1M"),
        ("step-4", tmp_path / "revisions" / "step-4"),
    ):
        if branch != "main":
            named = {"branch": branch, "repo_type": kind, "exist_ok": True}
            expected.append(("create_branch", "org/name", named))
        named = {
            "repo_id": "org/name",
            "folder_path": directory,
            "repo_type": kind,
            "revision": branch,
            "ignore_patterns": ["manifest.json", "manifest.arrow", "_*", "_*/*", "revisions/*"],
            "commit_message": "Export of Cloze",
        }
        expected.append(("upload_folder", named))
    assert asked[1:] == expected
    assert done.output == "org/name@main: c2\norg/name@chck_1M: c4\norg/name@step-4: c6\n"
    asked.clear()
    assert json.loads(pushed(str(tmp_path), "org/name", "--json").output) == {
        "repository": "org/name",
        "type": kind,
        "commits": {"main": "c2", "chck_1M": "c4", "step-4": "c6"},
    }


@pytest.mark.parametrize("repository", ["name", "org/name@main", "org/", "a/b/c", "org/na me"])
def test_a_push_goes_to_no_other_form_of_name(
    asked: list[Any], tmp_path: Path, repository: str
) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(UsageError, match=r"has another form; write it as org/name$"):
        pushed(str(tmp_path), repository)
    assert asked == []


@pytest.mark.parametrize("kind", ["HfHubHTTPError", "LocalEntryNotFoundError", "OSError", "other"])
def test_what_a_hub_refuses_is_one_sentence_and_a_fault_of_ours_stays_one(kind: str) -> None:
    import huggingface_hub
    from huggingface_hub import errors

    text = "not\n here"
    response: Any = SimpleNamespace(headers={}, request=None)
    made: dict[str, Callable[[], Exception]] = {
        "HfHubHTTPError": lambda: errors.HfHubHTTPError(text, response=response),
        "LocalEntryNotFoundError": lambda: errors.LocalEntryNotFoundError(text),
        "OSError": lambda: OSError(text),
        "other": lambda: KeyError(text),
    }
    error = made[kind]()

    def refuse(found: Any) -> None:
        assert found is huggingface_hub
        raise error

    with pytest.raises(KeyError if kind == "other" else ClozeError) as caught:
        hub._transfer(refuse)
    if kind != "other":
        assert str(caught.value) == (
            "the Hub refused or did not answer (not here); try again later"
        )
        assert caught.value.__cause__ is error
    assert hub._transfer(lambda found: 5) == 5
