"""What goes to a cluster and in which order: options as they are written, an unanswered submission,
the end of a step.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloze.core.errors import ClozeError, UsageError
from cloze.core.stages.execution import Execution
from cloze.flows.launch.slurm import cli as slurm_cli
from cloze.flows.launch.slurm import job as slurm_job
from cloze.flows.launch.slurm import launcher as slurm_launcher
from cloze.labs.kubernetes import manifest
from tests.flows.launch.test_slurm import slurm_work
from tests.labs.kubernetes.test_kubernetes import EVERYTHING, IMAGE


def chosen(*options: str) -> manifest.Options:
    return manifest.options(Execution(kubernetes_options=options))


@pytest.mark.parametrize("option", EVERYTHING)
def test_an_option_of_kubernetes_is_written_as_kubectl_writes_it_or_as_python_does(
    option: str,
) -> None:
    name, _, value = option.partition("=")
    rest = () if name == "image" else (IMAGE,)
    found = chosen(*rest, option)
    for dashes in ("", "--"):
        for written in (name.replace("_", "-"), name.replace("-", "_")):
            assert chosen(*rest, f"{dashes}{written}={value}") == found
    field = name.replace("-", "_")
    kept = getattr(found, field)
    assert str(kept[0] if field in manifest.SEVERAL else kept) == value
    for wrong in (f"-{option}", f"---{option}", f"{name}-={value}"):
        with pytest.raises(UsageError, match="is not known"):
            chosen(*rest, wrong)
    if field in manifest.SEVERAL:
        assert getattr(chosen(IMAGE, option, option), field) == (value, value)
    else:
        with pytest.raises(UsageError, match=f"says {field} a second time; it was"):
            chosen(*rest, option, option)
    for empty in (name, f"{name}=", f"={value}"):
        with pytest.raises(UsageError, match=r"must look like NAME=VALUE|is not known"):
            chosen(*rest, empty)


class Calls(list[Any]):
    """Calls in their order."""

    def noting(self, name: str, answer: Any = None) -> Any:
        """A function that notes its name and positional arguments."""

        def call(*arguments: Any) -> Any:
            self.append((name, *arguments))
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.mark.parametrize(("jobs", "found"), [(["7"], "7"), (["7", "8", "9"], "7"), ([], None)])
def test_a_submission_without_an_answer_is_looked_for_after_a_moment_and_never_doubled(
    jobs: list[str], found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls()
    unanswered = slurm_cli.UnansweredError("Socket timed out")
    monkeypatch.setattr(slurm_cli, "submit", calls.noting("submit", unanswered))
    monkeypatch.setattr(slurm_cli, "unfinished_jobs", calls.noting("look", jobs))
    monkeypatch.setattr(slurm_cli, "cancel", calls.noting("cancel"))
    monkeypatch.setattr(slurm_launcher, "time", SimpleNamespace(sleep=calls.noting("sleep")))
    work, directory = slurm_work(tmp_path), tmp_path / "_logs" / "slurm"
    directory.mkdir(parents=True)
    if found is None:
        with pytest.raises(
            ClozeError,
            match=(
                r"^Slurm did not confirm the job cloze-toy-\w* \(Socket timed out\) and does not "
                r"list it; run again: an accepted job is found by its name$"
            ),
        ):
            slurm_launcher._submit(str(directory), work)
    else:
        assert slurm_launcher._submit(str(directory), work) == found
    assert calls == [
        ("submit", str(directory / "job.sbatch")),
        ("sleep", 1.0),
        ("look", slurm_launcher.job_name(work.job)),
        *(("cancel", later) for later in jobs[1:]),
    ]
    assert (directory / "work.json").exists(), "the job may be there"
    assert (directory / "submitted.json").exists() == (found is not None)


class Step:
    """A process that ends once it is asked so often: 0 has ended, 1 ends at SIGTERM, 2 at
    SIGKILL.
    """

    def __init__(self, calls: Calls, patience: int) -> None:
        self.calls, self.patience = calls, patience

    def poll(self) -> int | None:
        return None if self.patience else 0

    def terminate(self) -> None:
        self.calls.append("SIGTERM")
        self.patience -= 1

    def kill(self) -> None:
        self.calls.append("SIGKILL")
        self.patience -= 1

    def wait(self, seconds: float | None = None) -> int:
        self.calls.append(("wait", seconds))
        if self.patience:
            raise subprocess.TimeoutExpired("srun", seconds or 0)
        return 0


@pytest.mark.parametrize("patience", [0, 1, 2])
def test_a_step_of_srun_is_asked_to_end_then_killed_and_always_waited_for(patience: int) -> None:
    calls = Calls()
    step = object.__new__(slurm_job._Step)
    step._process = Step(calls, patience)  # type: ignore[assignment]
    step.stop()
    asked = ["SIGTERM", ("wait", 20.0)], ["SIGKILL", ("wait", None)]
    assert calls == [call for part in asked[:patience] for call in part]
