"""How `cloze nightly` ends: with and without an error, as text and as one JSON object."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from cloze.core.errors import DataError
from cloze.flows.commands import nightly as command
from cloze.flows.nightly import nightly_run, suite


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(suite, "load", lambda config, overrides: ("suite", config, overrides))
    monkeypatch.setattr(command, "_show_result", lambda result: found.append("result"))
    monkeypatch.setattr(command, "_schedule", lambda: "the server's")
    monkeypatch.setattr(command, "_show_preview", lambda preview: found.append("preview"))
    monkeypatch.setattr(
        nightly_run, "preview", lambda evaluations, since, schedule: {"since": since}
    )
    return found


def run(monkeypatch: pytest.MonkeyPatch, error: Exception | None, *words: str) -> Any:
    def night(evaluations: Any, since: str | None, schedule: Any) -> Any:
        assert (evaluations[1], since, schedule) == ("a.yaml", "1d", "the server's")
        errors = {} if error is None else {"evaluate@1": error}
        return SimpleNamespace(errors=errors, as_json=lambda: {"evaluated": 3})

    monkeypatch.setattr(nightly_run, "nightly_run", night)
    return CliRunner().invoke(command.nightly, ["a.yaml", "--since", "1d", *words])


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (None, 0, ""),
        (DataError("a file is damaged"), 3, "cloze: a file is damaged\n"),
        (KeyError("x"), 1, "cloze: KeyError: 'x'\n"),
    ],
)
def test_json_is_one_object_and_an_error_is_a_line_and_a_code(
    monkeypatch: pytest.MonkeyPatch,
    shown: list[str],
    error: Exception | None,
    code: int,
    message: str,
) -> None:
    done = run(monkeypatch, error, "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (code, {"evaluated": 3})
    assert done.stderr == message
    assert shown == ["result"]


@pytest.mark.parametrize("error", [None, DataError("a file is damaged")])
def test_without_json_an_error_is_raised(
    monkeypatch: pytest.MonkeyPatch, shown: list[str], error: Exception | None
) -> None:
    done = run(monkeypatch, error)
    assert (done.exception, done.stdout) == (error, "")
    assert shown == ["result"]


@pytest.mark.parametrize("as_json", [True, False])
def test_a_dry_run_evaluates_nothing(
    monkeypatch: pytest.MonkeyPatch, shown: list[str], as_json: bool
) -> None:
    done = run(monkeypatch, DataError("it ran"), "--dry-run", *(["--json"] if as_json else []))
    assert done.exit_code == 0
    assert shown == ([] if as_json else ["preview"])
    assert not as_json or json.loads(done.stdout) == {"since": "1d"}
