"""What Slurm's commands are asked, word for word, and what each of their answers means."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from cloze.core.errors import ClozeError, UsageError
from cloze.flows.launch.slurm import cli
from cloze.flows.launch.slurm.cli import SlurmJobStatus


class Commands:
    """Commands and their answers: (exit code, stdout, stderr) by the first words."""

    def __init__(self, **answers: tuple[int, str, str]) -> None:
        self.answers, self.asked = answers, list[tuple[str, ...]]()

    def __call__(self, *command: str) -> Any:
        self.asked.append(command)
        key = next(
            name for name in self.answers if command[: name.count("_") + 1] == (*name.split("_"),)
        )
        return subprocess.CompletedProcess(command, *self.answers[key])


def commands(monkeypatch: pytest.MonkeyPatch, **answers: tuple[int, str, str]) -> Commands:
    found = Commands(**answers)
    monkeypatch.setattr(cli, "run_command", found)
    return found


def test_the_nodes_of_a_job_are_in_the_order_of_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[2-4]")
    asked = commands(
        monkeypatch,
        scontrol_show=(0, "gpu2\ngpu3\ngpu4\n", ""),
        scontrol=(
            0,
            "NodeName=gpu3 Arch=x NodeAddr=10.0.0.3 Comment=a=b\nNodeName=gpu2 NodeAddr=10.0.0.2\n",
            "",
        ),
    )
    assert cli.nodes() == [("gpu2", "10.0.0.2"), ("gpu3", "10.0.0.3"), ("gpu4", "gpu4")]
    assert asked.asked == [
        ("scontrol", "show", "hostnames", "gpu[2-4]"),
        ("scontrol", "--oneliner", "show", "node", "gpu[2-4]"),
    ]
    commands(monkeypatch, scontrol=(1, "", "scontrol: error: no controller\n"))
    with pytest.raises(
        ClozeError,
        match=(
            r"^scontrol show hostnames gpu\[2-4\] failed \(no controller\); see whether Slurm's "
            r"controller answers \(scontrol ping\)$"
        ),
    ):
        cli.nodes()
    monkeypatch.delenv("SLURM_JOB_NODELIST")
    with pytest.raises(UsageError, match=r"^launcher srun runs inside a Slurm job"):
        cli.nodes()


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ((0, "12\n", ""), "12"),
        ((0, "12;cluster\n", ""), "12"),
        (
            (1, "", "sbatch: error: Batch job submission failed: Invalid partition\n"),
            "Slurm rejects the job (Invalid partition); check --slurm-option and `sinfo`",
        ),
        (
            (1, "", "sbatch: error: a\nsbatch: error: b\n"),
            "Slurm rejects the job (a; b); check --slurm-option and `sinfo`",
        ),
        (
            (1, "", ""),
            "Slurm rejects the job (it gave no reason); check --slurm-option and `sinfo`",
        ),
        ((1, "", "sbatch: error: Socket timed out on send/recv"), "Socket timed out on send/recv"),
        ((1, "", "Unable to contact slurm controller"), "Unable to contact slurm controller"),
        ((1, "", "Connection refused"), "Connection refused"),
        ((1, "", "Connection broken"), "Slurm rejects the job (Connection broken); check --slurm"),
    ],
)
def test_a_submission(
    monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str, str], found: str
) -> None:
    asked = commands(monkeypatch, sbatch=answer)
    if not answer[0]:
        assert cli.submit("job.sbatch") == found
    else:
        kind = UsageError if found.startswith("Slurm rejects") else cli.UnansweredError
        with pytest.raises(kind) as caught:
            cli.submit("job.sbatch")
        assert str(caught.value).startswith(found)
    assert asked.asked == [("sbatch", "--parsable", "job.sbatch")]


def test_jobs_of_a_name_that_have_not_ended_are_told_oldest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = commands(
        monkeypatch, squeue=(0, "100|PENDING\n9|RUNNING\nnoise\n7|FAILED\n8|COMPLETING\n", "")
    )
    assert cli.unfinished_jobs("cloze-x") == ["8", "9", "100"]
    assert asked.asked == [
        ("squeue", "--noheader", "--states=all", "--name=cloze-x", "--format=%A|%T")
    ]
    commands(monkeypatch, squeue=(0, "", ""))
    assert cli.unfinished_jobs("cloze-x") == []
    commands(monkeypatch, squeue=(1, "", "down"))
    assert cli.unfinished_jobs("cloze-x") is None


@pytest.mark.parametrize("accounting", [True, False])
@pytest.mark.parametrize(
    ("squeue", "sacct", "expected"),
    [
        ((0, "RUNNING|None\n", ""), (0, "", ""), SlurmJobStatus("RUNNING")),
        ((0, "PENDING|None\nPENDING|Priority\n", ""), (0, "", ""),
         SlurmJobStatus("PENDING", "Priority")),
        ((1, "", "slurm_load_jobs error: Unable to contact"), (0, "FAILED\n", ""), None),
        ((1, "", "error: Invalid job id specified"), (0, "CANCELLED by 0\n", ""),
         SlurmJobStatus("CANCELLED")),
        ((0, "", ""), (0, "COMPLETED\n", ""), SlurmJobStatus("COMPLETED")),
        ((0, "", ""), (1, "COMPLETED\n", ""), SlurmJobStatus("UNKNOWN")),
        ((0, "", ""), (0, "", ""), SlurmJobStatus("UNKNOWN")),
    ],
)  # fmt: skip
def test_the_status_of_a_job(
    monkeypatch: pytest.MonkeyPatch,
    accounting: bool,
    squeue: tuple[int, str, str],
    sacct: tuple[int, str, str],
    expected: SlurmJobStatus | None,
) -> None:
    asked = commands(monkeypatch, squeue=squeue, sacct=sacct)
    monkeypatch.setattr(shutil, "which", lambda name: name if accounting else None)
    is_forgotten = expected is not None and "|" not in squeue[1]
    if is_forgotten and not accounting:
        expected = SlurmJobStatus("UNKNOWN")
    assert cli.job_status("5") == expected
    assert asked.asked[0] == (
        "squeue", "--noheader", "--states=all", "--jobs=5", "--format=%T|%r"
    )  # fmt: skip
    assert asked.asked[1:] == [
        ("sacct", "--noheader", "--allocations", "--parsable2", "--jobs=5", "--format=State")
    ] * (is_forgotten and accounting)  # fmt: skip


@pytest.mark.parametrize(
    ("state", "answer", "reason"),
    [
        ("RUNNING", (0, "", ""), None),
        ("RUNNING", (1, "", "scontrol: error: denied\n"), "denied"),
        ("COMPLETING", (0, "", ""), "it is being ended by Slurm"),
    ],
)
def test_a_job_is_queued_again_only_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, state: str, answer: tuple[int, str, str], reason: str | None
) -> None:
    asked = commands(
        monkeypatch, scontrol_requeue=answer, scontrol=(0, f"JobId=5 JobState={state} Reason=x", "")
    )
    assert cli.requeue("5") == reason
    assert asked.asked[0] == ("scontrol", "--oneliner", "show", "job", "5")
    assert asked.asked[1:] == [("scontrol", "requeue", "5")] * (state == "RUNNING")


def test_a_missing_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "scontrol" else name)
    with pytest.raises(UsageError, match=r"needs scontrol, which is not on this machine"):
        cli.check()
    monkeypatch.setattr(shutil, "which", lambda name: name)
    cli.check()
