"""Paths of the storage layer."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.core import storage
from cloze.core.accounts import open_private, open_unlinked
from cloze.core.errors import ClozeError, DataError, UsageError, describe_missing_package
from cloze.core.links import linked


def test_a_link_to_a_store_leads_to_its_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    os.symlink("s3://bucket/runs/demo/pretrain-123456789abc", "pretrain")
    os.symlink("elsewhere", "local")
    expected = "s3://bucket/runs/demo/pretrain-123456789abc"
    assert linked("pretrain") == linked("./pretrain/") == expected
    below = str(tmp_path / "pretrain" / "checkpoints" / "step-00000005")
    assert linked(below) == f"{expected}/checkpoints/step-00000005"
    for path in ("none", "local", "local/x", "/none/at/all", "gs://b/x", ".", "/"):
        assert linked(path) == path


def test_linked_folders_are_read_and_never_written_through(tmp_path: Path) -> None:
    """A link back to a folder above, which has no end, stays a link."""
    for name in ("top", "disk/more"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.txt").write_text("text")
    for link, target in {
        "top/linked": "../disk", "top/again": ".", "disk/back": "../top", "top/file": "a.txt",
        "top/gone": "nowhere", "other": "top",
    }.items():  # fmt: skip
        (tmp_path / link).symlink_to(target)
    found = ["a.txt", "again", "file", "gone", "linked/back", "linked/more/a.txt"]
    assert storage.list_files(str(tmp_path / "top")) == found
    assert storage.list_files(str(tmp_path / "other")) == found
    assert storage.list_files(str(tmp_path / "top"), follow=False) == [
        "a.txt", "again", "file", "gone", "linked"
    ]  # fmt: skip
    assert storage.list_files(str(tmp_path / "top/a.txt")) == [""]


def test_a_store_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(UsageError, match=r"^gs://b/x: gcsfs .*'cloze-pretraining-base\[gcs\]'"):
        storage.exists("gs://b/x")


@pytest.mark.parametrize(
    ("package", "extra"),
    [("s3fs", "s3"), ("huggingface_hub", "hub"), ("gensim", "vectors"), ("mlflow", "flows")],
)
def test_a_missing_package_is_named_with_its_extra(package: str, extra: str) -> None:
    sentence = describe_missing_package(ModuleNotFoundError(package, name=package))
    assert f"cloze-pretraining-base[{extra}]" in sentence


def test_paths_are_joined_and_made_absolute(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    paths = ("a/../b", "/c", "s3://b/x", "file:///d")
    assert [storage.absolute(path) for path in paths] == [f"{tmp_path}/b", *paths[1:]]
    assert storage.join("/a", "b", "c") == "/a/b/c"
    assert storage.join("s3://b/", "x") == "s3://b/x"
    patterns = ("a*", "b?", "c[1]", "plain")
    assert [storage.is_pattern(text) for text in patterns] == [True, True, True, False]
    assert storage.printable_name("caf\u00e9") == "caf\u00e9"
    assert storage.printable_name(os.fsdecode(b"x\xff")) == "x\\xff"


@pytest.fixture(params=["disk", "memory"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A directory with files at three depths, on a disk and in a store."""
    path = str(tmp_path) if request.param == "disk" else f"memory://listed/{tmp_path.name}"
    for name in ("b.txt", "a/x.txt", "a/deep/y.txt", "c/z.bin"):
        storage.write_bytes(f"{path}/{name}", name.encode())
    return path


def test_what_lies_in_a_directory(base: str) -> None:
    assert storage.list_names(base) == ["a", "b.txt", "c"]
    assert storage.list_names(base, only_directories=True) == ["a", "c"]
    assert storage.list_names(f"{base}/none") == storage.list_names(f"{base}/b.txt/x") == []
    assert storage.list_files(base) == ["a/deep/y.txt", "a/x.txt", "b.txt", "c/z.bin"]
    assert storage.list_files(f"{base}/a/") == ["deep/y.txt", "x.txt"]
    assert storage.glob(f"{base}/*.txt") == (base, ["b.txt"])
    assert storage.glob(f"{base}/a/**")[1][-1] == "x.txt"
    assert storage.glob(f"{base}/*/*.bin") == (base, ["c/z.bin"])
    assert [storage.is_dir(f"{base}/{name}") for name in ("a", "b.txt", "none")] == [
        True,
        False,
        False,
    ]
    assert [storage.exists(f"{base}/{name}") for name in ("a", "b.txt", "none")] == [
        True,
        True,
        False,
    ]
    assert [storage.has_file(f"{base}/{name}") for name in ("b.txt", "none")] == [True, False]


def test_what_a_file_holds(base: str) -> None:
    name, content = f"{base}/a/x.txt", b"a/x.txt"
    assert (storage.read_at_once(name), storage.read_text(name)) == (content, "a/x.txt")
    read: list[int] = []
    expected = (hashlib.sha256(content).hexdigest(), len(content))
    assert storage.sha256(name, read.append) == storage.sha256(name) == expected
    assert read == [len(content)]
    assert storage.stat(name)["size"] == len(content)
    assert storage.mtime(name) > 0
    assert storage.mtime(f"{base}/none") == 0.0
    for look in (storage.stat, storage.open_input, storage.read_text, storage.sha256):
        with pytest.raises(DataError) as caught:
            look(f"{base}/none")
        assert str(caught.value) == f"{base}/none does not exist; check the path"
    with pytest.raises(FileNotFoundError):
        storage.read_at_once(f"{base}/none")


