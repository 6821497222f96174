"""Stores by their functions alone: what clients raise, what listings answer for, and uploads."""

from __future__ import annotations

import errno
import hashlib
import io
from typing import Any

import pytest

from cloze.core import object_store, storage
from cloze.core.errors import ClozeError, UsageError
from cloze.core.object_store import PUT_BYTES, Upload, client_errors

ADDRESS = "check the store's address (AWS_ENDPOINT_URL) and your credentials"
RIGHT = "renew your credentials or ask for the right, and run again"
BUSY = "the store is busy: run again later, with fewer workers"
FOREIGN = type("EndpointError", (Exception,), {"__module__": "botocore.exceptions"})


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(5, "no route."), f"(no route); {ADDRESS}"),
        (OSError(), f"(OSError); {ADDRESS}"),
        (FOREIGN("gone."), f"(gone); {ADDRESS}"),
        (FOREIGN(), f"(EndpointError); {ADDRESS}"),
        (PermissionError(13, "Forbidden"), f"(Forbidden); {RIGHT}"),
        (TimeoutError("late"), f"(late); {BUSY}"),
        (OSError(errno.EBUSY, "slow down"), f"(slow down); {BUSY}"),
    ],
)
def test_an_error_of_a_client_names_the_path_and_what_to_do(error: Exception, says: str) -> None:
    with pytest.raises(ClozeError) as caught, client_errors("s3://b/x"):
        raise error
    assert str(caught.value) == f"s3://b/x cannot be reached {says}"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("path", "error"),
    [
        *[("s3://b/x", kind(2, "x")) for kind in (FileNotFoundError, FileExistsError)],
        *[("s3://b/x", kind(2, "x")) for kind in (NotADirectoryError, IsADirectoryError)],
        ("s3://b/x", KeyError("a fault of Cloze")),
        ("/a/x", OSError(5, "of a disk")),
    ],
)
def test_what_no_client_raised_stays_as_it_is(path: str, error: Exception) -> None:
    with pytest.raises(type(error)) as caught, client_errors(path):
        raise error
    assert caught.value is error


def test_only_a_missing_right_is_ignored() -> None:
    with object_store.ignoring_denial(), client_errors("s3://b/x"):
        raise PermissionError(13, "Forbidden")
    with (
        pytest.raises(ClozeError, match="no route"),
        object_store.ignoring_denial(),
        client_errors("s3://b/x"),
    ):
        raise OSError(5, "no route")


def test_clients_cache_no_listing_and_do_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def noted(path: str, **options: Any) -> tuple[str, str]:
        asked.append(options)
        return "fs", path

    monkeypatch.setattr("fsspec.core.url_to_fs", noted)
    uncached, timeouts = {"use_listings_cache": False}, {"connect_timeout": 10, "read_timeout": 30}
    urls = ("s3://b", "s3a://b", "gs://b", "memory://b", "/b")
    assert [object_store.filesystem(url) for url in urls] == [("fs", url) for url in urls]
    both = {**uncached, "config_kwargs": timeouts}
    assert asked == [both, both, uncached, {}, {}]


def test_an_unknown_scheme_is_told() -> None:
    with pytest.raises(UsageError) as caught:
        object_store.filesystem("ftq://b/x")
    assert str(caught.value) == (
        "ftq://b/x: Protocol not known: ftq; use a local path, s3://, gs:// or hf://"
    )


def test_places_are_told_apart() -> None:
    paths = ("/a", "a", "memory://a", "simplecache::memory://a")
    assert [storage.has_scheme(path) for path in paths] == [False, False, True, True]
    assert [storage.is_local(path) for path in paths[:3]] == [True, True, False]


