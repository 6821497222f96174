"""`cloze doctor`: is this machine fit, and what is it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from typing import Any

import click

from flows.commands.common import emit, json_option

PACKAGES = (
    "torch",
    "deepspeed",
    "apache-beam",
    "prefect",
    "mlflow",
    "pyarrow",
    "tokenizers",
    "transformers",
    "fastapi",
    "sqlalchemy",
)
FREE_BYTES = 5 << 30
_TORCH = "import torch, json; print(json.dumps([torch.__version__, torch.cuda.is_available(), torch.cuda.device_count()]))"


@click.command()
@json_option
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Check Python, packages, compiler, precision, devices, free disk, and records that MLflow refused."""
    rows = [_python(), *(_package(name) for name in PACKAGES), _compiler(), _processor(), _torch(), _disk(), *_refused()]
    if as_json:
        emit({"ok": all(row["ok"] for row in rows), "checks": rows})
    else:
        for row in rows:
            mark = click.style("ok  ", fg="green") if row["ok"] else click.style("bad ", fg="red")
            click.echo(f"{mark} {row['check']:<14} {row['found']}")
    if not all(row["ok"] for row in rows):
        ctx.exit(1)


def _row(check: str, found: str, ok: bool = True) -> dict[str, Any]:
    return {"check": check, "found": found, "ok": ok}


def _python() -> dict[str, Any]:
    return _row("python", platform.python_version(), (3, 10) <= sys.version_info[:2] <= (3, 13))


def _package(name: str) -> dict[str, Any]:
    try:
        return _row(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        needed = name != "transformers"  # only for the parity check of an export
        return _row(name, "not installed" + ("" if needed else " (needed only to check exports)"), not needed)


def _compiler() -> dict[str, Any]:
    """Wanted for `torch.compile` on a CPU alone: without one, training steps are not compiled."""
    found = shutil.which("g++") or shutil.which("c++")
    return _row("compiler", found or "none: training steps are not compiled; install g++ if they should be")


def _processor() -> dict[str, Any]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as stream:
            flags = next((line for line in stream if line.startswith("flags")), "").split()
    except OSError:
        flags = []
    fast = [flag for flag in ("amx_bf16", "avx512_bf16") if flag in flags]
    precision = f"bf16 by {', '.join(fast)}" if fast else "no native bf16: fp32"
    return _row("processor", f"{os.cpu_count()} cores, {precision}")


def _torch() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", _TORCH], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        return _row("torch imports", done.stderr.strip().splitlines()[-1] if done.stderr else "failed", False)
    return _row("devices", done.stdout.strip())


def _disk() -> dict[str, Any]:
    free = shutil.disk_usage(".").free
    return _row("free disk", f"{free / 1e9:.0f} GB here", free > FREE_BYTES)


def _refused() -> list[dict[str, Any]]:
    """What MLflow has refused to record, by reason."""
    from flows.graph.plan import runs_directory
    from flows.tracking.refused import FILE, refused

    spools = runs_directory() / ".tracking"
    return [
        _row("records", f"{count:,} refused by MLflow: {reason} (in {spools / FILE}; remove the file when it is mended)", False)
        for reason, count in refused(spools).most_common()
    ]
