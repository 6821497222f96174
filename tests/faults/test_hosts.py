"""Three hosts, as network namespaces with an ssh server each: what they train is what one process
trains, and what happens to them.

Those marked `soak` take minutes; the others are a plain launch over ssh, and what is refused before
anything starts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.core.artifacts import artifact
from cloze.model.checkpoint import load
from tests import faulty_host
from tests.checkout import copy_packages
from tests.conftest import REPOSITORY
from tests.hosts import Hosts, hosts, last_json, missing
from tests.model.datasets import write_dataset

NAMES = ("a", "b", "c")
reason = missing()
pytestmark = [pytest.mark.skipif(reason is not None, reason=str(reason)), pytest.mark.timeout(1200)]
# dropout is drawn a micro-batch, so equal ones make equal numbers on any number of ranks: 24 rows
# are 6 of them, for 1, 2 and 3 ranks
TRAINING = (
    "--model",
    "bert-tiny",
    "--global-batch",
    "24",
    "--micro-batch",
    "4",
    "--precision",
    "fp32",
    "--device",
    "cpu",
)
MORE = (
    "--threads",
    "1",
    "--set",
    "warmup_steps=1",
    "--set",
    "heldout_rows=8",
    "--grace-seconds",
    "60",
)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> faulty_host.FaultyHost | None:
    """What host b has; None: there is no compiler."""
    return None if faulty_host.missing() else faulty_host.FaultyHost(tmp_path_factory.mktemp("b"))


@pytest.fixture(scope="module")
def three(
    tmp_path_factory: pytest.TempPathFactory, faulty: faulty_host.FaultyHost | None
) -> Iterator[Hosts]:
    environments = {} if faulty is None else {"b": faulty.environment}
    with hosts(tmp_path_factory.mktemp("net"), *NAMES, environments=environments) as found:
        yield found


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "dataset")


def pretrain(dataset: Path, steps: int, out: Path, *more: Any) -> list[Any]:
    return [
        "pretrain",
        "--dataset",
        dataset,
        *TRAINING,
        *MORE,
        "--steps",
        steps,
        "--out",
        out,
        *more,
    ]


@pytest.fixture(scope="module")
def undisturbed(
    three: Hosts, dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    """Trainings of one process, by their number of steps."""
    made: dict[int, Path] = {}

    def training(steps: int) -> Path:
        if steps not in made:
            made[steps] = tmp_path_factory.mktemp("one") / "out"
            code, told = three.cloze(*pretrain(dataset, steps, made[steps]))
            assert code == 0, told
        return made[steps]

    return training


def assert_equal(one: Path, other: Path, tolerance: float = 1e-5) -> None:
    manifests = [artifact.read_manifest(str(path)) for path in (one, other)]
    assert manifests[0].fingerprint == manifests[1].fingerprint
    states = [load(str(path)).state for path in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert value.allclose(states[1][name], rtol=0, atol=tolerance), name
    losses = [manifest.summary["loss"] for manifest in manifests]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def nobody_left(three: Hosts) -> None:
    deadline = time.monotonic() + 60
    while any(three.ranks(name) for name in NAMES):
        assert time.monotonic() < deadline, {name: three.ranks(name) for name in NAMES}
        time.sleep(0.2)


def until(
    true: Callable[[], Any], process: subprocess.Popen[str] | None = None, seconds: float = 400
) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.2)


def saved(out: Path, step: int) -> bool:
    return (out / "checkpoints" / f"step-{step:08d}" / "checkpoint.json").exists()


def test_three_hosts_train_as_one_process(
    three: Hosts, dataset: Path, undisturbed: Callable[[int], Path], tmp_path: Path
) -> None:
    hostfile = three.hostfile(
        "root@a", "root@b slots=1", "c"
    )  # rank 0's store is on the first one, whose name ssh alone knows so
    process = three.start(*pretrain(dataset, 4, tmp_path / "three", *three.by("ssh", hostfile)))
    output, told = process.communicate(timeout=600)
    assert process.returncode == 0, told
    assert last_json(output)["world_size"] == 3
    nobody_left(three)
    assert_equal(undisturbed(4), tmp_path / "three")


def test_a_host_that_does_not_answer_is_named(three: Hosts, dataset: Path, tmp_path: Path) -> None:
    three.link("c", "down")
    try:
        code, told = three.cloze(*pretrain(dataset, 4, tmp_path / "out", *three.by("ssh")))
    finally:
        three.link("c", "up")
    assert code == 2
    assert "1 of 3 hosts in" in told and "cannot be reached by ssh: c (" in told  # noqa: PT018
    nobody_left(three)


@pytest.mark.parametrize("sees", [True, False], ids=["sees the copy", "does not"])
def test_a_host_with_another_program_takes_the_head_s_or_refuses(
    three: Hosts, dataset: Path, tmp_path: Path, sees: bool
) -> None:
    """Its own copy of the program lies over ours, with a line more. Where it sees the runs
    directory, it imports the copy of the head's files that is there.
    """
    (tmp_path / "copy").mkdir()
    copy_packages(tmp_path / "copy")
    with (tmp_path / "copy" / "flows" / "__init__.py").open("a") as stream:
        stream.write("# another\n")
    (runs := tmp_path / "runs").mkdir()
    three.inside(
        "b", "mount", "--bind", str(tmp_path / "copy" / "flows"), str(REPOSITORY / "flows")
    )
    if not sees:
        three.inside("b", "mount", "-t", "tmpfs", "none", str(runs))
    try:
        command = pretrain(dataset, 4, tmp_path / "out", *three.by("ssh"))
        code, told = three.cloze(*command, CLOZE_RUNS_DIR=str(runs))
    finally:
        three.inside("b", "umount", str(REPOSITORY / "flows"))
        if not sees:
            three.inside("b", "umount", str(runs))
    nobody_left(three)
    if sees:
        assert code == 0, told
    else:
        assert code == 2
        assert "host b has other source files of Cloze: hash" in " ".join(told.split())
        assert not list((tmp_path / "out" / "_logs").glob("rank*"))


def test_a_directory_that_is_not_shared_is_named(
    three: Hosts, dataset: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    three.inside("c", "mount", "-t", "tmpfs", "none", str(tmp_path / "shared"))
    try:
        code, told = three.cloze(
            *pretrain(dataset, 4, tmp_path / "shared" / "out", *three.by("ssh"))
        )
    finally:
        three.inside("c", "umount", str(tmp_path / "shared"))
    assert code == 2
    assert "host c does not see" in told
    assert "put the artifact's directory where all hosts share it" in " ".join(told.split())
    nobody_left(three)
    assert not list((tmp_path / "shared" / "out" / "_logs").glob("rank*"))


@pytest.mark.soak
@pytest.mark.parametrize("zero", [1, 3])
def test_zero_over_three_hosts_is_as_one_process(
    three: Hosts, dataset: Path, undisturbed: Callable[[int], Path], tmp_path: Path, zero: int
) -> None:
    code, told = three.cloze(
        *pretrain(dataset, 4, tmp_path / "three", *three.by("ssh"), "--zero", zero)
    )
    assert code == 0, told
    assert_equal(undisturbed(4), tmp_path / "three")
    nobody_left(three)


@pytest.mark.soak
def test_a_killed_host_is_left_out_and_the_rest_goes_on(
    three: Hosts, dataset: Path, undisturbed: Callable[[int], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = three.start(
        *pretrain(
            dataset,
            24,
            out,
            *three.by("ssh"),
            "--checkpoint-every",
            "4",
            "--min-nodes",
            "2",
            "--restarts",
            "4",
        )
    )
    until(lambda: saved(out, 4), process)
    three.kill("c")
    try:
        output, told = process.communicate(timeout=900)
    finally:
        three.link("c", "up")
        three.serve("c")
    assert process.returncode == 0, told
    assert last_json(output)["world_size"] == 2
    nobody_left(three)
    assert_equal(undisturbed(24), out)


@pytest.mark.soak
def test_a_killed_rank_is_named_and_started_again(
    three: Hosts, dataset: Path, undisturbed: Callable[[int], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = three.start(
        *pretrain(dataset, 24, out, *three.by("ssh"), "--checkpoint-every", "4", "--restarts", "2")
    )
    until(lambda: saved(out, 4), process)
    os.kill(three.ranks("b")[-1], signal.SIGKILL)
    output, told = process.communicate(timeout=900)
    assert process.returncode == 0, told
    assert "rank 1 on host b was killed (SIGKILL" in " ".join(told.split())
    assert last_json(output)["world_size"] == 3
    assert_equal(undisturbed(24), out)


@pytest.mark.soak
def test_a_link_that_is_cut_for_a_while_only_makes_them_wait(
    three: Hosts, dataset: Path, undisturbed: Callable[[int], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = three.start(*pretrain(dataset, 24, out, *three.by("ssh"), "--checkpoint-every", "4"))
    until(lambda: saved(out, 4), process)
    three.link("b", "down")
    time.sleep(20)
    three.link("b", "up")
    output, told = process.communicate(timeout=900)
    assert process.returncode == 0, told
    assert last_json(output)["world_size"] == 3
    assert_equal(undisturbed(24), out)


@pytest.mark.soak
@pytest.mark.skipif(faulty_host.missing() is not None, reason=str(faulty_host.missing()))
def test_a_clock_that_jumps_an_hour_on_one_host_changes_nothing(
    three: Hosts,
    faulty: faulty_host.FaultyHost,
    dataset: Path,
    undisturbed: Callable[[int], Path],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    process = three.start(*pretrain(dataset, 24, out, *three.by("ssh"), "--checkpoint-every", "4"))
    until(lambda: saved(out, 4), process)
    faulty.has(seconds_ahead=3600)
    try:
        _, told = process.communicate(timeout=900)
    finally:
        faulty.has()
    assert process.returncode == 0, told
    assert_equal(undisturbed(24), out)


@pytest.mark.soak
@pytest.mark.skipif(faulty_host.missing() is not None, reason=str(faulty_host.missing()))
def test_a_disk_that_is_full_on_one_host_is_named_and_gone_on_after(
    three: Hosts,
    faulty: faulty_host.FaultyHost,
    dataset: Path,
    undisturbed: Callable[[int], Path],
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    process = three.start(
        *pretrain(dataset, 24, out, *three.by("ssh"), "--checkpoint-every", "4", "--restarts", "8")
    )
    until(lambda: saved(out, 4), process)
    ranks = set(three.ranks("b"))
    faulty.has(full=True)
    try:
        until(lambda: not ranks & set(three.ranks("b")))
    finally:
        faulty.has()
    _, told = process.communicate(timeout=900)
    assert process.returncode == 0, told
    assert "No space left on device" in " ".join(told.split())
    assert_equal(undisturbed(24), out)


@pytest.mark.soak
def test_cancelled_with_a_checkpoint_and_resumed_by_one_process(
    three: Hosts, dataset: Path, undisturbed: Callable[[int], Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = three.start(*pretrain(dataset, 24, out, *three.by("ssh"), "--checkpoint-every", "4"))
    until(lambda: saved(out, 4), process)
    code, told = three.cloze("cancel", out)
    assert code == 0, told
    assert process.wait(timeout=300) == 4, process.communicate()
    process.communicate()
    nobody_left(three)
    code, told = three.cloze("resume", out, "--processes", "1")
    assert code == 0, told
    assert_equal(undisturbed(24), out)


@pytest.mark.soak
def test_a_killed_head_leaves_no_rank_on_any_host(
    three: Hosts, dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = three.start(*pretrain(dataset, 200, out, *three.by("ssh"), "--checkpoint-every", "4"))
    until(lambda: saved(out, 4), process)
    process.kill()
    process.communicate()
    nobody_left(three)
