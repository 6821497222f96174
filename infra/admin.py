"""One-time jobs of the stack, run in Cloze's image: `python admin.py COMMAND …`.

    migrate             create missing databases; bring all to the schema of this version
    buckets             create missing buckets
    deploy              `cloze deploy`; then $CLOZE_POOLS, such as cloze-gpu=full-run,pretraining,
                        moves deployments of Cloze to other work pools. $CLOZE_JOB_TEMPLATE, a
                        YAML file, makes the pool `cloze` one of Kubernetes, $CLOZE_JOB_IMAGE its
                        image
    check URL           exit with 0 if http://, tcp:// or docket:// (Prefect's services) answers
    backup DIRECTORY    databases, buckets and runs; while everything runs
    restore DIRECTORY   the same back, while no server or worker runs

A backup is a directory:

    DATABASE.dump       pg_dump's custom format
    store/BUCKET/KEY    objects
    runs.tar            $CLOZE_HOME/runs, links included
    complete.json       written last: {"time": Unix seconds, "databases", "objects"}
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

DATABASES = ("prefect", "mlflow", "mlflow_auth")
BUCKETS = ("mlflow", "cloze")
POOLS = os.environ.get("CLOZE_POOLS", "")
COMPLETE = "complete.json"
TIMEOUT = 8.0  # seconds of a check
MIGRATION_LOCK = 0x636C6F7A65  # key of an advisory lock: any number that nobody else uses


def _sql(*statements: str) -> list[Any]:
    """Run statements outside of a transaction; return the rows of the last one."""
    with _cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []


@contextlib.contextmanager
def _cursor() -> Iterator[Any]:
    import psycopg2

    # address and password: PGHOST, PGPASSWORD, …
    connection = psycopg2.connect(dbname="postgres")
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor
    finally:
        connection.close()


def migrate() -> None:
    with _cursor() as cursor:
        # of two starts at once the second waits, and then finds nothing to do; the lock ends with
        # the connection
        cursor.execute(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
        _migrate()


def _migrate() -> None:
    existing = {name for (name,) in _sql("SELECT datname FROM pg_database")}
    for database in DATABASES:
        if database not in existing:
            _sql(f"CREATE DATABASE {database}")
    subprocess.run(
        [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"], check=True
    )
    from mlflow.db import commands

    # in this process: the address has the password, and every user can read arguments
    commands(["upgrade", os.environ["MLFLOW_BACKEND_STORE_URI"]], standalone_mode=False)


def _store() -> Any:
    import boto3
    from botocore.config import Config

    return boto3.client("s3", config=Config(s3={"addressing_style": "path"}))


def buckets() -> None:
    store = _store()
    existing = {bucket["Name"] for bucket in store.list_buckets()["Buckets"]}
    for name in BUCKETS:
        if name not in existing:
            store.create_bucket(Bucket=name)


def deploy() -> None:
    if "CLOZE_JOB_TEMPLATE" in os.environ:
        _kubernetes_pool("cloze", Path(os.environ["CLOZE_JOB_TEMPLATE"]))
    subprocess.run([sys.executable, "-m", "cloze", "deploy"], check=True)
    _move_deployments()


def _move_deployments() -> None:
    """Move Cloze's deployments to the work pools that $CLOZE_POOLS names; no others."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    from cloze.flows.prefect.deploy import ENTRYPOINTS, deployments

    template = ProcessWorker.get_default_base_job_template()
    with get_client(sync_client=True) as client:
        for pool, _, names in (item.partition("=") for item in POOLS.split()):
            with contextlib.suppress(ObjectAlreadyExists):
                client.create_work_pool(
                    WorkPoolCreate(name=pool, type="process", base_job_template=template)
                )
            for deployment in deployments(client):
                is_own = str(deployment.entrypoint).startswith(ENTRYPOINTS)
                if is_own and deployment.name in names.split(","):
                    update = DeploymentUpdate(work_pool_name=pool)
                    client.update_deployment(deployment.id, update)
                    print(f"{deployment.name} runs in the work pool {pool}")


