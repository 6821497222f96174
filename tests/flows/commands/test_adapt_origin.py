"""What `cloze adapt` starts from: a Hugging Face directory is imported first, a checkpoint is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.flows.commands import adapt

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


def test_a_hugging_face_directory_is_imported_first(tmp_path: Path, checked: list[str]) -> None:
    origin = directory(tmp_path / "hub", "config.json")
    found = settings(origin)
    assert found["import.directory"] == str(origin)
    assert [found[reader] for reader in READERS] == ["import"] * 3
    assert found["vocab.import_path"] == str(origin)
    assert checked == []


@pytest.mark.parametrize("files", [("checkpoint.json",), ("checkpoint.json", "config.json"), ()])
def test_a_checkpoint_is_read_where_it_is(
    tmp_path: Path, checked: list[str], files: tuple[str, ...]
) -> None:
    origin = directory(tmp_path / "own", *files)
    found = settings(origin)
    assert "import.directory" not in found
    assert [found[reader] for reader in READERS] == [str(origin)] * 3
    assert checked == [str(origin)]


@pytest.mark.parametrize(("file", "start"), [("config.json", "import"), ("checkpoint.json", None)])
def test_a_detour_starts_there_and_the_training_from_the_detour(
    tmp_path: Path, checked: list[str], file: str, start: str | None
) -> None:
    origin = directory(tmp_path / "x", file)
    found = settings(origin, detour=7)
    assert found["pretrain@detour.checkpoint"] == (start or str(origin))
    assert found["pretrain.checkpoint"] == "pretrain@detour"
    assert found["pretrain@detour.steps"] == 7
    assert len(checked) == (start is None)
