"""Hostfiles as DeepSpeed and MPI have them, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.launchers import hostfile, ssh
from flows.launchers.hostfile import Line
from pipeline.core.errors import UsageError
from pipeline.core.execution import Execution


def written(tmp_path: Path, text: str) -> str:
    (tmp_path / "hosts").write_text(text)
    return str(tmp_path / "hosts")


def test_hosts_slots_and_comments(tmp_path: Path) -> None:
    text = "# ours\nworker-1 slots=4\n\nworker-2.site slots = 2 max_slots=8  # old\n10.0.0.3\n"
    assert hostfile.read(written(tmp_path, text)) == [Line("worker-1", 4), Line("worker-2.site", 2), Line("10.0.0.3", None)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"names no host"),
        ("# none\n", r"names no host"),
        ("a slots=0\n", r"line 1 is 'a slots=0'; write HOST"),
        ("a b\n", r"line 1 is 'a b'"),
        ("-oProxyCommand=x\n", r"line 1 is '-oProxyCommand=x'"),
        ("a\nb\na slots=2\n", r"line 3 names a again"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        hostfile.read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, r"launcher \(ssh\) needs a hostfile"),
        ({"hostfile": "/none"}, r"hostfile \(/none\) cannot be read \(No such file"),
        ({"nodes": 3}, r"nodes \(3\) are more than the 2 hosts"),
        ({"processes": 5}, r"processes \(5\) are more than host a has slots \(4\)"),
        ({"min_nodes": 3}, r"min_nodes \(3\) must be at most the number of hosts \(2\)"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_anything_starts(
    tmp_path: Path, given: dict[str, object], told: str
) -> None:
    usual = {"hostfile": written(tmp_path, "a slots=4\nb slots=2\n")} if given else {}
    with pytest.raises(UsageError, match=told):
        ssh.LAUNCHER.check(Execution.model_validate({"launcher": "ssh", **usual, **given}))


def test_secrets_and_settings_reach_the_hosts_but_what_is_this_ones_own() -> None:
    there = {"AWS_SECRET_ACCESS_KEY": "s", "NCCL_DEBUG": "INFO", "HOME": "/root", "CLOZE_EVENTS_FD": "5", "CLOZE_RUNS": "r"}
    assert ssh.passed_on(there) == {"AWS_SECRET_ACCESS_KEY": "s", "NCCL_DEBUG": "INFO", "CLOZE_RUNS": "r"}
