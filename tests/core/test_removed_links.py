"""What is removed by a link is the link: its target stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.artifacts import checkpoints


@pytest.fixture
def target(tmp_path: Path) -> Path:
    path = tmp_path / "target"
    (path / "steps").mkdir(parents=True)
    (path / "steps" / "a").write_text("1")
    (path / checkpoints.COMPLETE).write_text("{}")
    return path


@pytest.mark.parametrize("remove", [storage.remove, storage.remove_file, checkpoints.remove])
@pytest.mark.parametrize("relative", [True, False])
def test_a_link_goes_and_its_target_stays(
    remove: Callable[[str], object], relative: bool, target: Path
) -> None:
    link = target.with_name("step")
    link.symlink_to(target.name if relative else target)
    remove(str(link))
    assert sorted(path.name for path in target.parent.iterdir()) == ["target"]
    assert (target / "steps" / "a").read_text() == "1"


@pytest.mark.parametrize("remove", [storage.remove, storage.remove_file])
def test_a_link_to_nothing_goes(remove: Callable[[str], object], tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    remove(str(tmp_path / "link"))
    assert not list(tmp_path.iterdir())


def test_links_within_a_removed_folder_lead_no_further(target: Path) -> None:
    folder = target.with_name("folder")
    folder.mkdir()
    (folder / "linked").symlink_to(target)
    (folder / "file").symlink_to(target / "steps" / "a")
    storage.remove(str(folder))
    assert not folder.exists()
    assert (target / "steps" / "a").read_text() == "1"


def test_a_move_onto_a_link_replaces_the_link(target: Path) -> None:
    link, new = target.with_name("link"), target.with_name("new")
    link.symlink_to(target)
    new.mkdir()
    storage.move(str(new), str(link))
    assert link.is_dir()
    assert not link.is_symlink()
    assert (target / "steps" / "a").read_text() == "1"


def test_python_follows_no_link_either(target: Path) -> None:
    """`cloze clean`, the nightly suite and commands remove folders by it, ignoring its errors."""
    link = target.with_name("link")
    link.symlink_to(target)
    shutil.rmtree(link, ignore_errors=True)
    assert (target / "steps" / "a").read_text() == "1"
