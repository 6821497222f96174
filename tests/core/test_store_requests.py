"""Requests to a store: one where one suffices, and no byte read that was just written."""

from __future__ import annotations

import contextlib
import hashlib

import pytest

from cloze.core import storage
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.streams import open_source
from tests.object_store import Store

BLOCK = b"0123456789abcdef" * (1 << 16)


def kinds(store: Store) -> list[str]:
    """Return the kinds of the requests since the last call."""
    asked = [request.kind for request in store.server.requests]
    store.server.requests.clear()
    return asked


def test_one_request_where_one_suffices(store: Store) -> None:
    path = store.path("a", "one.bin")
    storage.write_bytes(path, BLOCK)
    assert kinds(store) == ["put"]
    assert storage.read_at_once(path) == BLOCK
    assert kinds(store) == ["get"]
    assert storage.has_file(path)
    assert not storage.has_file(store.path("a", "two.bin"))
    assert kinds(store) == ["get", "get"]
    storage.write_bytes(store.path("a", "two.bin"), BLOCK * 6)
    assert kinds(store) == ["multipart", "part", "multipart"]
    names = storage.list_files(store.path("a"))
    sizes = [storage.stat(store.path("a", name))["size"] for name in names]
    assert (names, sizes) == (["one.bin", "two.bin"], [len(BLOCK), 6 * len(BLOCK)])
    assert all(storage.etag(store.path("a", name)) for name in names)
    assert kinds(store) == ["list"]
    storage.remove_file(path)
    assert kinds(store) == ["delete"]
    assert not storage.exists(path)


def test_a_pattern_is_listed_once(store: Store) -> None:
    """Whether a match is a file or a directory is known from the listing."""
    files = [f"{number:02d}.txt" for number in range(20)]
    for name in files:
        storage.write_bytes(store.path("crawl", name), BLOCK[:16])
    storage.write_bytes(store.path("crawl", "a.txt", "b.txt"), BLOCK[:16])
    store.server.requests.clear()
    names = [file.name for file in READERS.find("text").slices(store.path("crawl", "*.txt"))]
    assert names == [*files, "a.txt/b.txt"]
    assert len(kinds(store)) < len(files)


def test_an_entry_may_have_the_name_of_its_directory(store: Store) -> None:
    for name in ("corpus/corpus/a", "corpus/vocab/a", "corpus/b"):
        storage.write_bytes(store.path(*name.split("/")), BLOCK[:16])
    for directory in (store.path("corpus"), f"{store.path('corpus')}/"):
        assert storage.list_names(directory) == ["b", "corpus", "vocab"]
    assert storage.list_names(store.path("corpus", "b")) == []


def test_what_is_written_is_hashed_on_the_way(store: Store) -> None:
    contents = {"small.bin": BLOCK, "deep/large.bin": BLOCK * 6}
    with storage.hashing_written(store.path("out")) as written:
        for name, content in contents.items():
            storage.write_bytes(store.path("out", name), content)
        storage.write_bytes(store.path("out", "_scratch", "part.bin"), BLOCK)
        storage.write_bytes(store.path("other", "small.bin"), BLOCK)
    assert written == {
        name: (hashlib.sha256(content).hexdigest(), len(content))
        for name, content in contents.items()
    }
    assert all(request.kind != "get" for request in store.server.requests)


def test_a_beginning_is_not_the_whole(store: Store) -> None:
    path = store.path("a.bin")
    storage.write_bytes(path, BLOCK)
    with storage.reading_ahead(1 << 16), storage.open_input(path) as stream:
        assert stream.read(1 << 12) == BLOCK[: 1 << 12]
    assert store.server.totals()["read"] < 1 << 17


@pytest.mark.parametrize("size", [100, 3 << 20, 40 << 20])
@pytest.mark.parametrize("step", [1 << 12, 1 << 20])
def test_a_file_is_fetched_once_by_few_requests(store: Store, size: int, step: int) -> None:
    path, content = store.path("a.bin"), (bytes(range(256)) * (1 + size // 256))[:size]
    storage.write_bytes(path, content)
    store.server.requests.clear()
    with storage.open_input(path) as stream:
        assert b"".join(iter(lambda: stream.read(step), b"")) == content
    assert store.server.totals()["read"] == size
    assert store.server.totals()["requests"] <= 8 + 3 * size // (8 << 20)


@pytest.mark.parametrize("cuts", [2, 5])
@pytest.mark.parametrize("step", [1 << 12, 1 << 20])
def test_a_range_of_a_file_costs_its_own_bytes(store: Store, cuts: int, step: int) -> None:
    """As slices of dumps, crawls and lines are read."""
    path, size = store.path("a.bin"), 24 << 20
    storage.write_bytes(path, BLOCK * 24)
    for cut in range(cuts):
        begin, end = size * cut // cuts, size * (cut + 1) // cuts
        store.server.requests.clear()
        with contextlib.closing(open_source(path, (begin, end))) as source:
            assert sum(map(len, iter(lambda: source.read(step), b""))) == end - begin
        assert store.server.totals()["read"] == end - begin


def test_looks_at_places_of_a_file_cost_little(store: Store) -> None:
    """As borders of slices are looked for."""
    path = store.path("a.bin")
    storage.write_bytes(path, BLOCK * 40)
    with storage.open_input(path) as stream:
        for place in (7, 3, 30, 31, 12):
            stream.seek(place << 20)
            assert stream.read(10) == BLOCK[:10]
    assert store.server.totals()["read"] <= 6 << 20
