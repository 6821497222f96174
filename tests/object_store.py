"""An S3-compatible server on loopback, for tests that write to an object store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Store:
    """An S3-compatible server over real HTTP, with an empty bucket."""

    url: str
    bucket: str

    def path(self, *parts: str) -> str:
        return "/".join((f"s3://{self.bucket}", *parts))


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="s3fs is not installed (pip install 'cloze[s3]')")
    moto = pytest.importorskip(
        "moto.server", reason="moto is not installed (pip install 'cloze[dev]')"
    )
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def store(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Store:
    """The endpoint and the credentials stand in the environment, as a user gives them."""
    import boto3
    import s3fs

    names = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }
    for name, value in {
        **names,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{abs(hash(request.node.nodeid)):x}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return Store(s3_server, bucket)
