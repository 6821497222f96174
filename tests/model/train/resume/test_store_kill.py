"""A training in a store, killed at any moment and started again, ends with the weights of one that
nobody killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from cloze.core import storage
from tests import warm
from tests.flows.test_cli import cloze
from tests.model.datasets import write_dataset
from tests.model.train.ranks import digests, here
from tests.model.train.resume.test_object_store import SETTINGS, kept, train
from tests.object_store import Answer, Store, no_fault
from tests.slices import few

SCRIPT = (
    "from tests.model.train.resume.test_object_store import train\n"
    "from cloze.core import object_store\n"
    "object_store.PUT_BYTES = {put_bytes}\n"
    "train({dataset!r}, {path!r})\n"
)


MOMENTS = {
    "one-request": (5 << 20, "put", "step-00000004/model.safetensors"),
    "a-part": (1 << 10, "part", "step-00000004/model.safetensors"),
    "the-next": (1 << 10, "multipart", "step-00000004/training/optimizer.safetensors"),
    "all-but-complete": (5 << 20, "put", "step-00000004/checkpoint.json"),
    "the-last-step": (5 << 20, "put", "step-00000005/training/state.json"),
}


@pytest.mark.parametrize(
    ("put_bytes", "kind", "name"),
    few(
        [pytest.param(*moment, id=name) for name, moment in MOMENTS.items()],
        "a-part",
    ),
)
def test_a_killed_training_goes_on_to_the_same_weights(
    store: Store, tmp_path: Path, put_bytes: int, kind: str, name: str
) -> None:
    dataset, path = write_dataset(tmp_path / "dataset"), store.path("run")
    program = SCRIPT.format(put_bytes=put_bytes, dataset=str(dataset), path=path)
    process: subprocess.Popen[bytes] | None = None

    def kill(asked: str, key: str, number: int) -> Answer:
        if (asked, key) == (kind, f"run/checkpoints/{name}") and process is not None:
            os.kill(process.pid, signal.SIGKILL)
            return 1.0
        return None

    store.server.fault = kill
    process = subprocess.Popen([warm.python(), "-c", program], cwd=warm.REPOSITORY)
    assert process.wait(120) == -signal.SIGKILL
    store.server.fault = lambda *_: None
    assert max(kept(path)) == (3 if "00004" in name else 4)
    assert any("resuming from checkpoints/step-0000000" in note for note in train(dataset, path))
    assert kept(path) == [6]
    straight = here(SETTINGS, dataset, tmp_path / "straight")
    expected = digests(straight.checkpoint)
    for file in ("model.safetensors", "training/optimizer.safetensors"):
        found = storage.sha256(storage.join(path, "checkpoints", "step-00000006", file))[0]
        assert found == expected[file]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["training/optimizer.safetensors", "checkpoint.json"])
def test_the_killed_command_goes_on_to_the_same_weights(
    store: Store, tmp_path: Path, name: str
) -> None:
    """SIGKILL to `cloze pretrain` and all that it started, while a checkpoint is written."""
    dataset, path = write_dataset(tmp_path / "dataset"), store.path("run")
    words = ["pretrain", "--dataset", str(dataset), "--model", "bert-tiny", "--steps", "6"]
    words += ["--global-batch", "4", "--checkpoint-every", "2", "--device", "cpu"]
    script = "import sys; from cloze.flows.cli import entry; sys.argv[0] = 'cloze'; entry()"
    process: subprocess.Popen[bytes] | None = None

    def kill(_: str, key: str, number: int) -> Answer:
        if key == f"run/checkpoints/step-00000004/{name}" and process is not None:
            store.server.fault = no_fault
            warm.kill(process)
            return 1.0
        return None

    store.server.fault = kill
    process = subprocess.Popen(
        [warm.python(), "-c", script, *words, "--out", path], stderr=subprocess.DEVNULL
    )
    assert process.wait(300) != 0
    assert kept(path) == [2]
    again = cloze(*words, "--out", path, "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    straight = cloze(*words, "--out", str(tmp_path / "straight"), "--json", cwd=tmp_path)
    assert again.json["loss"] == straight.json["loss"]
    found, expected = (
        storage.sha256(f"{made.json['checkpoint']}/model.safetensors") for made in (again, straight)
    )
    assert found == expected