def _kubernetes_pool(name: str, path: Path) -> None:
    """Create a work pool whose flow runs are Jobs, or give it the template of this version."""
    import yaml
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    template = yaml.safe_load(path.read_text())
    template["variables"]["properties"]["image"]["default"] = os.environ["CLOZE_JOB_IMAGE"]
    pool = WorkPoolCreate(name=name, type="kubernetes", base_job_template=template)
    with get_client(sync_client=True) as client:
        client.create_work_pool(pool, overwrite=True)


def check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "docket":
        asyncio.run(asyncio.wait_for(_check_services(url.replace("docket", "redis", 1)), TIMEOUT))
    elif parts.scheme == "tcp":
        socket.create_connection((parts.hostname or "", parts.port or 0), TIMEOUT).close()
    else:
        urllib.request.urlopen(url, timeout=TIMEOUT).close()


async def _check_services(redis: str) -> None:
    """Check that the background services tell Redis that they live."""
    from docket import Docket

    async with Docket(name="prefect-server", url=redis) as docket:
        if not await docket.workers():
            sys.exit("no background services")


def backup(directory: str) -> None:
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    (target / COMPLETE).unlink(missing_ok=True)
    for database in DATABASES:
        subprocess.run(
            ["pg_dump", "--format=custom", f"--file={target / database}.dump", database], check=True
        )
    objects = _save_objects(target / "store")
    _save_runs(target / "runs.tar")
    content = {"time": time.time(), "databases": DATABASES, "objects": objects}
    (target / COMPLETE).write_text(json.dumps(content) + "\n")
    print(f"{target}: {len(DATABASES)} databases, {objects} objects, runs.tar")


def _save_objects(target: Path) -> int:
    """Download the buckets' objects, without those deleted meanwhile; return their number."""
    from botocore.exceptions import ClientError

    store, kept = _store(), set()
    for bucket in BUCKETS:
        for page in store.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for item in page.get("Contents", ()):
                path = target / bucket / item["Key"]
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    store.download_file(bucket, item["Key"], str(path))
                except ClientError as error:
                    if error.response["Error"]["Code"] not in ("404", "NoSuchKey"):
                        raise
                else:
                    kept.add(path)
    for path in target.rglob("*"):  # of an earlier backup in this directory
        if path.is_file() and path not in kept:
            path.unlink()
    return len(kept)


def _save_runs(target: Path) -> None:
    """Archive the runs, without what trainings remove meanwhile, such as old checkpoints."""
    runs = _runs()
    members = (
        Path(parent, name)
        for parent, directories, files in os.walk(runs)
        for name in sorted((*directories, *files))
    )
    with tarfile.open(target, "w") as archive:
        for path in itertools.chain([runs], members):
            with contextlib.suppress(FileNotFoundError):
                archive.add(path, path.relative_to(runs.parent), recursive=False)


def restore(directory: str) -> None:
    source = Path(directory)
    if not (source / COMPLETE).exists():
        sys.exit(f"{source} is no complete backup: {COMPLETE} is missing; choose another one")
    for database in DATABASES:
        _sql(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)", f"CREATE DATABASE {database}")
        subprocess.run(
            ["pg_restore", "--no-owner", "--exit-on-error", f"--dbname={database}",
                f"{source / database}.dump"],
            check=True,
        )  # fmt: skip
    buckets()
    store, count = _store(), 0
    for bucket in BUCKETS:
        root = source / "store" / bucket
        for path in sorted(filter(Path.is_file, root.rglob("*"))):
            store.upload_file(str(path), bucket, path.relative_to(root).as_posix())
            count += 1
    _restore_runs(source / "runs.tar")
    print(f"{source}: {len(DATABASES)} databases, {count} objects and runs are back")


def _restore_runs(source: Path) -> None:
    with tarfile.open(source) as archive:
        # artifacts may be links outside; Debian 12's extractall has no argument `filter` yet
        archive.extraction_filter = lambda member, path: member
        archive.extractall(_runs().parent)


def _runs() -> Path:
    return Path(os.environ["CLOZE_HOME"]) / "runs"


if __name__ == "__main__":
    commands = {
        function.__name__: function
        for function in (migrate, buckets, deploy, check, backup, restore)
    }
    if len(sys.argv) < 2 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
