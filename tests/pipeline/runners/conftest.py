"""What the engines' tests need: Beam's Flink runner, a cluster on this machine, an object store on
loopback, some text.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cloze.core.processes import free_ports
from cloze.pipeline.runners.flink import CLASSPATH, JAVA_OPTIONS
from tests.conftest import REPOSITORY
from tests.pipeline.runners.jobs import run

ENGINES = REPOSITORY.parent / "shared" / "engines"
BRIEF = "-XX:TieredStopAtLevel=1"  # Java's best compiler does not pay in programs of seconds
CLUSTER = REPOSITORY / "infra" / "flink" / "cluster.sh"


@pytest.fixture(scope="session")
def flink_classpath() -> str:
    """Beam's Flink runner: what the environment names, else what lies next to the checkout."""
    if shutil.which("java") is None:
        pytest.skip("Java is not here: this test runs Flink")
    jars = sorted(ENGINES.glob("beam-runner-flink-*"))
    found = os.environ.get(CLASSPATH) or (str(jars[-1]) if jars else None)
    if found is None:
        pytest.skip(
            f"Beam's Flink runner is not here: set {CLASSPATH} to its jar, or to a directory of "
            f"jars"
        )
    return found


@pytest.fixture
def flink(flink_classpath: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which `--runner flink` works."""
    monkeypatch.setenv(CLASSPATH, flink_classpath)
    monkeypatch.setenv(JAVA_OPTIONS, f"{BRIEF} -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def flink_jar(flink_classpath: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same as one jar."""
    if not Path(flink_classpath).is_dir():
        return flink_classpath
    return merged(Path(flink_classpath), tmp_path_factory.mktemp("jar") / "job-server.jar")


def merged(jars: Path, jar: Path) -> str:
    """Make one jar of a directory's: Flink's client sends every jar with every job, and one goes in
    a third of the time of 161.
    """
    seen: set[str] = set()
    services: dict[str, list[bytes]] = {}
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as made:
        for path in sorted(jars.glob("*.jar")):
            with zipfile.ZipFile(path) as opened:
                for name in opened.namelist():
                    signed = name.startswith("META-INF/") and name.endswith(
                        (".SF", ".RSA", ".DSA", ".EC")
                    )
                    if (
                        name.endswith("/")
                        or signed
                        or name in ("META-INF/MANIFEST.MF", "module-info.class")
                    ):
                        continue
                    if name.startswith("META-INF/services/"):  # every jar's providers count
                        services.setdefault(name, []).append(opened.read(name))
                    elif (
                        name not in seen
                    ):  # of two classes of one name the first is taken, as in a class path
                        seen.add(name)
                        made.writestr(name, opened.read(name))
        for name, providers in services.items():
            made.writestr(name, b"\n".join(providers) + b"\n")
        made.writestr("META-INF/MANIFEST.MF", "Manifest-Version: 1.0\nMulti-Release: true\n\n")
    return str(jar)


@dataclass(frozen=True)
class Cluster:
    """A cluster of task managers, two or more, with a worker pool next to each."""

    directory: Path
    master: str
    pool: str
    managers: int = 2

    @property
    def options(self) -> list[str]:
        return [
            "--runner",
            "flink",
            "--flink-master",
            self.master,
            "--worker-pool",
            self.pool,
            "--workers",
            "2",
        ]

    def process(self, name: str) -> int:
        return int((self.directory / "pids" / name).read_text().split()[0])


@contextmanager
def started(directory: Path, flink_jar: str, managers: int = 2) -> Iterator[Cluster]:
    """Skips where neither PyPI's packages of Flink are (`FLINK_DIST`, `FLINK_DOWNLOADS`:
    infra/flink/cluster.sh) nor pip can fetch them.
    """
    rest, rpc, pool = free_ports(3)
    dist = Path(os.environ.get("FLINK_DIST") or Path.home() / ".cache" / "cloze" / "flink-1.19.3")
    environment = {
        **os.environ, "PYTHON": sys.executable, "FLINK_DIST": str(dist), "JVM_ARGS": BRIEF,
            "MANAGERS": str(managers),
        "REST_PORT": str(rest), "RPC_PORT": str(rpc), "POOL_PORT": str(pool),
    }  # fmt: skip
    begun = subprocess.run(
        [str(CLUSTER), "start", str(directory)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        cwd=REPOSITORY,
    )
    if "pip cannot fetch" in begun.stderr:
        pytest.skip(
            f"apache-flink is not in {dist} and cannot be fetched from PyPI: this test runs a "
            f"Flink cluster"
        )
    assert begun.returncode == 0, begun.stderr
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(CLASSPATH, flink_jar)
            patch.setenv(JAVA_OPTIONS, f"{BRIEF} -XX:+UseSerialGC")
            yield Cluster(directory, f"localhost:{rest}", f"worker-pool:{pool}", managers)
    finally:
        subprocess.run(
            [str(CLUSTER), "stop", str(directory)], env=environment, check=True, timeout=60
        )


@pytest.fixture(scope="module")
def cluster(flink_jar: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two task managers."""
    with started(tmp_path_factory.mktemp("cluster"), flink_jar) as found:
        yield found


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Books of invented prose: enough work that a worker can be killed in the middle of it."""
    return write_books(tmp_path_factory.mktemp("library"), 300)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many books, of which each is soon read: for engines that nobody disturbs."""
    return write_books(tmp_path_factory.mktemp("shelf"), 30)


def write_books(directory: Path, paragraphs: int) -> Path:
    """Eight, each of so many paragraphs."""
    draw = random.Random(4)
    syllables = "ba co de fi gu ha li mo ne pu ra si to ve wu za".split()
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(3000)]
    for book in range(8):
        written = []
        for _ in range(paragraphs):
            sentences = [
                " ".join(draw.choices(words, k=draw.randint(6, 18))).capitalize() + "."
                for _ in range(6)
            ]
            written.append(" ".join(sentences))
        (directory / f"book-{book}.txt").write_text("\n\n".join(written) + "\n")
    return directory


@pytest.fixture(scope="session")
def local_run(
    shelf: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """The bytes that every engine has to make of the shelf: those of one local worker."""
    return run(str(tmp_path_factory.mktemp("local")), [], str(shelf), samples)
