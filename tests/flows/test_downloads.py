"""Downloads from a real HTTP server on loopback: checked, resumed, never glued from two
versions.
"""

from __future__ import annotations

import hashlib
import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import ClozeError, DataError
from cloze.flows.commands import fetch as downloads
from tests.flows.test_cli import cloze

BODY = bytes(range(256)) * 2000
NAME = "simplewiki-latest-pages-articles-multistream.xml.bz2"


class Server(http.server.ThreadingHTTPServer):
    """Serves one dump and its checksums; `cut` breaks the connection after so many bytes."""

    body = BODY
    etag = '"v1"'
    cut: int | None = None
    ranges: list[str]


class Handler(http.server.BaseHTTPRequestHandler):
    """GET with Range and If-Range, as Wikimedia's mirrors answer it."""

    server: Server

    def do_GET(self) -> None:
        if self.path.endswith("sha1sums.txt"):
            body = (
                f"{hashlib.sha1(BODY).hexdigest()}  "
                f"simplewiki-20261101-pages-articles-multistream.xml.bz2\n"
            ).encode()
            self._send(200, body, {})
            return
        body, wanted = self.server.body, self.headers.get("Range")
        if wanted and self.headers.get("If-Range") == self.server.etag:
            first = int(re.findall(r"\d+", wanted)[0])
            self.server.ranges.append(wanted)
            self._send(
                206, body[first:], {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}
            )
            return
        self._send(200, body, {})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {
            **headers,
            "Content-Length": str(len(body)),
            "ETag": self.server.etag,
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body if self.server.cut is None else body[: self.server.cut])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    found = Server(("127.0.0.1", 0), Handler)
    found.ranges = []
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def mirror(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}"


def nothing(done: int, total: int | None) -> None:
    pass


def test_resumes_where_it_broke_off(server: Server, tmp_path: Path) -> None:
    (remote,) = downloads.wiki_dump("simplewiki", mirror(server))
    server.cut = 100_000
    with pytest.raises(ClozeError, match="broke off at 100,000 of 512,000 bytes"):
        downloads.download(remote, tmp_path, nothing)
    assert not (tmp_path / NAME).exists()
    server.cut = None
    assert downloads.download(remote, tmp_path, nothing).read_bytes() == BODY
    assert server.ranges == ["bytes=100000-"]
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_new_version_starts_from_the_beginning(server: Server, tmp_path: Path) -> None:
    (remote,) = downloads.wiki_dump("simplewiki", mirror(server))
    server.cut, server.body = 100_000, b"old" * 170_000
    with pytest.raises(ClozeError):
        downloads.download(remote, tmp_path, nothing)
    server.cut, server.body, server.etag = None, BODY, '"v2"'
    assert downloads.download(remote, tmp_path, nothing).read_bytes() == BODY
    assert server.ranges == []


def test_a_wrong_hash_is_refused(server: Server, tmp_path: Path) -> None:
    (remote,) = downloads.wiki_dump("simplewiki", mirror(server))
    server.body = BODY[:-1] + b"!"
    with pytest.raises(DataError, match="its publisher says"):
        downloads.download(remote, tmp_path, nothing)
    assert list(tmp_path.iterdir()) == []


def test_command_line(server: Server, tmp_path: Path) -> None:
    done = cloze(
        "fetch", "simplewiki", "--mirror", mirror(server), "--out", tmp_path / "data", "--json"
    )
    assert (done.returncode, done.json["files"]) == (0, [str(tmp_path / "data" / NAME)])
    done = cloze(
        "fetch", "simplewiki", "--mirror", "http://127.0.0.1:9", "--out", tmp_path / "none"
    )
    assert done.returncode == 1
    assert "is unreachable" in done.stderr
    assert done.stderr.count("\n") == 1
    done = cloze("fetch", "simpelwiki")
    assert (done.returncode, "did you mean 'simplewiki'" in done.stderr) == (2, True)
