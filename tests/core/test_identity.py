"""The identity of the program: whatever decides about results counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core import identity as module


@pytest.mark.parametrize(
    ("name", "counts"), [("a.py", True), ("steps/words.txt", True), ("a.pyc", False)]
)
def test_programs_and_their_tables_count(
    name: str, counts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers whose tables of words differ clean text in different ways."""
    monkeypatch.setattr(module, "__file__", str(tmp_path / "cloze" / "core" / "identity.py"))
    file = tmp_path / "cloze" / "core" / name
    file.parent.mkdir(parents=True)
    codes = []
    for content in ("one", "two"):
        file.write_text(content)
        codes.append(module.identity("core")["code"])
    assert (codes[0] != codes[1]) == counts