def test_a_listing_answers_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(object_store.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(object_store, "_LISTED", {})
    infos: dict[str, dict[str, Any]] = {
        f"b/{name}": {"size": size, "type": "file"} for size, name in enumerate("xyz", 1)
    }
    object_store.note_listed("s3://b", infos | {"b/of no size": {"type": "file"}})

    def found(scheme: str = "s3") -> list[Any]:
        return [object_store.listed(f"{scheme}://b", name) for name in infos]

    now[0] += 9.9
    assert found() == list(infos.values())
    assert found("gs") == [None] * 3
    assert object_store.listed("s3://b", "b/of no size") is None
    object_store.forget_listed("s3://b/x", "b/x")
    object_store.forget_listed("s3://b/x", "b/x")  # nothing is left to forget
    assert found() == [None, infos["b/y"], infos["b/z"]]
    now[0] += 0.1
    assert found() == [None] * 3
    object_store.note_listed("s3://b", infos)
    object_store.forget_listed("s3://b", "b", tree=True)
    assert found() == [None] * 3


class Faulty:
    """A file system whose conditional write fails."""

    def __init__(self, number: int, present: bytes | None, *, is_seen: bool = True) -> None:
        self.number, self.content, self.is_seen = number, present, is_seen

    def pipe_file(self, name: str, data: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            raise (
                FileExistsError(name) if self.number == errno.EEXIST else OSError(self.number, "x")
            )
        self.content = data

    def exists(self, name: str) -> bool:
        return self.is_seen

    def cat_file(self, name: str) -> bytes:
        if self.content is None:
            raise FileNotFoundError(name)
        return self.content


@pytest.mark.parametrize(
    ("fs", "is_own"),
    [
        (Faulty(errno.EEXIST, b"own"), True),  # a repeated request finds what it wrote
        (Faulty(errno.EEXIST, b"other"), False),
        (Faulty(errno.EEXIST, None), False),  # removed meanwhile
        (Faulty(errno.EINVAL, b"other"), False),
        (Faulty(errno.EBUSY, b"own"), True),
        (Faulty(errno.ENOSYS, b"other"), True),  # no conditional writes: the last one counts
    ],
)
def test_of_several_that_create_an_object_one_succeeds(
    fs: Faulty, is_own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "filesystem", lambda path: (fs, "b/x"))
    assert storage.create_bytes("s3://b/x", b"own") is is_own


@pytest.mark.parametrize("fs", [Faulty(errno.EIO, b"x"), Faulty(errno.EINVAL, b"x", is_seen=False)])
def test_a_creation_that_fails_is_no_conflict(fs: Faulty, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "filesystem", lambda path: (fs, "b/x"))
    with pytest.raises(OSError, match="x"):
        storage.create_bytes.__wrapped__("s3://b/x", b"own")  # type: ignore[attr-defined]


def test_a_missing_bucket_is_told_with_the_path() -> None:
    with pytest.raises(UsageError) as caught, object_store.writing("s3://b/x"):
        raise FileNotFoundError("The specified bucket does not exist.")
    assert str(caught.value) == (
        "s3://b/x cannot be written (The specified bucket does not exist); check its name and "
        "your permissions"
    )


@pytest.mark.parametrize("extra", [0, 1])
def test_one_request_suffices_up_to_a_limit(extra: int) -> None:
    """Whatever pieces it comes in; it is hashed, and known by its name in the directory."""
    fs, _ = storage.filesystem("memory://")
    opened: list[str] = []
    with storage.hashing_written("memory://up/") as written:
        upload = Upload(fs, "/up/a/x", "memory://up/a/x")
        upload._fs = type("Noted", (), {
            "open": lambda self, name, *given, **named: opened.append(name) or fs.open(name, *given),
            "pipe_file": lambda self, name, data: fs.pipe_file(name, data),
        })()  # fmt: skip
        assert upload.writable()
        pieces = [b"x" * 7, b"y" * (PUT_BYTES - 7), b"z" * extra, b""]
        assert [upload.write(piece) for piece in pieces] == list(map(len, pieces))
        assert upload.tell() == PUT_BYTES + extra
        upload.close()
        assert written == {}
        if not extra:
            upload.commit()
            content = b"".join(pieces)
            assert fs.cat_file("/up/a/x") == content
            assert written == {"a/x": (hashlib.sha256(content).hexdigest(), PUT_BYTES)}
    assert opened == ["/up/a/x"] * extra


def test_what_is_discarded_is_neither_finished_nor_hides_its_cause() -> None:
    """Left to the garbage collector, the rest of an upload would be flushed."""

    class Part(io.BytesIO):
        closed = False

        def discard(self) -> None:
            told.append(self.closed)
            raise OSError("the store is away")

    told: list[bool] = []
    upload = Upload(type("Fs", (), {"open": lambda *given, **named: Part()})(), "b/x", "s3://b/x")
    upload.discard()  # nothing was sent
    upload.write(b"z" * (PUT_BYTES + 1))
    assert upload.tell() == PUT_BYTES + 1
    upload.discard()
    assert told == [True]


def test_hashes_are_of_the_directory_alone_and_of_no_builders_file() -> None:
    with storage.hashing_written("memory://hashed") as written:
        for name in ("a", "b/c", "_logs/x", "b/_part", "b_/d"):
            storage.write_bytes(f"memory://hashed/{name}", name.encode())
        storage.write_bytes("memory://hashed2/a", b"other")
        storage.note_written({"memory://hashed/linked": ("s", "7"), "named": ("t", 8)})
    assert list(written) == ["a", "b/c", "b_/d", "linked", "named"]
    assert (written["linked"], written["named"]) == (("s", 7), ("t", 8))
    storage.note_written({"late": ("u", 9)})  # nobody listens
    assert "late" not in written


def test_changes_are_checked_where_the_directory_lies() -> None:
    asked: list[str] = []

    def refuse() -> None:
        asked.append("x")
        raise ClozeError("taken over")

    storage.write_bytes("memory://kept/x", b"1")
    with storage.changing_after("memory://kept", refuse):
        object_store.check_right("/local/file")  # a log of this machine
        assert asked == []
        for change in (storage.remove, storage.remove_file, lambda p: storage.write_bytes(p, b"2")):
            with pytest.raises(ClozeError, match="taken over"):
                change("memory://kept/x")
    assert len(asked) == 3
    with storage.changing_after("/local", refuse), pytest.raises(ClozeError):
        object_store.check_right("memory://kept/x")
    assert storage.read_text("memory://kept/x") == "1"
    storage.remove_file("memory://kept/x")
    assert len(asked) == 4


def test_ranges_of_objects_are_read() -> None:
    for name in ("a", "b"):
        storage.write_bytes(f"memory://ranges/{name}", f"{name}12345".encode())
    paths = ["memory://ranges/a", "memory://ranges/b", "memory://ranges/a"]
    assert storage.read_ranges(paths, [(0, 2), (1, 3), (4, 6)]) == [b"a1", b"12", b"45"]
    assert storage.read_ranges([], []) == []
    with pytest.raises(FileNotFoundError):
        storage.read_ranges(["memory://ranges/none"], [(0, 1)])
