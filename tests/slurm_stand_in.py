"""A stand-in for Slurm's commands, for tests of what happens around a submission: a queue in a
directory, which runs nothing.

`sbatch`, `squeue`, `scancel` and `scontrol` are shell scripts that answer as Slurm does. Files in
the queue's directory make
them misbehave: `lose` (the next submission is accepted, its answer is lost), `late` (likewise, and
the job is shown only after `appear`), `refuse` (it takes no job), `down` (the controller does not
answer).
"""

from __future__ import annotations

import os
from pathlib import Path

_SCRIPTS = {
    "sbatch": """
        if [ -e "$Q/down" ]; then echo "sbatch: error: Unable to contact slurm controller (connect failure)" >&2; exit 1; fi
        if [ -e "$Q/refuse" ]; then
            echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2; exit 1
        fi
        for script; do :; done
        id=$(($(cat "$Q/count") + 1)); echo $id > "$Q/count"
        place=jobs; [ -e "$Q/late" ] && place=hidden
        echo "$(sed -n 's/^#SBATCH --job-name=//p' "$script")|PENDING" > "$Q/$place/$id"
        if [ -e "$Q/lose" ] || [ -e "$Q/late" ]; then
            rm -f "$Q/lose" "$Q/late"
            echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1
        fi
        echo $id""",
    "squeue": """
        if [ -e "$Q/down" ]; then echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; fi
        for word; do case $word in
            --jobs=*) job=${word#*=};; --name=*) name=${word#*=};; --format=*) format=${word#*=};;
        esac; done
        if [ -n "$job" ] && [ ! -e "$Q/jobs/$job" ]; then
            echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1
        fi
        for file in "$Q"/jobs/*; do
            [ -e "$file" ] || continue
            id=${file##*/}; IFS='|' read -r its state < "$file"
            [ -n "$job" ] && [ "$job" != "$id" ] && continue
            [ -n "$name" ] && [ "$name" != "$its" ] && continue
            case $format in "%T|%r") echo "$state|None";; *) echo "$id|$state";; esac
        done""",
    "scancel": """
        IFS='|' read -r its state < "$Q/jobs/$1"; echo "$its|CANCELLED" > "$Q/jobs/$1" """,
    "scontrol": """
        case "$*" in *hostnames*) echo n1;; *) echo "NodeName=n1 NodeAddr=127.0.0.1";; esac""",
}


class Queue:
    """The queue. Attributes: programs: the directory of the commands, for PATH."""

    def __init__(self, root: Path) -> None:
        self.root, self.programs = root, root / "bin"
        for name in ("bin", "jobs", "hidden"):
            (root / name).mkdir(parents=True)
        (root / "count").write_text("0")
        for name, text in _SCRIPTS.items():
            program = self.programs / name
            program.write_text(f"#!/bin/sh\nQ='{root}'\n{text}\n")
            program.chmod(0o755)

    @property
    def path(self) -> str:
        """PATH with the commands first."""
        return f"{self.programs}:{os.environ['PATH']}"

    def jobs(self, place: str = "jobs") -> dict[str, str]:
        """The states of the jobs by id."""
        files = sorted((self.root / place).iterdir(), key=lambda file: int(file.name))
        return {file.name: file.read_text().strip().partition("|")[2] for file in files}

    def set(self, job: str, state: str) -> None:
        file = self.root / "jobs" / job
        file.write_text(f"{file.read_text().partition('|')[0]}|{state}\n")

    def hide(self, job: str) -> None:
        """Let Slurm forget a job that lives."""
        (self.root / "jobs" / job).rename(self.root / "hidden" / job)

    def appear(self) -> None:
        """Show all hidden jobs."""
        for file in list((self.root / "hidden").iterdir()):
            file.rename(self.root / "jobs" / file.name)

    def misbehave(self, how: str, on: bool = True) -> None:
        """See the module."""
        (self.root / how).touch() if on else (self.root / how).unlink(missing_ok=True)
