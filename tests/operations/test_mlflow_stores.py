"""MLflow on Postgres with its files in an S3-compatible store, by environment alone: all arrives,
and the champion loads from there.
"""

from __future__ import annotations

import glob
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.flows.tracking.mlflow_writer import Registry
from cloze.flows.tracking.models import Checkpoint
from cloze.flows.tracking.spool import Spool
from tests.operations.mlflow_server import Server
from tests.tiny_models import write_checkpoint

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings(
        "ignore:.*Any type hint is inferred:UserWarning"
    ),  # of MLflow's own, when it is imported
]


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    """The address of a database in a cluster of its own."""
    pytest.importorskip("psycopg2", reason="psycopg2 is not installed (pip install '.[dev]')")
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin"))
    binaries = found[-1] if found else os.path.dirname(shutil.which("initdb") or "")
    if not binaries:
        pytest.skip("Postgres is not installed (apt-get install postgresql)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = (
        Path("/tmp") / f"cloze-postgres-{port}"
    )  # short, and open to the user that Postgres runs as: it refuses root
    user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if user:
        data.mkdir()
        shutil.chown(data, "postgres", "postgres")

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [*user, f"{binaries}/{program}", "-D", str(data), *arguments],
            check=True,
            capture_output=True,
            cwd="/",
        )

    run("initdb", "--auth=trust", "--username=cloze", "--encoding=UTF8", "--no-sync")
    options = f"-p {port} -k {data} -c listen_addresses=127.0.0.1 -c fsync=off"
    run("pg_ctl", "-l", str(data / "log"), "-o", options, "-w", "start")
    try:
        yield f"postgresql://cloze:hunter2@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")
        shutil.rmtree(data)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    moto = pytest.importorskip("moto.server", reason="moto is not installed (pip install '.[dev]')")
    import boto3

    store = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    host, port = store.get_host_and_port()
    values = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "planted-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in {**values, "MLFLOW_S3_ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(name, value)
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket="mlflow")
    yield "s3://mlflow/artifacts"
    store.stop()


def test_all_of_a_run_arrives_in_postgres_and_s3(
    postgres: str, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import boto3
    import mlflow

    server = Server(tmp_path, postgres, bucket)
    server.start()
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
        checkpoint = write_checkpoint(tmp_path / "checkpoint", tmp_path / "pieces", step=7)
        spool = Spool(tmp_path / "runs" / ".tracking", server.url)
        run = spool.start_run("pretrain")
        for step in range(1, 2001):
            spool.line(run, {"step": step, "time": 1.0 * step, "loss": 1.0 / step})
        dataset = spool.dataset(
            run, name="dataset", fingerprint="d" * 64, source="/data", context="training"
        )
        spool.params(run, {"store": postgres, "note": "the key is planted-secret"})
        spool.text(run, "config.yaml", "a: 1\n")
        spool.model(
            run,
            Checkpoint(path=checkpoint, fingerprint="f", build=run, step=7),
            [("heldout_loss", 0.5, 7, 7)],
            dataset,
        )
        spool.end_run(run)
        spool.start_sender()
        assert spool.close(timeout=120), (spool.directory / "sender.log").read_text()[-2000:]
        assert not spool.refused()
        client = server.client()
        (found,) = client.search_runs([client.get_experiment_by_name("cloze").experiment_id])
        assert [point.step for point in client.get_metric_history(found.info.run_id, "loss")] == [
            *range(1, 2001)
        ]
        assert found.data.params == {
            "store": postgres.replace("cloze:hunter2", "***"),
            "note": "the key is ***",
        }
        assert found.inputs.dataset_inputs[0].dataset.digest == "d" * 36
        registry = Registry(tmp_path / "runs")
        (version,) = client.search_model_versions("name='cloze'")
        (metric,) = client.get_logged_model(version.tags["cloze.model_id"]).metrics
        assert (metric.key, metric.value) == ("heldout_loss", 0.5)
        assert registry.find("f") == int(version.version)
        registry.set_champion(int(version.version))
        keys = [item["Key"] for item in boto3.client("s3",
            endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"]).list_objects_v2(
            Bucket="mlflow")["Contents"]]  # fmt: skip
        assert {name.rsplit("/", 1)[-1] for name in keys} >= {
            "config.yaml",
            "MLmodel",
            "model.safetensors",
        }
        model = mlflow.pyfunc.load_model("models:/cloze@champion")
        assert len(model.predict(["the [MASK] sat."], params={"top_k": 3})) == 3
    finally:
        server.kill()
