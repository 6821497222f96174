"""The board shows a champion, and none where its journal cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.errors import DataError
from cloze.flows.ui import dashboard


@pytest.mark.parametrize("error", [OSError, DataError])
def test_a_journal_that_cannot_be_read_has_no_champion(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], tmp_path: Path
) -> None:
    class Broken:
        def __init__(self, runs: Path) -> None:
            assert runs == tmp_path

        def champion(self) -> object:
            raise error("damaged")

    monkeypatch.setattr(dashboard, "Journal", Broken)
    assert dashboard._champion(tmp_path) is None
    monkeypatch.setattr(Broken, "champion", lambda self: "a champion")
    champion: object = dashboard._champion(tmp_path)
    assert champion == "a champion"


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Wrong:
        def __init__(self, runs: Path) -> None:
            raise AttributeError("a slip")

    monkeypatch.setattr(dashboard, "Journal", Wrong)
    with pytest.raises(AttributeError, match="a slip"):
        dashboard._champion(tmp_path)
