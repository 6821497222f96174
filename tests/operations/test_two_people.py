"""Two people, two projects, one runs directory, a real Slurm of two nodes: from text to a night, while
jobs, nodes and heads are killed. Nobody's work is lost, and the heads compute nothing.
"""

from __future__ import annotations

import grp
import itertools
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil
import pytest
import yaml

from tests import slurm_cluster
from tests.checkout import import_path
from tests.conftest import REPOSITORY

PEOPLE = {"cloze-ann": 0o077, "cloze-ben": 0o022}  # accounts, and their umasks
GROUP = "cloze-lab"
STAGES = ("corpus", "vocab", "dataset", "pretrain", "finetune", "evaluate", "report")
FAULTS = ("node", "head", "scancel", "kill")
PATIENCE = 2400.0
# files of trainings that hold times of day, durations or costs
TIMED = (
    ".html",
    "checkpoint.json",
    "state.json",
    "cost.jsonl",
    "metrics.jsonl",
    "from_scratch.jsonl",
)


def _unreachable() -> str | None:
    """Why other accounts cannot run this Python; None where they can."""
    for path in (Path(sys.executable).resolve(), REPOSITORY):
        for parent in (path, *path.parents):
            if not parent.stat().st_mode & 0o001:
                return f"other accounts may not enter {parent}, where Python or Cloze is"
    return None


REASON = slurm_cluster.missing() or _unreachable()
pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(5400),
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
]


