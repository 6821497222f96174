"""What a store may do to a request: throttle it, be silent, cut it, or refuse its credentials."""

from __future__ import annotations

import pytest

from cloze.core import object_store, storage
from cloze.core.errors import ClozeError
from tests.object_store import Answer, Store

BLOCK = b"0123456789abcdef" * (1 << 16)


def failing(store: Store, count: int, kinds: str, answer: Answer) -> None:
    """Answer the first `count` requests of these kinds with a fault."""
    left = [count]

    def fault(kind: str, key: str, number: int) -> Answer:
        if kind not in kinds.split() or not left[0]:
            return None
        left[0] -= 1
        return answer

    store.server.fault = fault


@pytest.mark.parametrize(
    ("answer", "size"),
    [
        pytest.param(answer, size, marks=marks)
        for answer, size, marks in (
            ((503, "SlowDown"), 6, ()),
            (0.0, 1, ()),
            ((503, "SlowDown"), 1, pytest.mark.soak),
            ((500, "InternalError"), 1, pytest.mark.soak),
            ((500, "InternalError"), 6, pytest.mark.soak),
            (0.0, 6, pytest.mark.soak),
        )
    ],
)
def test_what_fails_for_a_while_is_repeated(store: Store, answer: Answer, size: int) -> None:
    """`0.0`: the connection is dropped, as after a torn upload."""
    path, content = store.path("a.bin"), BLOCK * size
    failing(store, 2, "put part multipart", answer)
    storage.write_bytes(path, content)
    failing(store, 2, "get head list", answer)
    with storage.open_input(path) as stream:
        assert stream.read() == content
    failing(store, 2, "get head list", answer)
    assert storage.read_at_once(path) == content
    assert storage.list_names(store.path()) == ["a.bin"]
    assert store.pending() == []


def test_a_silent_server_is_asked_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "S3_TIMEOUTS", {"connect_timeout": 1, "read_timeout": 1})
    failing(store, 1, "put", 2.0)
    storage.write_bytes(store.path("a.bin"), BLOCK)
    failing(store, 1, "get", 2.0)
    assert storage.read_at_once(store.path("a.bin")) == BLOCK


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((503, "SlowDown"), r"cannot be reached \(SlowDown\); the store is busy: run again later"),
        ((403, "ExpiredToken"), r"cannot be reached \(ExpiredToken\); renew your credentials"),
        ((403, "AccessDenied"), r"cannot be reached \(AccessDenied\); renew your credentials"),
    ],
)
def test_what_fails_for_good_is_said_in_a_sentence(
    store: Store, monkeypatch: pytest.MonkeyPatch, answer: Answer, message: str
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    path = store.path("a.bin")
    storage.write_bytes(path, BLOCK)
    stream = storage.open_input(path)
    failing(store, 1000, "put part multipart get head list", answer)
    for act in (
        lambda: storage.read_at_once(path),
        lambda: storage.write_bytes(path, BLOCK),
        lambda: storage.write_bytes(path, BLOCK * 6),
        lambda: storage.list_names(store.path("a")),
        lambda: stream.read(),
    ):
        with pytest.raises(ClozeError, match=message):
            act()
