"""A model goes to a Hub and comes back: a stand-in of the Hub's HTTP interface on loopback."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts.artifact import Manifest, read_manifest, write_manifest
from cloze.model import checkpoint
from tests.flows.test_cli import cloze
from tests.tiny_models import write_checkpoint

pytest.importorskip("huggingface_hub", reason="needs huggingface_hub ([hub])")


class Hub(http.server.BaseHTTPRequestHandler):
    """What huggingface_hub asks while it uploads and downloads; all files go into commits."""

    protocol_version = "HTTP/1.1"
    server: Any

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        match = re.fullmatch(r"/api/(?:models|datasets)/\w+/\w+/(\w+)/([\w.%-]+)", self.path)
        if match and match[1] == "preupload":
            files = [{**file, "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self.answer({"files": [{**file, "shouldIgnore": False} for file in files]})
        elif match and match[1] == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            files = {
                line["value"]["path"]: base64.b64decode(line["value"]["content"])
                for line in lines
                if line["key"] == "file"
            }
            oid = hashlib.sha1(body).hexdigest()
            self.server.branches[match[2]], self.server.commits[oid] = oid, files
            url = f"{self.server.url}/org/model/commit/{oid}"
            self.answer({"success": True, "commitUrl": url, "commitOid": oid, "hookOutput": ""})
        elif self.path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        else:
            self.server.created.append(self.path)
            self.answer({"url": f"{self.server.url}/org/model", "name": "org/model"})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        listed = re.fullmatch(r"/api/models/org/model/revision/([\w.%-]+)(\?.*)?", self.path)
        if listed:
            oid = self.server.branches.get(listed[1], listed[1])
            names = [{"rfilename": name} for name in self.server.commits.get(oid, ())]
            self.answer({"id": "org/model", "sha": oid, "siblings": names, "tags": []})
            return
        tree = re.fullmatch(r"/api/models/org/model/tree/(\w+)(\?.*)?", self.path)
        if tree:
            files = self.server.commits.get(tree[1], {})
            self.answer(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": "0" * 40}
                    for name, content in files.items()
                ]
            )
            return
        match = re.fullmatch(r"/org/model/resolve/(\w+)/(.*)", self.path)
        content = self.server.commits.get(match[1], {}).get(match[2]) if match else None
        if content is None:
            self.answer({"error": "not found"}, 404)
            return
        digest = hashlib.sha1(content).hexdigest()
        self.send(200, content, {"ETag": f'"{digest}"', "X-Repo-Commit": match[1] if match else ""})

    def answer(self, content: Any, status: int = 200) -> None:
        self.send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    found: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    found.url = f"http://127.0.0.1:{found.server_address[1]}"
    found.branches, found.commits, found.created = {}, {}, []
    threading.Thread(target=found.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", found.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    yield found
    found.shutdown()
    found.server_close()


def write_pretraining(path: Path, stage: str = "pretrain", **values: Any) -> str:
    """A finished pretraining whose steps 2 and 4 are kept, the first by words."""
    for step in (2, 4, 5):
        directory = path / "checkpoints" / f"step-{step:08}"
        write_checkpoint(directory, path.parent / "scratch", step=step, seed=step)
    manifest = {
        "version": 1,
        "fingerprint": "a" * 64,
        "parents": {},
        "config": {},
        "files": (),
        "summary": {
            "checkpoint": "checkpoints/step-00000005",
            "milestones": {"4": "checkpoints/step-00000004"},
            "milestone_words": {"1000000": "checkpoints/step-00000002"},
        },
    }
    write_manifest(str(path), Manifest(stage=stage, **{**manifest, **values}))
    return str(path)


@pytest.mark.soak
def test_revisions_there_and_back(hub: Any, tmp_path: Path) -> None:
    training, export = write_pretraining(tmp_path / "pretrain"), tmp_path / "hf-model"
    done = cloze("export", training, "--revisions", "--out", export, "--json")
    assert done.returncode == 0, done.stderr
    assert sorted(done.json["revisions"]) == ["chck_1M", "step-4"]
    done = cloze("export", export, "--push", "org/model", "--json")
    assert done.returncode == 0, done.stderr
    assert list(done.json["commits"]) == ["main", "chck_1M", "step-4"]
    assert "hf_secret" not in done.stdout + done.stderr
    main = hub.commits[hub.branches["main"]]
    assert "model.safetensors" in main
    assert not [name for name in main if name.startswith(("revisions", "_", "manifest"))]
    out = tmp_path / "back"
    done = cloze("import", "org/model@chck_1M", "--out", out, "--json")
    assert done.returncode == 0, done.stderr
    before = checkpoint.load(f"{training}/checkpoints/step-00000002").state
    after = checkpoint.load(str(out)).state
    assert all(after[name].equal(tensor) for name, tensor in before.items())
    manifest = read_manifest(str(out))
    assert manifest.config["repository"] == f"org/model@{hub.branches['chck_1M']}"
    assert manifest.parents["directory"]  # the hash of the files


def test_revisions_of_earlier_phases_and_of_a_merge(tmp_path: Path) -> None:
    write_pretraining(tmp_path / "first")
    last = {"checkpoint": "checkpoints/step-00000005"}
    write_pretraining(
        tmp_path / "second",
        fingerprint="b" * 64,
        parents={"continue": "a" * 64},
        summary={**last, "milestone_words": {"2500000": "checkpoints/step-00000004"}},
    )
    merge = write_pretraining(
        tmp_path / "mean",
        "merge",
        fingerprint="c" * 64,
        parents={"checkpoint": "b" * 64},
        summary=last,
    )
    done = cloze("export", merge, "--revisions", "--out", tmp_path / "hf", "--json")
    assert done.returncode == 0, done.stderr
    assert sorted(done.json["revisions"]) == ["chck_1M", "chck_2.5M", "step-4"]


def test_what_is_no_export_or_repository(hub: Any, tmp_path: Path) -> None:
    done = cloze("export", tmp_path, "--push", "org/model")
    assert (done.returncode, "has no config.json" in done.stderr) == (2, True)
    done = cloze("export", tmp_path, "--push", "model")
    assert (done.returncode, "write it as org/name" in done.stderr) == (2, True)
    done = cloze("import", "org/missing@main", "--out", tmp_path / "out")
    assert (done.returncode, "the Hub refused" in done.stderr) == (1, True)
    plain = write_checkpoint(tmp_path / "c", tmp_path / "scratch")
    done = cloze("export", plain, "--revisions", "--out", tmp_path / "none")
    assert (done.returncode, "needs a finished pretraining" in done.stderr) == (2, True)
