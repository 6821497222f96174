"""A stand-in for Slurm that runs its jobs, as processes of this machine: two nodes, `n1` and `n2`.

What a controller and its nodes do to a job, a test asks for with `RunningSlurm.ask`: `scancel` ends
it by SIGTERM, then SIGKILL; `limit` is the signal before the time limit; `preempt` is a preemption
with requeue (SIGTERM, SIGKILL, start again); `lose` is the loss of all its nodes at once.

    python -m tests.slurm_running QUEUE JOB SCRIPT    a job's life
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from cloze.core.processes import request_death_signal
from tests.conftest import REPOSITORY
from tests.slurm_stand_in import Queue

KILL_WAIT = 15.0  # seconds from SIGTERM to SIGKILL
_SBATCH = """
for script; do :; done
id=$(($(cat "$Q/count") + 1)); echo $id > "$Q/count"
echo "$(sed -n 's/^#SBATCH --job-name=//p' "$script")|PENDING" > "$Q/jobs/$id"
log=$(sed -n 's/^#SBATCH --output=//p' "$script" | sed "s/%j/$id/")
cd {repository}
setsid {python} -m tests.slurm_running "$Q" $id "$script" >> "$log" 2>&1 < /dev/null &
echo $id"""
_SCANCEL = """echo scancel > "$Q/ask-$1" """
_SCONTROL = """
case "$*" in
    requeue*) echo requeue > "$Q/ask-$2"; sleep 60;;
    *hostnames*) echo n1; echo n2;;
    *"show node"*) for n in n1 n2; do echo "NodeName=$n NodeAddr=$n"; done;;
    *"show job"*) for id; do :; done; echo "JobId=$id JobState=$(cut -d'|' -f2 "$Q/jobs/$id")";;
esac"""
_SRUN = """
n=0
while [ "${1#--}" != "$1" ]; do case $1 in --nodes=*) nodes=${1#*=};; esac; shift; done
while [ $n -lt $nodes ]; do SLURM_NODEID=$n CLOZE_HOST_ADDRESS=127.0.0.1 "$@" & n=$((n + 1)); done
trap 'kill $(jobs -p)' TERM
while [ -n "$(jobs -p)" ]; do wait; jobs > /dev/null; done"""


class RunningSlurm(Queue):
    """See the module."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        sbatch = _SBATCH.format(repository=REPOSITORY, python=sys.executable)
        scripts = {"sbatch": sbatch, "scancel": _SCANCEL, "scontrol": _SCONTROL, "srun": _SRUN}
        for name, text in scripts.items():
            (self.programs / name).write_text(f"#!/bin/bash\nQ='{root}'\n{text}\n")
            (self.programs / name).chmod(0o755)

    def ask(self, what: str, job: str = "1") -> None:
        (self.root / f"ask-{job}").write_text(what)


class _Job:
    """A job's life, as its controller and nodes lead it."""

    def __init__(self, root: Path, number: str, script: str) -> None:
        self.root, self.number, self.script = root, number, script
        self.restarts = 0

    def state(self, state: str) -> None:
        file = self.root / "jobs" / self.number
        file.write_text(f"{file.read_text().partition('|')[0]}|{state}\n")

    def live(self) -> None:
        while self._start():
            self.restarts += 1
            self.state("PENDING")
            time.sleep(1)

    def _start(self) -> bool:
        """One start; whether it is queued again."""
        slurm = {"SLURM_JOB_ID": self.number, "SLURM_RESTART_COUNT": str(self.restarts)}
        environment = {**os.environ, **slurm, "SLURM_JOB_NODELIST": "n[1-2]"}
        self.state("RUNNING")
        batch = subprocess.Popen(
            ["bash", self.script], env=environment, preexec_fn=request_death_signal
        )
        ask = self.root / f"ask-{self.number}"
        while batch.poll() is None:
            asked = ask.read_text().strip() if ask.exists() else ""
            if asked:
                ask.unlink()
            if asked == "limit":
                batch.send_signal(signal.SIGTERM)
            elif asked:
                self._end(batch, 0.0 if asked == "lose" else KILL_WAIT)
                self.state("CANCELLED")
                return asked != "scancel"
            time.sleep(0.05)
        self.state("COMPLETED" if batch.returncode == 0 else "FAILED")
        return False

    def _end(self, batch: subprocess.Popen[bytes], wait: float) -> None:
        """SIGTERM to all processes, SIGKILL to those that are left."""
        self.state("COMPLETING")
        everyone = [psutil.Process(batch.pid), *psutil.Process(batch.pid).children(recursive=True)]
        ranks = [each for each in everyone if "tests.operations.worker" in each.cmdline()]
        for process in everyone if wait else ():
            with suppress(psutil.Error):
                if process not in ranks:  # their agent tells them
                    process.terminate()
        psutil.wait_procs(everyone, timeout=wait)
        for process in everyone:
            with suppress(psutil.Error):
                process.kill()
        batch.wait()


if __name__ == "__main__":
    _Job(Path(sys.argv[1]), sys.argv[2], sys.argv[3]).live()
