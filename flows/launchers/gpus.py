"""The GPUs of this machine, without a library that would take hold of them."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

_GPU_LINE = re.compile(r"^GPU (\d+):")


def numbers() -> tuple[str, ...]:
    """By CUDA's numbers; `$CUDA_VISIBLE_DEVICES` says which are ours."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return tuple(name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1")
    if not Path("/proc/driver/nvidia").exists():
        return ()
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=20).stdout
        return tuple(found[1] for found in map(_GPU_LINE.match, listed.splitlines()) if found)
    return ()
