"""Migrations of the stack's databases: of two starts at once, one waits for the other."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

PROGRAMS = max(map(str, Path("/usr/lib/postgresql").glob("*/bin")), default="")
pytestmark = pytest.mark.skipif(
    not PROGRAMS or shutil.which("setpriv") is None, reason="PostgreSQL is not installed"
)
MIGRATE = """
import sys, time
sys.path.insert(0, "infra")
import admin

def slow():
    print(time.monotonic())
    time.sleep(0.5)
    print(time.monotonic())

admin._migrate = slow
admin.migrate()
"""


def test_two_starts_at_once_do_not_migrate_together(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    pytest.importorskip("psycopg2")
    directory = Path("/tmp", tmp_path_factory.mktemp("postgres").name + f"-{os.getpid()}")
    directory.mkdir()
    user = ["setpriv", "--reuid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    control = [*user, f"{PROGRAMS}/pg_ctl", "-D", str(directory), "-w"]
    try:
        if user:
            shutil.chown(directory, "postgres")
        initdb = [f"{PROGRAMS}/initdb", "-ND", str(directory), "--auth=trust", "-U", "postgres"]
        subprocess.run([*user, *initdb], check=True, stdout=subprocess.DEVNULL)
        options = f"-p {port} -k {directory} -c listen_addresses=127.0.0.1 -c fsync=off"
        start = [*control, "-o", options, "-l", str(directory / "log"), "start"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
        environment = os.environ | {"PGHOST": "127.0.0.1", "PGPORT": port, "PGUSER": "postgres"}
        starts = [
            subprocess.Popen(
                [sys.executable, "-c", MIGRATE],
                cwd=REPOSITORY,
                env=environment,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        spans = sorted(tuple(map(float, start.communicate()[0].split())) for start in starts)
        assert spans[0][1] <= spans[1][0]
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], check=False, capture_output=True)
        shutil.rmtree(directory, ignore_errors=True)
