"""The site: what Cloze needs to start processes here, for every run; no run's config names a site.

It is one file, `CLOZE_SITE` or else `~/.config/cloze/site.yaml`, which jobs read, too:

    launcher:
      prologue: |                           # before Python, in every job and on every other host
        module load cuda/12.4
      container: /shared/cloze.sif          # of the ranks; for Kubernetes the image of the pods
      python: /shared/cloze/bin/python
      slurm_options: [--account=lm]         # also those of other launchers
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import field_validator

from cloze.core.config import Values, parse_config
from cloze.core.errors import UsageError
from cloze.core.identity import recorded_source
from cloze.core.stages.execution import LAUNCHER_FIELDS, Execution, with_launchers

VARIABLE = "CLOZE_SITE"
CONTAINER_RUN = ("apptainer", "exec", "--nv")


@with_launchers
class LauncherSite(Values):
    """How processes start on this site."""

    prologue: tuple[str, ...] = ()
    """Shell command before Python starts; a text has one a line. Each must succeed."""

    container: str | None = None
    """Image that the ranks run in, by Apptainer; with Kubernetes, the image of the pods."""

    python: str | None = None
    """Python interpreter there. Default: the path of this one; in a container python."""

    slurm_options: tuple[str, ...] = ()
    """sbatch option of every job, such as --account=lm."""

    ssh_options: tuple[str, ...] = ()
    """ssh option of every connection, such as User=train."""

    @field_validator("prologue", mode="before")
    @classmethod
    def _split_lines(cls, value: object) -> object:
        return [line for line in value.splitlines() if line] if isinstance(value, str) else value

    @property
    def host_python(self) -> str:
        """Return the interpreter outside the container."""
        return (self.container is None and self.python) or sys.executable

    @property
    def words(self) -> list[str]:
        """Return the command that starts Python for agents and their ranks."""
        if self.container is None:
            return [self.host_python]
        return [*CONTAINER_RUN, self.container, self.python or "python"]

    def script(self, last: str) -> str:
        """Return shell lines: the prologue, which ends the script if it fails, and `last`.

        The recorded source comes before what the prologue puts into `PYTHONPATH`.
        """
        lines = []
        for command in self.prologue:
            message = shlex.quote(f"cloze: launcher.prologue failed: {command}")
            # in this shell, as it sets variables; without the agent's standard input
            lines.append(f"{{ {command}\n}} </dev/null || {{ echo {message} >&2; exit 2; }}")
        if (source := recorded_source()) is not None:
            others = "${PYTHONPATH:+:$PYTHONPATH}"
            lines.append(f"export PYTHONPATH={shlex.quote(str(source))}{others}")
        return "\n".join([*lines, last])

    def filled(self, execution: Execution) -> Execution:
        """Return the settings with the site's options, but for those that the run names itself."""
        changes = {}
        for field in LAUNCHER_FIELDS.keys() & type(self).model_fields.keys():
            own = getattr(execution, field)
            names = {option.partition("=")[0] for option in own}
            usual = [each for each in getattr(self, field) if each.partition("=")[0] not in names]
            if LAUNCHER_FIELDS[field] == execution.launcher and usual:
                # ssh takes the first value of an option, sbatch the last
                changes[field] = (*own, *usual) if field == "ssh_options" else (*usual, *own)
        return execution.model_copy(update=changes)


class Site(Values):
    """Content of the site's file."""

    launcher: LauncherSite = LauncherSite()
    """How processes start."""


def path() -> Path:
    """Return the site's file, which need not exist unless `CLOZE_SITE` names it."""
    named = os.environ.get(VARIABLE)
    return Path(named or "~/.config/cloze/site.yaml").expanduser()


def read() -> LauncherSite:
    """Return how processes start on this site; without a file, as they start here.

    Raises UsageError: the file is missing though it is named, no valid YAML, or has an unknown key.
    """
    file = path()
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
    except FileNotFoundError as error:
        if os.environ.get(VARIABLE) is None:
            return LauncherSite()
        raise UsageError(f"{VARIABLE}={file} does not exist; write it, or unset it") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"the site's file {file} cannot be read ({reason}); correct it") from error
    if not isinstance(values, dict):
        raise UsageError(f"the site's file {file} ({values!r}) must be a mapping with launcher:")
    return parse_config(Site, values, str(file)).launcher


def shell(words: Sequence[str]) -> str:
    """Return a shell command that becomes the program."""
    return f"exec {shlex.join(words)}"