@dataclass
class Person:
    """An account with a home, a project and a config."""

    name: str
    place: Path
    environment: dict[str, str]
    config: Path
    heads: list[psutil.Popen] = field(default_factory=list)
    cpu: float = 0.0

    @property
    def run(self) -> Path:
        """The directory of the run."""
        return self.place / "runs" / self.name / "first"

    def start(self, *words: str) -> psutil.Popen:
        output: IO[bytes] = (self.place / f"{self.name}.txt").open("ab")
        account = pwd.getpwnam(self.name)
        with output:
            found = psutil.Popen(
                [sys.executable, "-m", "cloze", *words], cwd=self.config.parent,
                env=self.environment, user=account.pw_uid, group=account.pw_gid,
                extra_groups=[grp.getgrnam(GROUP).gr_gid], umask=PEOPLE[self.name],
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self.heads.append(found)
        return found

    def call(self, *words: str, code: int = 0) -> str:
        """What a command prints; it must end with this code."""
        before = len(self.told())
        assert self.start(*words).wait(600) == code, self.told()[before:]
        return self.told()[before:]

    def told(self) -> str:
        return (self.place / f"{self.name}.txt").read_text()

    def watch(self) -> None:
        """Note the CPU seconds of the newest head, before it ends."""
        with suppress(psutil.Error):
            times = self.heads[-1].cpu_times()
            self.cpu = max(self.cpu, times.user + times.system)


@pytest.fixture
def accounts() -> Iterator[None]:
    """The two accounts and their group, which are removed at the end."""

    def do(*words: str) -> None:
        subprocess.run(words, check=False, capture_output=True)

    do("groupadd", GROUP)
    for name in PEOPLE:
        do("useradd", "--no-create-home", "--groups", GROUP, name)
    yield
    for name in PEOPLE:
        do("pkill", "-9", "-u", name)
        do("userdel", name)
    do("groupdel", GROUP)


@pytest.fixture
def cluster() -> Iterator[slurm_cluster.Slurm]:
    with slurm_cluster.running() as found:
        yield found


@pytest.fixture
def people(accounts: None, cluster: slurm_cluster.Slurm) -> Iterator[list[Person]]:
    place = Path(tempfile.mkdtemp(prefix="cloze-people-"))
    place.chmod(0o755)
    (place / "runs").mkdir()
    os.chown(place / "runs", 0, grp.getgrnam(GROUP).gr_gid)
    (place / "runs").chmod(0o2770)
    yield [_person(name, place, cluster) for name in PEOPLE]
    shutil.rmtree(place, ignore_errors=True)


def _person(name: str, place: Path, cluster: slurm_cluster.Slurm) -> Person:
    account, home = pwd.getpwnam(name), place / name
    (home / ".config" / "cloze").mkdir(parents=True)
    preset = yaml.safe_load((REPOSITORY / "flows" / "presets" / "sample.yaml").read_text())
    preset["name"] = f"{name}/first"
    preset["dataset"]["seed"] = preset["pretrain"]["seed"] = 1 + list(PEOPLE).index(name)
    preset["run"] |= {"launcher": "slurm", "workers": 1, "processes": 1, "zero": 0}
    (home / "first.yaml").write_text(yaml.safe_dump(preset))
    (home / "samples").symlink_to(REPOSITORY / "samples")
    for path in (home, *home.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid, follow_symlinks=False)
    home.chmod(0o700)
    kept = ("SLURM_CONF", "PATH", "LANG")
    environment = {key: os.environ[key] for key in kept if key in os.environ}
    environment |= {"SLURM_CONF": str(cluster.config), "HOME": str(home), "USER": name}
    environment |= {
        "PYTHONPATH": import_path(REPOSITORY), "CLOZE_RUNS_DIR": str(place / "runs"),
        "CLOZE_PROJECT": name, "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    return Person(name, place, environment, home / "first.yaml")


def _running(cluster: slurm_cluster.Slurm) -> list[tuple[str, str, str, str]]:
    """Jobs that have run for some seconds: id, stage, account, node."""
    found = []
    for row in cluster.run("squeue", "-h", "-t", "R", "-o", "%i|%j|%u|%N|%M").split():
        job, name, user, node, age = row.split("|")
        minutes, seconds = map(int, age.split(":")[-2:])
        if 60 * minutes + seconds >= 4:
            found.append((job, name.split("-")[1], user, node))
    return found


def _harm(cluster: slurm_cluster.Slurm, fault: str, job: str, node: str, person: Person) -> None:
    if fault == "node":
        cluster.lose(node)
        cluster.until(lambda: cluster.node_state(node).startswith("down"), 60)
        cluster.start_node(node)
    elif fault == "head":
        person.heads[-1].kill()
    elif fault == "scancel":
        cluster.run("scancel", job)
    else:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("SLURM_JOB_ID") == job and "python" in process.name():
                    process.kill()


def _to_the_end(cluster: slurm_cluster.Slurm, people: list[Person], faults: Iterator[str]) -> None:
    """Run both configs; harm the first job of each stage of each person; resume what ends."""
    for person in people:
        person.start("run", str(person.config))
    harmed: set[tuple[str, str]] = set()
    waiting, deadline = {person.name: person for person in people}, time.monotonic() + PATIENCE
    while waiting:
        assert time.monotonic() < deadline, [person.told()[-3000:] for person in people]
        time.sleep(0.5)
        for person in list(waiting.values()):
            person.watch()
            if (code := person.heads[-1].poll()) == 0:
                del waiting[person.name]
            elif code is not None:
                assert code in (-9, 1), person.told()[-3000:]
                person.start("resume", f"{person.name}/first")
        for job, stage, user, node in _running(cluster):
            if (user, stage) not in harmed and user in waiting and (fault := next(faults, None)):
                harmed.add((user, stage))
                _harm(cluster, fault, job, node, waiting[user])
                break


def _hashes(person: Person) -> dict[str, Any]:
    """Of the files of all artifacts but the page, without those that hold times: path and hash."""
    found: dict[str, Any] = {}
    for stage in STAGES[:-1]:
        manifest = json.loads((person.run / stage / "manifest.json").read_text())
        files = manifest["files"]
        found |= {
            f"{stage}/{entry['path']}": entry["sha256"]
            for entry in files
            if not entry["path"].endswith(TIMED)
        }
    return found


def test_two_people_lose_nothing(cluster: slurm_cluster.Slurm, people: list[Person]) -> None:
    _to_the_end(cluster, people, itertools.cycle(FAULTS))
    harmed = [_hashes(person) for person in people]
    assert all(person.cpu < 60 for person in people), [person.cpu for person in people]
    for person in people:
        shutil.rmtree(person.run)
    _to_the_end(cluster, people, iter(()))
    assert [_hashes(person) for person in people] == harmed
    ann, ben = people
    told = ann.call("nightly", "--set", "run.launcher=slurm", str(ann.config))
    assert "champion" in told
    assert f"{ben.name}/first" in ann.call("status")
    mine = ann.call("status", "--mine")
    assert f"{ann.name}/first" in mine
    assert ben.name not in mine
