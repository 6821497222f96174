"""The local engine: what a killed worker, an exhausted memory, a full disk and a fault of our own
look like, and what is kept.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloze.core.errors import ClozeError, DataError, UsageError
from cloze.core.stages.stage import BuildContext
from cloze.pipeline.runners.base import open_backend
from cloze.pipeline.runners.fan_out import fan_out
from tests import warm
from tests.conftest import REPOSITORY
from tests.pipeline.runners.units import build, long_build, misbehave, numbered, within, work
from tests.slices import few


def kill_worker_of(directory: Path, unit: int) -> threading.Thread:
    """Kills the process that works on the unit, as soon as one does."""

    def kill() -> None:
        note = directory / f"began-{unit}"
        while not note.exists() or not note.read_text():
            time.sleep(0.01)
        os.kill(int(note.read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


@pytest.mark.usefixtures("warm")
def test_a_killed_worker_is_named_and_the_next_run_goes_on(tmp_path: Path) -> None:
    slow = numbered(tmp_path / "notes", 6, seconds=0.3)
    others = set(
        psutil.Process().children(recursive=True)
    )  # such as a cluster that other tests share
    begun = build(tmp_path / "out", workers=2)
    with begun.cleanup:
        kill_worker_of(tmp_path / "notes", 3)
        with pytest.raises(
            ClozeError,
            match=r"worker \d \(process \d+\) was killed \(SIGKILL.*\) while it did unit-3",
        ):
            fan_out(begun, "work", slow, work, unit_name="units")
        kept = [path.stem for path in (tmp_path / "out" / "_scratch" / "work").glob("unit-*.json")]
        assert kept
    again = build(tmp_path / "out", workers=2)
    with again.cleanup:
        made = fan_out(again, "work", slow, work, unit_name="units")
    assert [unit["number"] for unit in made] == list(range(6))
    for name in kept:  # done once
        assert (tmp_path / "notes" / f"done-{name.removeprefix('unit-')}").read_text() == "x"
    ours = set(psutil.Process().children(recursive=True)) - others
    assert not psutil.wait_procs(ours, timeout=10)[1]


@pytest.mark.usefixtures("warm")
def test_the_host_s_own_name_need_not_resolve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container without an entry of its own in /etc/hosts."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: "no-such-host.invalid")
    started = build(tmp_path / "out", workers=2)
    with started.cleanup:
        made = fan_out(started, "work", numbered(tmp_path / "notes", 4), work, unit_name="units")
    assert len(made) == 4


def test_a_worker_that_hangs_up_leaves_no_traceback(tmp_path: Path) -> None:
    """Beam's threads in the stage's process hear of it; its end is reported in one sentence."""
    program = f"""
from pathlib import Path
from tests.pipeline.runners.test_local import kill_worker_of
from tests.pipeline.runners.units import build, numbered, work
from tests.slices import few
from cloze.pipeline.runners.fan_out import fan_out
begun = build(Path({str(tmp_path / "out")!r}), workers=2)
with begun.cleanup:
    kill_worker_of(Path({str(tmp_path / "notes")!r}), 3)
    try:
        fan_out(begun, "work", numbered(Path({str(tmp_path / "notes")!r}), 6, seconds=0.3), work, unit_name="units")
    except Exception as error:
        print(error)
"""
    done = subprocess.run(
        [warm.python(), "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "was killed (SIGKILL" in done.stdout
    assert "Traceback" not in done.stderr, done.stderr[-2000:]


@pytest.mark.parametrize("number", few([signal.SIGINT, signal.SIGKILL], signal.SIGINT))
def test_a_signal_to_the_whole_group_leaves_nothing(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, and a scheduler's kill: no worker lives on or is said to have died, and no file is
    left.
    """
    (tmp_path / "tmp").mkdir()
    stage = subprocess.Popen(
        [sys.executable, "-c", long_build(tmp_path)],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # a shell's background jobs ignore it, and who they start
    )
    try:
        assert within(60, lambda: len(list((tmp_path / "notes").glob("began-*"))) >= 2)
        descendants = psutil.Process(stage.pid).children(recursive=True)
        assert len(descendants) == 3  # the fork server and its workers
        os.killpg(stage.pid, number)
        _, output = stage.communicate(timeout=20)
        assert stage.returncode == -number
        assert within(
            5,
            lambda: (
                not [
                    child
                    for child in descendants
                    if child.is_running() and child.status() != "zombie"
                ]
            ),
        )
    finally:
        stage.kill()
    assert not re.search(
        r"was killed|worker \S+ (ERROR|failed)|KeyboardInterrupt.*KeyboardInterrupt",
        output,
        re.DOTALL,
    )
    left = [path.name for path in (tmp_path / "tmp").iterdir()]
    assert [name for name in left if number == signal.SIGINT or not name.startswith("beam-")] == []


