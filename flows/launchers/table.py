"""The table of launchers: a name and where the launcher is. A new one is one file and one line here."""

from __future__ import annotations

from flows.launchers.protocol import Launcher
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.registry import load

LAUNCHERS: dict[str, str] = {
    "local": "flows.launchers.local:LAUNCHER",
    "torchrun": "flows.launchers.torchrun:LAUNCHER",
    "ssh": "flows.launchers.ssh:LAUNCHER",
    "slurm": "flows.launchers.slurm:LAUNCHER",
    "srun": "flows.launchers.srun:LAUNCHER",
    "kubernetes": "flows.launchers.kubernetes:LAUNCHER",
}


def launcher(name: str) -> Launcher:
    """The launcher of that name.

    Raises:
        UsageError: there is no such launcher.
    """
    if name not in LAUNCHERS:
        raise UsageError(f"launcher ({name}) is not known; {did_you_mean(name, LAUNCHERS)}")
    found: Launcher = load(LAUNCHERS[name])
    return found
