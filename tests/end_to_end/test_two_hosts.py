"""Two hosts, as network namespaces: the same training on both, and the same result as on one host with two processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from model.checkpoint import load
from pipeline.core import artifact
from tests.conftest import REPOSITORY
from tests.flows.test_cli import cloze
from tests.model.datasets import write_dataset

ARGUMENTS = ("--steps", "6", "--global-batch", "8", "--precision", "fp32", "--set", "warmup_steps=1")


def namespaces_work() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"cz-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made


@pytest.mark.soak
@pytest.mark.skipif(not namespaces_work(), reason="network namespaces need root and iproute2")
def test_two_hosts_train_as_one(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "dataset")
    command = [str(REPOSITORY / "infra" / "two_hosts.sh"), "--dataset", str(dataset), "--model", "bert-tiny", *ARGUMENTS]
    environment = {**os.environ, "CLOZE": str(Path(sys.executable).parent / "cloze")}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "two")], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    one = cloze(
        "pretrain", "--dataset", dataset, "--model", "bert-tiny", *ARGUMENTS, "--processes", "2", "--out", tmp_path / "one"
    )
    assert one.returncode == 0, one.stderr
    manifests = [artifact.read_manifest(str(tmp_path / name)) for name in ("two", "one")]
    assert manifests[0].fingerprint == manifests[1].fingerprint
    assert [manifest.summary["world_size"] for manifest in manifests] == [2, 2]
    states = [load(str(tmp_path / name)).state for name in ("two", "one")]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert value.allclose(states[1][name], rtol=0, atol=1e-5), name  # a host alone with its rank gives it more threads
