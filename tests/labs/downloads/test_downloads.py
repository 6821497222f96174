"""Downloads from a real HTTP server on loopback: checked, resumed, never glued from two
versions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import ClozeError, DataError
from cloze.labs.downloads import download as downloads
from cloze.labs.downloads import fetch
from cloze.labs.downloads.archives import unpack
from cloze.model.tasks.files import missing_split
from cloze.model.tasks.table import task_options
from cloze.pipeline.corpus.readers import READERS
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
    (remote,) = fetch.wiki_dump("simplewiki", mirror(server))
    server.cut = 100_000
    with pytest.raises(ClozeError, match="broke off at 100,000 of 512,000 bytes"):
        downloads.download(remote, tmp_path, nothing)
    assert not (tmp_path / NAME).exists()
    server.cut = None
    assert downloads.download(remote, tmp_path, nothing).read_bytes() == BODY
    assert server.ranges == ["bytes=100000-"]
    assert [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_new_version_starts_from_the_beginning(server: Server, tmp_path: Path) -> None:
    (remote,) = fetch.wiki_dump("simplewiki", mirror(server))
    server.cut, server.body = 100_000, b"old" * 170_000
    with pytest.raises(ClozeError):
        downloads.download(remote, tmp_path, nothing)
    server.cut, server.body, server.etag = None, BODY, '"v2"'
    assert downloads.download(remote, tmp_path, nothing).read_bytes() == BODY
    assert server.ranges == []


def test_a_wrong_hash_is_refused(server: Server, tmp_path: Path) -> None:
    (remote,) = fetch.wiki_dump("simplewiki", mirror(server))
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


class Files(http.server.BaseHTTPRequestHandler):
    """GET of `server.files`, by path; `server.cut` breaks off after so many bytes."""

    server: Any

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = self.server.files.get(self.path)
        first = int(re.findall(r"\d+", self.headers.get("Range", "0"))[0])
        self.send_response(404 if body is None else 206 if first else 200)
        self.send_header("Content-Length", str(len(body or b"") - first))
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write((body or b"")[first:][: self.server.cut])

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def files() -> Iterator[Any]:
    found: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    found.files, found.asked, found.cut = {}, [], None
    threading.Thread(target=found.serve_forever, daemon=True).start()
    yield found
    found.shutdown()
    found.server_close()


def archive(**members: str) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as content:
        for name, text in members.items():
            content.writestr(name, text)
    return stream.getvalue()


def publish(files: Any, monkeypatch: pytest.MonkeyPatch, name: str, **contents: bytes) -> None:
    """Serve the files of a row under its own addresses, with the checksums of these contents."""
    remotes = {}
    for url, remote in fetch.PUBLISHED[name]["files"].items():
        content = contents[remote.name]
        files.files[f"/{url.split('/', 3)[3]}"] = content
        digest = hashlib.sha256(content).hexdigest()
        remotes[url] = dataclasses.replace(remote, size=len(content), sha256=digest)
    row = {**fetch.PUBLISHED[name], "files": remotes}
    monkeypatch.setattr(fetch, "PUBLISHED", {**fetch.PUBLISHED, name: row})


def invoke(*arguments: Any) -> dict[str, Any]:
    from click.testing import CliRunner

    done = CliRunner().invoke(fetch.fetch, [*map(str, arguments), "--json"])
    if done.exception is not None:
        raise done.exception
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


ROW, HEAD = "1\t10\t20\tA text.\tA text.\n", "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
GLUE_FILES = {
    **{
        f"{name}.zip": archive(
            **{f"{folder}/train.tsv": "x\n", f"{folder}/dev{ending}.tsv": "x\n"},
            **{f"__MACOSX/{folder}/._train.tsv": "x"},
        )
        for name, folder, ending in (
            ("CoLA", "CoLA", ""),
            ("SST-2", "SST-2", ""),
            ("QQP-clean", "QQP", ""),
            ("STS-B", "STS-B", ""),
            ("MNLI", "MNLI", "_matched"),
            ("QNLIv2", "QNLI", ""),
            ("RTE", "RTE", ""),
            ("WNLI", "WNLI", ""),
        )
    },
    "mrpc_dev_ids.tsv": b"10\t20\n",
    "msr_paraphrase_train.txt": f"\ufeff{HEAD}{ROW}{ROW.replace('10', '30')}".encode(),
    "msr_paraphrase_test.txt": f"\ufeff{HEAD}{ROW}".encode(),
}


def test_glue_lies_where_the_tasks_look(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(files, monkeypatch, "glue", **GLUE_FILES)
    data = tmp_path / "data"
    answer = invoke("glue", "--mirror", mirror(files), "--out", data / "glue")
    assert answer["licence"].startswith("of each task")
    for name in ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"):
        assert missing_split(str(data), task_options(name, {}), ("train", "dev")) == "", name
    assert (data / "glue/MRPC/dev.tsv").read_text() == HEAD + ROW
    assert (data / "glue/MRPC/train.tsv").read_text() == HEAD + ROW.replace("10", "30")
    assert (data / "glue/MRPC/test.tsv").read_text().splitlines()[1].startswith("0\t10\t20")
    record = json.loads((data / "glue" / "fetched.json").read_text())
    content = GLUE_FILES["CoLA.zip"]
    assert record["files"]["CoLA.zip"]["sha256"] == hashlib.sha256(content).hexdigest()
    files.asked.clear()
    invoke("glue", "--mirror", mirror(files), "--out", data / "glue")  # nothing is fetched again
    assert files.asked == []


NLI_FILES = {
    "snli": {
        "snli_1.0.zip": archive(
            **{f"snli_1.0/snli_1.0_{split}.jsonl": "{}\n" for split in ("train", "dev", "test")},
            **{"snli_1.0/snli_1.0_dev.txt": "x\n", "__MACOSX/snli_1.0/._README.txt": "x"},
        )
    },
    "xnli": {
        "XNLI-1.0.zip": archive(
            **{f"XNLI-1.0/xnli.{split}.tsv": "x\n" for split in ("dev", "test")},
            **{"XNLI-1.0/xnli.dev.jsonl": "{}\n"},
        ),
        "XNLI-MT-1.0.zip": archive(**{"XNLI-MT-1.0/multinli/multinli.train.en.tsv": "x\n"}),
    },
}


@pytest.mark.parametrize("name", ["snli", "xnli"])
def test_inference_pairs_lie_where_the_tasks_look(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    publish(files, monkeypatch, name, **NLI_FILES[name])
    invoke(name, "--mirror", mirror(files), "--out", tmp_path / name)
    splits = ("train", "dev", "test")
    assert missing_split(str(tmp_path / name), task_options(name, {}), splits) == ""
    suffix = {"snli": ".jsonl", "xnli": ".tsv"}[name]
    unpacked = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
    assert {path.suffix for path in unpacked if path.name != fetch.FETCHED} == {suffix}


def test_source_babylm_reads_what_is_fetched(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [remote.name for remote in fetch.PUBLISHED["babylm"]["files"].values()]
    publish(files, monkeypatch, "babylm", **{name: f"Of {name}.\n".encode() for name in names})
    invoke("babylm", "--mirror", mirror(files), "--out", tmp_path)
    slices = READERS.find("babylm").slices(str(tmp_path))
    assert [file_slice.name for file_slice in slices] == sorted(names)
    assert len(names) == 6


def test_archives_that_are_not_as_published_are_refused(
    files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(files, monkeypatch, "snli", **{"snli_1.0.zip": archive(**{"snli_1.0/x": "y"})})
    files.files = {path: content + b"!" for path, content in files.files.items()}
    with pytest.raises(DataError, match="bytes, its publisher says"):
        invoke("snli", "--mirror", mirror(files), "--out", tmp_path)
    files.files["/alexwarstadt/blimp/master/BLiMP.zip"] = b"no archive"
    with pytest.raises(DataError, match=r"BLiMP\.zip is damaged"):
        invoke("blimp", "--mirror", mirror(files), "--out", tmp_path)
    outside = tmp_path / "outside.zip"
    outside.write_bytes(archive(**{str(tmp_path / "evil.tsv"): "x"}))
    with pytest.raises(DataError, match="outside of it"):
        unpack(outside, tmp_path / "inside")
    assert not (tmp_path / "evil.tsv").exists()


def test_shards_and_minimal_pairs_by_the_command_line(files: Any, tmp_path: Path) -> None:
    import gzip

    text = gzip.compress(b'{"text": "A page."}\n')
    for number in range(2):
        files.files[
            f"/datasets/allenai/c4/resolve/main/en/c4-train.0000{number}-of-01024.json.gz"
        ] = text
    out = tmp_path / "c4"
    done = cloze("fetch", "c4", "--shards", 2, "--mirror", mirror(files), "--out", out, "--json")
    assert done.returncode == 0
    assert [Path(file).name for file in done.json["files"]] == [
        "c4-train.00000-of-01024.json.gz",
        "c4-train.00001-of-01024.json.gz",
    ]
    for collection, shards in (("c4", 1025), ("blimp", 2)):
        done = cloze("fetch", collection, "--shards", shards, "--mirror", mirror(files))
        assert (done.returncode, "--shards" in done.stderr) == (2, True)
    done = cloze("fetch", "blimp", "--mirror", "mirror.example")
    assert (done.returncode, "--mirror (mirror.example) is no URL" in done.stderr) == (2, True)
    pairs = archive(**{"BLiMP/data/wh_island.jsonl": "{}\n"})
    files.files["/alexwarstadt/blimp/master/BLiMP.zip"] = pairs
    blimp = tmp_path / "blimp"
    done = cloze("fetch", "blimp", "--mirror", mirror(files), "--out", blimp)
    assert (done.returncode, "licence: CC-BY-4.0" in done.stdout) == (0, True)
    assert sorted(path.name for path in blimp.iterdir()) == ["fetched.json", "wh_island.jsonl"]
