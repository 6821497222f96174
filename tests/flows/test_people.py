"""People who share a runs directory: whose a run is, names of two parts, and what one may do with
the other's runs. Two accounts are two processes of other user ids.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core import accounts, storage
from cloze.core.artifacts.lock import locked
from cloze.core.errors import UsageError
from cloze.core.stages.worker import Job
from cloze.flows import cli
from cloze.flows.graph.command import run_directories
from cloze.flows.graph.config import RunConfig
from cloze.flows.run import cancellation, status_file, status_writer, targets
from tests.flows import test_shared_places
from tests.flows.test_shared_places import GROUP, OTHER, as_account, as_root

shared, tmp_path = test_shared_places.shared, test_shared_places.tmp_path
ALICE, BOB = OTHER, OTHER + 1
USER = ("LOGNAME", "USER", "LNAME", "USERNAME")


@pytest.fixture(autouse=True)
def _no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in USER:  # else accounts without a name have the tester's
        monkeypatch.delenv(name, raising=False)


def run(config: str, name: str, *words: str) -> Callable[[], int]:
    return lambda: cli.main(["run", config, "--no-prefect", "--set", f"name={name}", *words])


def told(capfd: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capfd.readouterr().out.strip().splitlines()[-1])
    return found


@as_root
@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_everybody_sees_all_runs_and_whose_they_are(
    shared: Path, toy_config: str, umask: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert as_account(ALICE, umask, run(toy_config, "alice/toy")) == 0
    assert as_account(BOB, umask, run(toy_config, "mine")) == 0
    capfd.readouterr()
    assert as_account(BOB, umask, lambda: cli.main(["status", "--json"])) == 0
    rows = {row["run"]: (row["owner"], row["state"]) for row in told(capfd)["runs"]}
    assert rows == {
        "alice/toy": (str(ALICE), "finished"), "mine": (str(BOB), "finished"),
    }  # fmt: skip
    assert as_account(BOB, umask, lambda: cli.main(["status", "--mine"])) == 0
    printed = capfd.readouterr().out
    assert "alice/toy" not in printed
    assert "Not shown: 1 run of others." in printed
    assert as_account(BOB, umask, lambda: cli.main(["status", "--mine", "--json"])) == 0
    found = told(capfd)
    assert ([row["run"] for row in found["runs"]], found["others"]) == (["mine"], 1)
    assert as_account(BOB, umask, lambda: cli.main(["status", "alice/toy"])) == 0
    assert f"owner {ALICE}" in capfd.readouterr().out
    assert as_account(BOB, umask, run(toy_config, "alice/toy", "--set", "letters.size=6")) == 0
    capfd.readouterr()
    assert as_account(ALICE, umask, lambda: cli.main(["status", "alice/toy", "--json"])) == 0
    (row,) = told(capfd)["runs"]
    assert (row["owner"], row["account"]) == (str(ALICE), str(BOB))
    made = [path for path in shared.rglob("*") if not path.is_symlink()]
    assert {path.stat().st_gid for path in made} == {GROUP}
    assert not [path for path in made if path.stat().st_mode & umask & stat.S_IRWXO]


@as_root
def test_a_colleagues_failed_run_keeps_what_it_continues_with(
    shared: Path, toy_config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fault").mkdir()  # no file, so it cannot be unlinked: the stage fails
    fault = ["--set", f"count.fault={tmp_path / 'fault'}"]
    assert as_account(ALICE, 0o077, run(toy_config, "alice/toy", *fault)) != 0
    assert as_account(BOB, 0o077, lambda: cli.main(["clean", "--delete"])) == 0
    assert "0 artifacts removed" in capfd.readouterr().out
    assert as_account(BOB, 0o077, lambda: cli.main(["clean", "alice/toy", "--delete"])) == 0
    assert not (shared / "alice").exists()


@as_root
def test_records_that_only_their_owner_reads_are_said_and_kept(
    shared: Path, toy_config: str, capfd: pytest.CaptureFixture[str]
) -> None:
    shared.chmod(0o777)  # everybody may write, and no group shares it
    assert as_account(ALICE, 0o022, run(toy_config, "toy")) == 0
    capfd.readouterr()
    assert as_account(BOB, 0o022, lambda: cli.main(["status", "toy"])) == 0
    printed = " ".join(capfd.readouterr().out.split())
    assert "unreadable" in printed
    assert f"is for {ALICE} alone to read; share its directories (chmod g+rwxs)" in printed
    assert as_account(BOB, 0o022, lambda: cli.main(["clean", "toy"])) == 0
    printed = capfd.readouterr().out
    assert "repair: the run's record is not readable" in " ".join(printed.split())
    assert "0 of 2 artifacts are not needed" in printed


def running(directory: Path, uid: int, ends: list[int]) -> threading.Thread:
    """A run of an account, whose process ends its record when it is asked to; wait for its start."""

    def work() -> int:
        asked: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
        accounts.share(directory.parent.parent)
        with locked(str(directory)):
            record = status_writer.RunStatusFile(directory, directory.name, [], {}, {})
            for _ in range(600):
                if asked:
                    break
                time.sleep(0.05)
            record.end("cancelled", "stopped")
        return len(asked)

    thread = threading.Thread(target=lambda: ends.append(as_account(uid, 0o077, work)))
    thread.start()
    while not status_file.newest(directory):
        time.sleep(0.02)
    return thread


@as_root
@pytest.mark.parametrize("canceller", ["the other", "its owner, after a change of the host's name"])
def test_a_run_is_cancelled_by_itself_where_no_signal_may_reach_it(
    shared: Path, canceller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_writer, "LOOK_SECONDS", 0.05)
    directory, ends = shared / "alice" / "toy", list[int]()
    (shared / "alice").mkdir(mode=0o775)
    os.chown(shared / "alice", ALICE, GROUP)
    (shared / "alice").chmod(0o2775)
    thread = running(directory, ALICE, ends)
    uid = BOB if canceller == "the other" else ALICE

    def cancel() -> int:
        accounts.share(shared)
        if canceller != "the other":
            monkeypatch.setattr(socket, "gethostname", lambda: "renamed")
        found = cancellation.cancel(shared, "alice/toy")
        expected = f"cancelled by {BOB}: stopped" if canceller == "the other" else "stopped"
        return 0 if (found["state"], found["error"]) == ("cancelled", expected) else 7

    assert as_account(uid, 0o077, cancel) == 0
    thread.join()
    assert ends == [1]  # it got its signal once
    assert not list(directory.glob("_status/*.cancel"))


words = st.from_regex(r"[^\W_][\w.-]{0,8}", fullmatch=True).filter(
    lambda word: len(os.fsencode(word)) < 40 and word not in ("runs",)
)


@given(names=st.lists(st.tuples(st.none() | words, words), min_size=1, max_size=5))
def test_names_of_one_and_two_parts_lead_to_their_runs(
    names: list[tuple[str | None, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    runs = tmp_path_factory.mktemp("runs", numbered=True)
    made = set[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLOZE_RUNS_DIR", str(runs))
        for user, word in names:
            name = word if user is None else f"{user}/{word}"
            try:
                targets.check_name(runs, name)
            except UsageError:
                folder = {one.partition("/")[0] for one in made}
                assert word in folder or user in made
                continue
            (runs / name / status_file.DIRECTORY).mkdir(parents=True, exist_ok=True)
            (runs / name / "pretrain-0123456789ab").mkdir(exist_ok=True)
            made.add(name)
        assert {status_file.name_of(runs, each) for each in run_directories(runs)} == made
        assert set(targets.run_names(runs)) == made
        for name in made:
            for text in (name, str(runs / name)):
                found = targets.resolve(text)
                assert (found.run, found.node, found.nodes) == (name, "", ["pretrain"])
            for text in (f"{name}/pretrain", str(runs / name / "pretrain-0123456789ab")):
                found = targets.resolve(text)
                assert (found.run, found.node) == (name, "pretrain")


@pytest.mark.parametrize(
    ("name", "is_name"),
    [("demo", True), ("alice/demo", True), ("Ünal/größe-2.1", True), ("a/" + "x" * 200, True),
     ("alice/", False), ("/demo", False), ("a/b/c", False), ("../demo", False), ("a/../b", False),
     ("a//b", False), (".x/demo", False), ("a/.b", False), ("a/_status", False), ("~/demo", False),
     ("a/" + "x" * 201, False), ("ü" * 101 + "/a", False)],
)  # fmt: skip
def test_a_name_has_one_or_two_parts(name: str, is_name: bool) -> None:
    values = {"name": name, "corpus": {"sources": [{"kind": "text", "path": "/"}]}}
    if is_name:
        assert RunConfig(values, "x").name == name
    else:
        with pytest.raises(UsageError, match=r"name .*USER/NAME"):
            RunConfig(values, "x")


def test_a_run_below_another_run_is_refused(
    toy_config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(toy_config, "alice")() == 0
    assert run(toy_config, "bob/toy")() == 0
    assert run(toy_config, "alice/toy")() == 2
    assert "alice is the name of a run" in capsys.readouterr().err
    assert run(toy_config, "bob")() == 2
    assert "bob is the name of a folder of runs" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "alice" / "toy").exists()


@given(first=words, second=words, third=words, is_below=st.booleans(), has_record=st.booleans())
def test_a_start_without_a_record_has_its_name_as_a_run_has(
    first: str, second: str, third: str, is_below: bool, has_record: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """Names of which one is a folder of the other exclude each other; others never do."""
    runs = tmp_path_factory.mktemp("begun", numbered=True)
    begun = f"{first}/{second}" if is_below else first
    with locked(str(runs / begun)) if not has_record else nullcontext():
        if has_record:
            (runs / begun / status_file.DIRECTORY).mkdir(parents=True)
        for name in {first, f"{first}/{second}", f"{first}/{third}", third, f"{third}/{second}"}:
            excludes = name != begun and (f"{name}/").startswith(f"{begun}/")
            excludes |= name != begun and f"{begun}/".startswith(f"{name}/")
            if excludes:
                with pytest.raises(UsageError, match=f"a run cannot be named .*: {first} is the"):
                    targets.check_name(runs, name)
            else:
                targets.check_name(runs, name)


def test_of_two_names_that_exclude_each_other_one_start_is_first(
    toy_config: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for number in range(4):
        names, (read_end, write_end) = (f"a{number}", f"a{number}/b"), os.pipe()

        def begin(name: str, gate: int = read_end) -> int:
            os.read(gate, 1)
            return run(toy_config, name)()

        children = []
        for name in names:
            if (child := os.fork()) == 0:
                os._exit(begin(name))
            children.append(child)
        os.write(write_end, b"go")
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        assert sorted(codes) == [0, 2]
        won = names[codes.index(0)]
        assert won in targets.run_names(tmp_path / "runs")
        assert (
            f"cloze: a run cannot be named {names[codes.index(2)]}: a{number} is the name of a"
            in (capfd.readouterr().err)
        )


def test_a_record_from_before_runs_had_owners_is_that_of_its_directorys_account(
    toy_config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("old", "damaged"):
        assert run(toy_config, name)() == 0
    (file,) = (tmp_path / "runs" / "old" / "_status").glob("*.json")
    record = json.loads(file.read_text())
    del record["owner"], record["account"]
    file.write_text(json.dumps(record))
    (file,) = (tmp_path / "runs" / "damaged" / "_status").glob("*.json")
    file.write_bytes(b"\xff")
    capsys.readouterr()
    assert cli.main(["status", "--mine"]) == 0
    printed = capsys.readouterr().out
    assert "old" in printed
    assert "damaged" in printed
    assert "Not shown" not in printed


def test_a_run_of_two_parts_is_rerun_resumed_and_cleaned(
    toy_config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    for size in (4, 5):
        assert run(toy_config, "alice/toy", "--set", f"letters.size={size}")() == 0
    assert (runs / "alice" / "toy" / "letters").is_symlink()
    capsys.readouterr()
    assert run(toy_config, "alice/toy", "--set", "letters.size=5")() == 0
    assert "Nothing to do" in capsys.readouterr().err
    assert cli.main(["resume", "alice/toy", "--no-prefect"]) == 0
    assert cli.main(["clean", "--delete"]) == 0
    assert "2 artifacts removed" in capsys.readouterr().out
    assert cli.main(["clean", "alice/toy", "--delete"]) == 0
    assert not (runs / "alice").exists()
    assert runs.exists()


def test_an_account_is_that_of_the_process_and_not_of_a_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = accounts.user_name(os.getuid())
    for name in USER:
        monkeypatch.setenv(name, "somebody-else")
    assert accounts.user_name() == own
    assert accounts.user_name(4_000_000) == "4000000"


@given(
    mode=st.sampled_from([0o700, 0o755, 0o770, 0o775, 0o777, 0o1777, 0o2770, 0o2775, 0o2755]),
    umask=st.sampled_from([0o000, 0o002, 0o022, 0o027, 0o077]),
)
def test_a_record_is_the_groups_only_where_its_directory_is(
    mode: int, umask: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("records", numbered=True)
    directory.chmod(mode)
    before = os.umask(umask)
    try:
        job = Job(stage="pretrain", reference="", config={}, path="", inputs={}, execution={},
                  fingerprint="", token="0123456789abcdef")  # fmt: skip
        for name, content in (("job", job), ("secret", replace(job, config={"password": "hush"}))):
            content.write(str(directory / name))
        storage.write_bytes(str(directory / "own"), b"", opener=accounts.open_private)
        storage.write_bytes(str(directory / "record"), b"", opener=accounts.open_record)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    finally:
        os.umask(before)
    groups = 0o660 if mode in (0o2770, 0o2775) else 0o600
    assert modes == {"job": groups, "record": groups, "secret": 0o600, "own": 0o600}
