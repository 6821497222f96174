"""Inputs that change while a stage reads them: no artifact carries the fingerprint of another
content.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloze.core import storage
from cloze.core.artifacts import artifact, fingerprints
from cloze.core.config import InputPath, StageConfig
from cloze.core.errors import DataError
from cloze.core.stages.execute import execute
from cloze.core.stages.stage import BuildContext, InputSpec, Stage, StageResult


class Config(StageConfig):
    data: InputPath


def stage(meanwhile: Callable[[], object] = lambda: None) -> Stage:
    def run(config: Config, build: BuildContext) -> StageResult:
        """Copy what there is, a file a unit; an earlier attempt's units are taken over."""
        names = storage.list_files(config.data) if storage.is_dir(config.data) else [""]
        for name in names:
            copy, done = build.file(f"copy-{name}"), storage.join(build.scratch, f"{name}.done")
            if not storage.exists(done):
                with storage.open_input(
                    storage.join(config.data, name) if name else config.data
                ) as handle:
                    storage.write_bytes(copy, handle.read())
                storage.write_bytes(done, b"")
            meanwhile()
        return StageResult()

    return Stage(name="copy", version=1, config=Config, run=run, inputs={"extra": InputSpec()})


def grow(path: Path) -> None:
    """As a download does."""
    with path.open("ab") as stream:
        stream.write(b" and more")


def test_a_file_that_grows_while_it_is_read_ends_the_stage(tmp_path: Path) -> None:
    dump, out = tmp_path / "dump.xml", str(tmp_path / "out")
    dump.write_bytes(b"first")
    with pytest.raises(
        DataError, match=r"dump\.xml changed while it was read \(5 bytes before, 14 now\)"
    ) as error:
        execute(stage(lambda: grow(dump)), Config(data=str(dump)), {}, out)
    assert error.value.exit_code == 3
    assert not artifact.is_artifact(out)
    dump.write_bytes(b"again")
    os.utime(dump, (1, 1))
    made = execute(stage(), Config(data=str(dump)), {}, out)
    assert Path(out, "copy-").read_bytes() == b"again"
    assert made.manifest.parents["data"] == fingerprints.input_fingerprint(str(dump))


def test_no_unit_of_changed_content_is_taken_over(tmp_path: Path) -> None:
    """The first content is there again, as after a second download of the same file."""
    dump, out = tmp_path / "dump.xml", str(tmp_path / "out")
    dump.write_bytes(b"first")
    config = Config(data=str(dump))
    with pytest.raises(DataError, match="changed while it was read"):
        execute(stage(lambda: dump.write_bytes(b"other")), config, {}, out)
    dump.write_bytes(b"first")
    Path(out, "copy-").write_bytes(b"of the other content")
    execute(stage(), config, {}, out)
    assert Path(out, "copy-").read_bytes() == b"first"


@pytest.mark.parametrize("role", ["config", "input"])
def test_a_file_that_is_added_or_removed_is_named(tmp_path: Path, role: str) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    for directory in (data, other):
        directory.mkdir()
        (directory / "a.txt").write_text("a")
    watched = data if role == "config" else other
    inputs = {"extra": str(other)} if role == "input" else {}
    with pytest.raises(DataError, match=r"b\.txt was added while"):
        execute(
            stage(lambda: (watched / "b.txt").write_text("b")),
            Config(data=str(data)),
            inputs,
            str(tmp_path / "out"),
        )
    with pytest.raises(DataError, match=r"a\.txt was removed while"):
        execute(
            stage(lambda: (watched / "a.txt").unlink(missing_ok=True)),
            Config(data=str(data)),
            inputs,
            str(tmp_path / "out"),
        )


def test_a_new_time_of_the_same_bytes_is_no_change(tmp_path: Path) -> None:
    dump = tmp_path / "dump.xml"
    dump.write_bytes(b"first")
    made = execute(
        stage(lambda: os.utime(dump, (1, 1))), Config(data=str(dump)), {}, str(tmp_path / "out")
    )
    assert not made.cached


def test_unchanged_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no memory of hashes can be kept, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    dump, read = tmp_path / "dump.xml", list[str]()
    dump.write_bytes(b"first")
    sha256 = storage.sha256
    monkeypatch.setattr(
        storage, "sha256", lambda path, *rest: (read.append(path), sha256(path, *rest))[1]
    )
    execute(stage(), Config(data=str(dump)), {}, str(tmp_path / "out"))
    assert read.count(str(dump)) == 1


def test_an_output_within_the_directory_that_is_read_is_no_change(tmp_path: Path) -> None:
    """Such as an evaluation below its task's directory."""
    (tmp_path / "a.txt").write_bytes(b"first")
    out = str(tmp_path / "out")
    execute(stage(), Config(data=str(tmp_path)), {}, out)
    assert artifact.is_artifact(out)
