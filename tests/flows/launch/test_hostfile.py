"""Hostfiles as DeepSpeed and MPI have them, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloze.core.errors import UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.launch import ssh
from cloze.flows.launch.ssh import HostEntry


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "hosts").write_text(text)
    return str(tmp_path / "hosts")


def test_hosts_slots_and_comments(tmp_path: Path) -> None:
    text = "# ours\nworker-1 slots=4\n\nworker-2.site slots = 2 max_slots=8  # old\n10.0.0.3\n"
    assert ssh.read(written(tmp_path, text)) == [
        HostEntry("worker-1", 4),
        HostEntry("worker-2.site", 2),
        HostEntry("10.0.0.3", None),
    ]


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", r"names no host"),
        ("# none\n", r"names no host"),
        ("a slots=0\n", r"line 1 is 'a slots=0'; write HOST"),
        ("a b\n", r"line 1 is 'a b'"),
        ("-oProxyCommand=x\n", r"line 1 is '-oProxyCommand=x'"),
        ("a\nb\na slots=2\n", r"line 3 names a again"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, reported: str) -> None:
    with pytest.raises(UsageError, match=reported):
        ssh.read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ({}, r"launcher \(ssh\) needs a hostfile"),
        ({"hostfile": "/none"}, r"hostfile \(/none\) cannot be read \(No such file"),
        ({"nodes": 3}, r"nodes \(3\) are more than the 2 hosts"),
        ({"processes": 5}, r"processes \(5\) are more than host a has slots \(4\)"),
        ({"min_nodes": 3}, r"min_nodes \(3\) must be at most the number of hosts \(2\)"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_starts(
    tmp_path: Path, given: dict[str, object], reported: str
) -> None:
    usual = {"hostfile": written(tmp_path, "a slots=4\nb slots=2\n")} if given else {}
    with pytest.raises(UsageError, match=reported):
        ssh.LAUNCHER.check(Execution.model_validate({"launcher": "ssh", **usual, **given}))


def test_secrets_and_settings_reach_the_hosts_but_what_is_this_ones_own() -> None:
    there = {
        "AWS_SECRET_ACCESS_KEY": "s",
        "NCCL_DEBUG": "INFO",
        "HOME": "/root",
        "CLOZE_EVENTS_FD": "5",
        "CLOZE_RUNS_DIR": "r",
    }
    assert ssh.forwarded_environment(there) == {
        "AWS_SECRET_ACCESS_KEY": "s",
        "NCCL_DEBUG": "INFO",
        "CLOZE_RUNS_DIR": "r",
    }


@pytest.mark.parametrize(
    ("name", "options", "address"),
    [
        ("train@worker-1", (), "worker-1"),
        ("worker-1.site", (), "worker-1.site"),
        ("big", ("HostName=10.0.0.9",), "10.0.0.9"),  # as an alias in ~/.ssh/config says it
    ],
)
def test_other_hosts_reach_one_by_its_address_not_by_what_ssh_takes(
    name: str, options: tuple[str, ...], address: str
) -> None:
    assert ssh.address(name, Execution(launcher="ssh", ssh_options=options)) == address
