"""What another account of the machine gets from the servers of `cloze ui`: no entry."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tests.operations.ui import running_ui

NOBODY = 65534
pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or shutil.which("setpriv") is None or shutil.which("curl") is None,
    reason="asks as another account, which only root may do",
)


def as_nobody(url: str, body: Any = None, *options: str) -> int:
    """The status of one request that another account sends."""
    sent = (
        [] if body is None else ["-H", "Content-Type: application/json", "--data", json.dumps(body)]
    )
    done = subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "curl", "-s",
         "-o", "/dev/null", "-w", "%{http_code}", *options, *sent, url],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def as_owner(url: str, key: str, body: Any = None) -> Any:
    call = urllib.request.Request(
        url,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", "Authorization": f"Basic {key}"},
    )
    with urllib.request.urlopen(call, timeout=60) as response:
        return json.loads(response.read() or b"null")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_another_account_may_neither_start_nor_read(tmp_path: Path) -> None:
    with running_ui(tmp_path) as ui:
        created = as_nobody(
            f"{ui['api']}/deployments/00000000-0000-0000-0000-000000000000/create_flow_run",
            {"job_variables": {"command": 'sh -c "id > /tmp/x"'}},
        )
        reading = {
            "flows": as_nobody(f"{ui['api']}/flow_runs/filter", {}),
            "experiments": as_nobody(
                f"{ui['mlflow']}/api/2.0/mlflow/experiments/search", {"max_results": 9}
            ),
            "artifacts": as_nobody(f"{ui['mlflow']}/api/2.0/mlflow-artifacts/artifacts"),
            "graphql": as_nobody(f"{ui['mlflow']}/graphql", {"query": "{__typename}"}),
            "page": as_nobody(f"{ui['page']}/"),
            "metrics": as_nobody(f"{ui['page']}/metrics"),
        }
        guessed = as_nobody(f"{ui['page']}/", None, "-u", "cloze:guess")
        assert {created, guessed, *reading.values()} == {401}, (created, guessed, reading)

        kept = Path(ui["login"])
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        key = b64encode(kept.read_text().encode()).decode()
        assert as_owner(f"{ui['api']}/flow_runs/count", key, {}) == 0
        found = as_owner(
            f"{ui['mlflow']}/api/2.0/mlflow/experiments/search", key, {"max_results": 9}
        )
        assert found["experiments"]
        secret = kept.read_text().partition(":")[2]
        loose = [
            path
            for path in (tmp_path / "runs").rglob("*")
            if path.is_file()
            and stat.S_IMODE(path.stat().st_mode) & 0o044
            and secret.encode() in path.read_bytes()
        ]
        assert loose == []
        assert secret not in (tmp_path / "ui.err").read_text()
