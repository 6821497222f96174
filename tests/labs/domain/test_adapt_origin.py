"""What `cloze adapt` starts from where no plan is made: a checkpoint, also one that looks like both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.labs.domain import adapt

READERS = (
    "pretrain.checkpoint", "likelihood.matrix.row.before.checkpoint",
    "finetune.matrix.row.before.checkpoint",
)  # fmt: skip


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The origins that had to be checkpoints."""
    found: list[str] = []
    monkeypatch.setattr(adapt, "_check_origin", lambda origin, path: found.append(path))
    return found


def settings(origin: Path, detour: int = 0) -> dict[str, Any]:
    return adapt._settings(
        origin=str(origin), sources=[], general=None, words=0, steps=5, detour=detour, task="sst2",
        data="d", seeds=1,
    )  # fmt: skip


def directory(path: Path, *files: str) -> Path:
    path.mkdir()
    for name in files:
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize("files", [("checkpoint.json",), ("checkpoint.json", "config.json"), ()])
def test_a_checkpoint_is_read_where_it_is(
    tmp_path: Path, checked: list[str], files: tuple[str, ...]
) -> None:
    origin = directory(tmp_path / "own", *files)
    found = settings(origin)
    assert "import.directory" not in found
    assert [found[reader] for reader in READERS] == [str(origin)] * 3
    assert checked == [str(origin)]