def test_what_is_removed_and_moved(base: str) -> None:
    storage.move(f"{base}/a", f"{base}/c")
    assert storage.list_files(base) == ["b.txt", "c/deep/y.txt", "c/x.txt"]
    storage.remove_file(f"{base}/b.txt")
    storage.remove_file(f"{base}/b.txt")
    storage.remove(f"{base}/c/deep")
    storage.remove(f"{base}/c/deep")
    assert storage.list_files(base) == ["c/x.txt"]


def test_directories_are_made_on_a_disk_alone(tmp_path: Path) -> None:
    for _ in range(2):
        storage.make_dirs(str(tmp_path / "a" / "b"))
        storage.make_dirs("memory://made/a/b")
    assert (tmp_path / "a" / "b").is_dir()
    assert not storage.exists("memory://made/a/b")
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "broken").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("a")
    names = ("file", "pipe", "broken", "a")
    assert [storage.is_file(str(tmp_path / name)) for name in names] == [True, False, False, False]
    assert storage.is_file("memory://made/a")
    assert storage.list_names(str(tmp_path), only_directories=True) == ["a"]


def test_rows_of_a_table_are_by_the_first_line(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text('a\tb\n1\t"2\n3\n')
    assert storage.read_tsv(str(tmp_path / "x.tsv")) == [{"a": "1", "b": '"2'}, {"a": "3"}]
    (tmp_path / "x.tsv").write_text("")
    assert storage.read_tsv(str(tmp_path / "x.tsv")) == []


def test_names_are_flushed_below_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    flushed: list[str] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: flushed.append(os.readlink(f"/proc/self/fd/{handle}"))
    )
    storage.fsync_tree(str(tmp_path))
    assert flushed == [f"{tmp_path}/a/b", f"{tmp_path}/a", str(tmp_path)]
    storage.fsync_directory(str(tmp_path / "a"))
    storage.fsync_tree("memory://x")
    storage.fsync_directory("memory://x")
    assert flushed[3:] == [f"{tmp_path}/a"]


@pytest.mark.parametrize("place", ["in the block", "at the commit", "as it is checked"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_file_appears_as_a_whole_or_not_at_all(
    place: str, error: type[BaseException], tmp_path: Path
) -> None:
    @contextlib.contextmanager
    def commit() -> Iterator[None]:
        if place == "at the commit":
            raise error
        yield

    def refuse() -> None:
        if place == "as it is checked":
            raise error

    file = tmp_path / "new" / "x"
    with (
        pytest.raises(error),
        storage.changing_after(str(tmp_path), refuse),
        storage.atomic_output(str(file), commit) as handle,
    ):
        handle.write(b"half")
        (temporary,) = file.parent.iterdir()
        assert temporary.name.startswith(f"_tmp-x-{os.getpid()}-")
        if place == "in the block":
            raise error
    assert list(file.parent.iterdir()) == []


def test_what_is_written_is_on_the_disk_and_as_private_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size))
    for opener, mode in ((open_unlinked, 0o666 & ~_umask()), (open_private, 0o600)):
        storage.write_bytes(str(tmp_path / "x"), b"12345", opener=opener)
        assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode
    assert sizes == [5, 5]


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def test_a_full_disk_is_told_with_the_path(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="No space") as caught,
        storage.atomic_output(str(tmp_path / "x")) as handle,
    ):
        raise OSError(28, "No space left on device")
    assert (caught.value.filename, handle.closed) == (str(tmp_path / "x"), True)


def test_tags_that_are_weak_or_missing_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    infos: list[dict[str, Any]] = [
        {"ETag": '"a"', "size": 3}, {"md5Hash": "m", "etag": "e", "size": 3}, {"crc32c": "c", "etag": "e"},
        {"ETag": 'W/"a"', "size": 3}, {"size": 3}, {"etag": "", "ETag": None},
    ]  # fmt: skip
    given = iter(infos)
    monkeypatch.setattr(storage, "stat", lambda path: next(given))
    found = [storage.etag("s3://b/x") for _ in infos]
    assert found == ["a 3", "m 3", "c None", None, None, None]


def test_a_store_is_read_ahead_as_far_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class Fs:
        protocol = ("s3",)

        def open(self, name: str, mode: str, **options: Any) -> Any:
            asked.append(options)
            return type("Handle", (), {"cache": None})()

    monkeypatch.setattr(storage, "filesystem", lambda path: (Fs(), "b/x"))
    monkeypatch.setattr(storage.object_store, "listed", lambda path, inner: known[0])
    known: list[Any] = [None]
    storage.open_input("s3://b/x")
    with storage.reading_ahead(99):
        storage.open_input("s3://b/x")
        known[0] = {"size": "7"}
        handle: Any = storage.open_input("s3://b/x")
    storage.open_input("s3://b/x")
    assert asked == [{}, {"block_size": 99}, {"block_size": 99, "size": 7}, {"size": 7}]
    assert handle.details == {"size": "7"}


def test_errors_of_reads_that_come_later_name_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(start: int, end: int) -> bytes:
        raise PermissionError(13, "Forbidden")

    cache = type("Cache", (), {"fetcher": staticmethod(fail)})()
    handle = type("Handle", (), {"cache": cache})()
    fs = type("Fs", (), {"protocol": "memory", "open": lambda self, *given, **named: handle})()
    monkeypatch.setattr(storage, "filesystem", lambda path: (fs, "b/x"))
    found: Any = storage.open_input("memory://b/x")
    with pytest.raises(ClozeError, match=r"^memory://b/x cannot be reached \(Forbidden\)"):
        found.cache.fetcher(0, 1)
