"""A data set of the Hugging Face Hub as a source, from a stand-in of its HTTP interface."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cloze.core.artifacts.artifact import read_manifest
from cloze.core.config import resolve_paths
from cloze.core.errors import DataError
from cloze.model.tasks.files import data_fingerprint
from cloze.model.tasks.finetune.config import FinetuneConfig
from cloze.model.tasks.table import load_task
from cloze.pipeline.corpus.sources import Source, list_sources
from tests.flows.commands.test_hub import Hub as ModelHub
from tests.flows.test_cli import installed

hub_library = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub ([hub])")

COMMIT = "a" * 40
REVISION = r"(?:refs/convert/parquet|[^/]+)"
PROSE = "The lamp was lit again before the evening ended, and the keeper of the {} wrote it down. "


class Hub(ModelHub):
    """What huggingface_hub's filesystem asks of a data set `org/prose`."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        paths = asked["paths"] if isinstance(asked["paths"], list) else [asked["paths"]]
        self.answer([entry for entry in self.entries() if entry["path"] in paths])

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append((path, self.headers.get("Range")))
        if re.fullmatch(r"/api/datasets/org/prose(/revision/.+)?", path):
            self.answer({"id": "org/prose", "sha": COMMIT, "siblings": [], "tags": []})
        elif match := re.fullmatch(rf"/api/datasets/org/prose/tree/{REVISION}/?(.*)", path):
            deep = "recursive=true" in self.path.lower()
            below = [
                entry
                for entry in self.entries()
                if str(Path(entry["path"]).parent) == (match[1] or ".")
                or (deep and entry["path"].startswith(match[1]))
            ]
            self.answer(below or {"error": "no entry"}, 200 if below else 404)
        elif match := re.fullmatch(rf"/datasets/org/prose/resolve/{REVISION}/(.+)", path):
            self.content(self.server.files[match[1]])
        else:
            self.answer({"error": "not found"}, 404)

    def entries(self) -> list[dict[str, Any]]:
        files: dict[str, bytes] = self.server.files
        folders = {str(folder) for path in files for folder in Path(path).parents} - {"."}
        empty = {"type": "directory", "size": 0, "oid": "0" * 40}
        return [{**empty, "path": folder} for folder in folders] + [
            {
                "type": "file",
                "path": path,
                "size": len(content),
                "oid": hashlib.sha1(content).hexdigest(),
            }
            for path, content in files.items()
        ]

    def content(self, content: bytes) -> None:
        tag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if "Range" not in self.headers:
            self.send(200, content, tag)
            return
        start, end = re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "").groups()  # type: ignore[union-attr]
        part = content[int(start) : int(end) + 1]
        size = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
        self.send(206, part, {**size, **tag})

    def answer(self, content: Any, status: int = 200) -> None:
        code = {"X-Error-Code": "EntryNotFound"} if status == 404 else {}
        self.send(
            status, json.dumps(content).encode(), {"Content-Type": "application/json", **code}
        )


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    found: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    found.files, found.asked = {}, []
    for number, place in enumerate(("tower", "harbour")):
        rows = [{"id": f"{place}{row}", "content": PROSE.format(place) * 8} for row in range(9)]
        rows[1]["content"] += f"It was the night of storm {number}."
        file = tmp_path / f"{place}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), file)
        found.files[f"en/train-0000{number}-of-00002.parquet"] = file.read_bytes()
    found.files["README.md"] = b"---\nlicense: cc0-1.0\n---\n"
    threading.Thread(target=found.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{found.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    # what the library has read from the environment when it was imported here
    from huggingface_hub import constants as known

    monkeypatch.setattr(known, "ENDPOINT", url)
    monkeypatch.setattr(known, "HF_HUB_OFFLINE", False)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(known, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    # conftest's: what a user has not set is not set by a launch of ranks either
    monkeypatch.delenv("HF_HUB_OFFLINE")
    # a filesystem of an earlier test keeps its listings
    hub_library.HfFileSystem.clear_instance_cache()
    yield found
    found.shutdown()
    found.server_close()


@pytest.mark.parametrize(
    "path",
    [
        "org/prose",
        "org/prose@main/en",
        "org/prose/en/*.parquet",
        "org/prose@refs%2Fconvert%2Fparquet/en",
        "org/prose@refs%2Fconvert%2Fparquet/*/train-*",
        "hf=org/prose:en",
    ],
)
def test_a_data_set_of_the_hub_gives_what_its_files_give(
    path: str, hub: Any, tmp_path: Path
) -> None:
    for name, content in hub.files.items():
        file = tmp_path / "copy" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    hub_path = path if path.startswith("hf=") else f"parquet=hf://datasets/{path}"
    sources = {"hub": hub_path, "disk": f"parquet={tmp_path / 'copy'}"}
    shards, documents = [], []
    for name, source in sources.items():
        out = tmp_path / f"corpus-{name}"
        read = ("--source", source, "--column", "text=content", "--language", "en")
        done = installed("corpus", *read, "--out", out)
        assert done.returncode == 0, done.stderr
        shards.append([file.read_bytes() for file in sorted(out.rglob("*.arrow"))])
        documents.append(read_manifest(str(out)).summary["documents"])
    assert documents[0] == documents[1] > 0
    assert shards[0]
    # names of blobs stand for contents: no file is read once more to be hashed
    ranges = [(asked, part) for asked, part in hub.asked if "/resolve/" in asked and part]
    assert len(ranges) == len(set(ranges))


def test_a_hub_that_is_away_is_told_with_what_to_check(
    hub: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "parquet=hf://datasets/org/nothing"
    for endpoint in ("", "http://127.0.0.1:9"):
        if endpoint:
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
        done = installed("corpus", "--source", source, "--out", tmp_path / "c")
        assert done.returncode in (1, 2, 3), done.stderr
        assert "hf://datasets/org/nothing" in done.stderr
        assert "HF_ENDPOINT" in done.stderr
        assert "internal error" not in done.stderr


def test_a_configuration_that_is_not_there_is_told_with_those_that_are(hub: Any) -> None:
    source = Source(kind="hf", path="org/prose:fr/train")
    with pytest.raises(DataError, match=r"refs%2Fconvert%2Fparquet has en\); check the path"):
        list_sources([source])


def test_a_task_is_read_by_the_name_of_its_data_set(hub: Any, tmp_path: Path) -> None:
    label = {"info": {"features": {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}}}
    for split, rows in (("train", 4), ("validation", 2)):
        columns = {"text": [f"{split} {row}" for row in range(rows)], "label": [0, 1] * (rows // 2)}
        table = pa.table(columns).replace_schema_metadata({"huggingface": json.dumps(label)})
        pq.write_table(table, tmp_path / "one.parquet")
        hub.files[f"polar/{split}/0000.parquet"] = (tmp_path / "one.parquet").read_bytes()
    values = {"task": "classification", "data": "hf=org/prose:polar"}
    data = resolve_paths(FinetuneConfig, values, "/elsewhere")["data"]
    task = load_task("classification", {})
    dev = task.read(data, "dev", None)
    assert (dev.texts, dev.label_names) == (["validation 0", "validation 1"], ("no", "yes"))
    assert len(task.read(data, "train", None)) == 4
    assert task.read(f"{data}/validation", "dev", None).texts == dev.texts
    hashes = data_fingerprint(data, task.options, ("train", "dev"))
    assert hashes == data_fingerprint(data, task.options, ("train", "dev"))
    with pytest.raises(DataError, match=r"polr does not exist \(.* has en, polar\)"):
        data_fingerprint(data.replace("polar", "polr"), task.options, ("train", "dev"))
    with pytest.raises(DataError, match=r"polar has train, validation\); the task reads"):
        task.read(data, "test", None)
