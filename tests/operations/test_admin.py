"""infra/admin.py: backups of what changes meanwhile, and deployments in other work pools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from infra import admin
from tests.conftest import REPOSITORY
from tests.object_store import CountedServer, environment
from tests.operations.servers import Operations

DEBIAN = "/usr/bin/python3"  # 12's is 3.11.2, as in the image


@pytest.mark.parametrize("python", [sys.executable, DEBIAN])
def test_runs_are_saved_and_restored(python: str, tmp_path: Path) -> None:
    if shutil.which(python) is None:
        pytest.skip(f"no {python}")
    run = tmp_path / "runs" / "a"
    (run / "empty").mkdir(parents=True)
    (run / "manifest.json").write_text("{}")
    (run / "shared").symlink_to("/elsewhere/corpus")
    code = "import admin, pathlib, sys; getattr(admin, sys.argv[1])(pathlib.Path(sys.argv[2]))"
    given = {"CLOZE_HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY / "infra")}
    for step in ("_save_runs", "_restore_runs"):
        command = [python, "-c", code, step, str(tmp_path / "runs.tar")]
        subprocess.run(command, env={**os.environ, **given}, check=True)
        if step == "_save_runs":
            shutil.rmtree(tmp_path / "runs")
    assert (run / "empty").is_dir()
    assert (run / "manifest.json").read_text() == "{}"
    assert os.readlink(run / "shared") == "/elsewhere/corpus"


def test_a_checkpoint_removed_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOZE_HOME", str(tmp_path))
    run, copy = tmp_path / "runs" / "a", tmp_path / "runs.tar"
    (run / "step-2").mkdir(parents=True)
    (run / "0-large").touch()
    os.truncate(run / "0-large", 500_000_000)
    for number in range(3):
        (run / f"step-1-{number}").touch()

    def prune() -> None:
        """While the large file, the first one, is being read."""
        while not copy.exists() or not copy.stat().st_size:
            time.sleep(0.001)
        for path in (run / "step-1-0", run / "step-1-2"):
            path.unlink()
        (run / "step-2").rmdir()

    thread = threading.Thread(target=prune)
    thread.start()
    admin._save_runs(copy)
    thread.join()
    with tarfile.open(copy) as archive:
        assert archive.getnames() == ["runs", "runs/a", "runs/a/0-large", "runs/a/step-1-1"]


def test_an_object_deleted_meanwhile_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("boto3")
    server = CountedServer(tmp_path / "buckets")
    for name, value in environment(server.url).items():
        monkeypatch.setenv(name, value)
    try:
        admin.buckets()
        store = admin._store()
        for key in ("a", "b", "c"):
            store.put_object(Bucket="mlflow", Key=key, Body=b"x")

        def delete(kind: str, key: str, number: int) -> tuple[int, str] | None:
            """Refuse downloads of `b`: of its head without a body, as S3 does."""
            return (404, "NoSuchKey") if key == "b" else None

        server.fault = delete
        saved = tmp_path / "store"
        (saved / "cloze").mkdir(parents=True)
        (saved / "cloze" / "of-an-earlier-backup").touch()
        assert admin._save_objects(saved) == 2
        assert [path for path in sorted(saved.rglob("*")) if path.is_file()] == [
            saved / "mlflow" / "a", saved / "mlflow" / "c",
        ]  # fmt: skip
        server.fault = lambda kind, key, number: (403, "AccessDenied") if key == "c" else None
        from botocore.exceptions import ClientError

        with pytest.raises(ClientError, match="403"):
            admin._save_objects(saved)
    finally:
        server.stop()


@pytest.mark.soak  # a Prefect server
def test_only_clozes_deployments_move_to_another_pool(
    operations: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = operations.call("/flows/", {"name": "of-a-team"})["id"]

    def create(name: str, entrypoint: str) -> str:
        body = {"name": name, "flow_id": flow, "entrypoint": entrypoint, "work_pool_name": "cloze"}
        return str(operations.call("/deployments/", body)["id"])

    own = create("pretraining", "cloze.flows.prefect.flows.pretraining")
    theirs = create("full-run", "team.flows.full_run")
    other = create("data", "cloze.flows.prefect.flows.data")
    monkeypatch.setattr(admin, "POOLS", "cloze-gpu=full-run,pretraining")
    with temporary_settings({PREFECT_API_URL: operations.api}):
        admin._move_deployments()
    pools = [
        operations.call(f"/deployments/{name}")["work_pool_name"] for name in (own, theirs, other)
    ]
    operations.call(f"/flows/{flow}", method="DELETE")  # with its deployments
    assert pools == ["cloze-gpu", "cloze", "cloze"]
