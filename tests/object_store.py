"""An S3-compatible server on loopback, for tests that write to an object store."""

from __future__ import annotations

import functools
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from localbucket import UPLOAD_META, UPLOADS_DIR, S3Error


class Request(NamedTuple):
    """A request that the server answered.

    `kind`: get, head, list, put, part, copy, delete or multipart; `key`: of a list its prefix;
    `read` and `written`: bytes of the objects in the answer and in the request.
    """

    kind: str
    key: str
    read: int
    written: int
    status: int


# status and S3 error code to fail with; or seconds to be silent before the connection is dropped
Answer = tuple[int, str] | float | None
Fault = Callable[[str, str, int], Answer]


def no_fault(kind: str, key: str, number: int) -> None:
    """Let every request succeed."""


class CountedServer:
    """An S3-compatible server on loopback that counts requests, and fails as it is told to.

    `fault` is asked before each request with its kind, its key and how many came before; its answer
    None lets the request succeed.
    """

    def __init__(self, directory: Path) -> None:
        from tests.local_store import Handler

        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.fault: Fault = no_fault
        self.requests: list[Request] = []
        counted = self

        class Counting(Handler):
            data_root = directory
            asked = ("", "", 0)  # kind, key and bytes of the request

            def _dispatch(self, action: Any) -> None:
                kind, key = _kind(self)
                size = int(
                    self.headers.get("x-amz-decoded-content-length")
                    or self.headers.get("Content-Length")
                    or 0
                )
                self.asked = kind, key, size if kind in ("put", "part") else 0
                fault = counted.fault(kind, key, len(counted.requests))
                if isinstance(fault, float):
                    self._note(0, 0)
                    time.sleep(fault)
                    self.close_connection = True
                    return
                if fault is not None:
                    action = functools.partial(self._fail, *fault)
                super()._dispatch(action)

            def _note(self, status: int, size: int) -> None:
                kind, key, written = self.asked
                read = size if kind == "get" else 0
                counted.requests.append(Request(kind, key, read, written, status))

            def _fail(self, status: int, code: str, *_: str) -> None:
                self._read_body()
                raise S3Error(HTTPStatus(status), code, code)

            def _send_headers(self, status: HTTPStatus, length: int, headers: Any = None) -> None:
                self._note(int(status), length)
                super()._send_headers(status, length, headers)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def totals(self) -> Counter[str]:
        """Return the number of requests by kind, and `requests`, `read` and `written` in total."""
        counts = Counter(request.kind for request in self.requests)
        counts["requests"] = len(self.requests)
        counts["read"] = sum(request.read for request in self.requests)
        counts["written"] = sum(request.written for request in self.requests)
        return counts

    def pending(self, bucket: str) -> list[str]:
        """Return the keys of a bucket's unfinished multipart uploads."""
        paths = self.directory.glob(f"{UPLOADS_DIR}/*/{UPLOAD_META}")
        uploads = [json.loads(path.read_text()) for path in paths]
        return sorted(upload["key"] for upload in uploads if upload["bucket"] == bucket)


def _kind(handler: Any) -> tuple[str, str]:
    url = urlsplit(handler.path)
    method, query = handler.command, parse_qs(url.query, True)
    key = unquote(url.path).lstrip("/").partition("/")[2]
    if method == "GET":
        return ("get", key) if key else ("list", query.get("prefix", [""])[0])
    if method == "PUT" and "x-amz-copy-source" in handler.headers:
        return "copy", key
    if method == "PUT":
        return ("part" if "uploadId" in query else "put"), key
    if method == "POST":
        return ("delete" if "delete" in query else "multipart"), key
    return method.lower(), key


@dataclass(frozen=True)
class Store:
    """An S3-compatible server over real HTTP, with an empty bucket."""

    url: str
    bucket: str
    server: CountedServer

    def path(self, *parts: str) -> str:
        return "/".join((f"s3://{self.bucket}", *parts))

    def pending(self) -> list[str]:
        """Return the keys of unfinished multipart uploads; other tests may have left some."""
        return self.server.pending(self.bucket)

    def upload(self, directory: Path, prefix: str) -> str:
        """Put a directory's files below the prefix, whose path is returned."""
        import boto3

        client = boto3.client("s3")
        for file in sorted(directory.iterdir()):
            client.upload_file(str(file), self.bucket, f"{prefix}/{file.name}")
        return self.path(prefix)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CountedServer]:
    pytest.importorskip("s3fs", reason="s3fs is not installed (pip install '.[s3]')")
    server = CountedServer(tmp_path_factory.mktemp("buckets"))
    yield server
    server.stop()


def environment(url: str) -> dict[str, str]:
    """Return the endpoint and the credentials, as a user gives them."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture
def store(
    s3_server: CountedServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Store]:
    import boto3
    import s3fs

    for name, value in environment(s3_server.url).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{abs(hash(request.node.nodeid)):x}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    s3_server.requests.clear()
    for upload in s3_server.directory.glob(f"{UPLOADS_DIR}/*"):  # of a process that was killed
        shutil.rmtree(upload)
    yield Store(s3_server.url, bucket, s3_server)
    s3_server.fault = no_fault