@pytest.mark.usefixtures("warm")
def test_workers_serve_all_steps_of_a_build(tmp_path: Path) -> None:
    begun = build(tmp_path / "out", workers=2)
    with begun.cleanup:
        for step in ("one", "two"):
            made = fan_out(
                begun, step, numbered(tmp_path / step, 6, seconds=0.05), work, unit_name="units"
            )
            assert len({unit["process"] for unit in made} - {os.getpid()}) == 2
        assert open_backend(begun) is open_backend(begun)


def test_a_single_worker_is_this_process_and_needs_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does the only unit of a step, however many workers there are."""
    for module in [name for name in sys.modules if name.startswith("apache_beam")]:
        monkeypatch.setitem(sys.modules, module, None)  # an import fails
    for workers, units in ((1, 3), (2, 1)):
        begun = build(tmp_path / f"out-{workers}", workers=workers)
        with begun.cleanup:
            made = fan_out(
                begun, "work", numbered(tmp_path / f"{workers}", units), work, unit_name="units"
            )
        assert [unit["process"] for unit in made] == [os.getpid()] * units


@pytest.fixture(scope="module", params=[1, 2])
def going_on(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BuildContext]:
    """A build by one process, or two workers, that survives what its units meet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", warm.python())
        begun = build(tmp_path_factory.mktemp("build") / "out", workers=request.param)
        with begun.cleanup:
            yield begun


@pytest.mark.parametrize(
    ("fault", "kind", "sentence"),
    [
        (
            "memory",
            ClozeError,
            r"unit-1 did not fit in memory \(Unable to allocate 9.31 TiB\); use fewer --workers.* "
            r"run again to continue",
        ),
        (
            "full",
            ClozeError,
            r"/data/part-1.arrow: No space left on device; free some space; run again to continue",
        ),
        (
            "closed",
            ClozeError,
            r"/data/part-1.arrow: Read-only file system; mount it writable again, or choose another path",
        ),
        ("bug", ClozeError, r"unit-1 failed: KeyError: .*over two lines"),
        ("data", DataError, r"/data/in.txt is no text; leave it out$"),
    ],
)
def test_what_went_wrong_is_one_sentence(
    going_on: BuildContext, tmp_path: Path, fault: str, kind: type[ClozeError], sentence: str
) -> None:
    with pytest.raises(ClozeError, match=sentence) as caught:
        fan_out(
            going_on,
            fault,
            numbered(tmp_path / "notes", 3, fault=fault),
            misbehave,
            unit_name="units",
        )
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


def test_a_runner_s_own_validation_is_one_sentence(tmp_path: Path) -> None:
    """Dataflow's runs without its extra and without a network."""
    given: dict[str, Any] = {
        "runner": "DataflowRunner",
        "beam_options": [
            "--project=My_Project",
            "--region=europe-west4",
            "--temp_location=gs://b/t",
        ],
    }
    with pytest.raises(
        UsageError, match=r"^beam_options: .*Invalid Project ID \(My_Project\)[^\n]*$"
    ):
        fan_out(
            build(tmp_path / "out", **given),
            "work",
            numbered(tmp_path / "notes", 1),
            work,
            unit_name="units",
        )
    with pytest.raises(
        UsageError,
        match=(
            r"beam_options \(--template_location\) makes a template of a single pipeline, but a stage "
            r"runs several"
        ),
    ):
        open_backend(
            build(tmp_path, runner="DataflowRunner", beam_options=["--template_location=gs://b/t"])
        )


def test_a_runner_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"runner \(FlinkyRunner\) is unknown; use local, flink"):
        open_backend(build(tmp_path, runner="FlinkyRunner"))
    with pytest.raises(
        UsageError, match=r"memory://art is not visible to the workers of runner flink"
    ):
        fan_out(
            replace(build(tmp_path, runner="flink"), path="memory://art"),
            "work",
            numbered(tmp_path, 1),
            work,
            unit_name="units",
        )
