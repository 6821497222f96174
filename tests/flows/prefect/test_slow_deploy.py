"""A deploy that waits says what for, on stderr; a quick one says nothing."""

from __future__ import annotations

import time

import pytest

from cloze.flows.prefect import deploy
from cloze.flows.views import terminal


@pytest.mark.parametrize(("seconds", "said"), [(0.0, False), (0.3, True)])
def test_a_slow_part_is_named(
    seconds: float,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0.1)
    with terminal.saying("a deploy waits for Prefect at http://a/api"):
        time.sleep(seconds)
    time.sleep(0.2)
    out, err = capsys.readouterr()
    line = "cloze: a deploy waits for Prefect at http://a/api; Ctrl-C ends it\n"
    assert (out, err) == ("", line if said else "")


def test_a_silent_server_is_named_before_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0.0)
    with pytest.raises(Exception, match="Prefect at http://127.0.0.1:9/api"):
        deploy.deploy("http://127.0.0.1:9/api")
    assert "a deploy waits for Prefect at http://127.0.0.1:9/api" in capsys.readouterr().err
