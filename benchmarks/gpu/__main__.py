"""What a machine with a GPU says of this trainer, in so many minutes.

    python -m benchmarks.gpu --minutes 9                    # on a GPU: checks, then the table
    python -m benchmarks.gpu --device cpu --tiny --minutes 3  # the same rows at the smallest size,
    anywhere

Rows go to rows.jsonl as they come, results.md holds the table so far, child.log what libraries
said: in --out, in $OUT where that is set, or in runs/gpu. It ends with 1 where a check failed; a
speed that could not be measured is named in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()  # to import torch from a disk that nobody has read yet can take a minute
MARGIN = 10.0  # seconds of the minutes for the end


def machine(device: str) -> dict[str, Any]:
    """What it is, for the table's head."""
    import torch

    found: dict[str, Any] = {"device": f"{platform.processor() or platform.machine()} CPU"}
    if device == "cuda":
        gpu = torch.cuda.get_device_properties(0)
        found = {
            "device": gpu.name,
            "memory": f"{gpu.total_memory / 1e9:.0f} GB",
            "CUDA": torch.version.cuda,
        }
    found |= {"torch": torch.__version__, "Python": platform.python_version()}
    for package in ("transformers", "deepspeed"):
        try:
            from importlib.metadata import version

            found[package] = version(package)
        except ImportError:
            found[package] = "none"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true", help="everything at the smallest size")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT") or "runs/gpu"))
    parser.add_argument("--only", default="", help="rows whose names match this regular expression")
    options = parser.parse_args()
    import torch

    from benchmarks.gpu.checks import DETERMINISTIC
    from benchmarks.gpu.parent import LONGEST, SHORTEST, child_of, run_rows
    from benchmarks.gpu.rows import check_names, speed_names
    from benchmarks.gpu.table import markdown

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            "there is no GPU here that torch can use; --device cpu --tiny runs the same rows on "
            "the CPU"
        )
    options.out.mkdir(parents=True, exist_ok=True)
    machine_info, rows = machine(options.device), list[dict[str, Any]]()
    (options.out / "rows.jsonl").write_text(json.dumps(machine_info) + "\n")
    print(", ".join(f"{name} {value}" for name, value in machine_info.items()), flush=True)

    def written(row: dict[str, Any]) -> None:
        rows.append(row)
        with (options.out / "rows.jsonl").open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        (options.out / "results.md").write_text(markdown(rows, machine_info))
        figures = row.get("figures") or {}
        shown = "  ".join(
            f"{name} {value:.4g}"
            for name, value in figures.items()
            if isinstance(value, float) and "time_" not in name
        )
        how = {True: "ok", False: "FAILED", None: "not run"}[row["ok"]]
        print(
            f"{time.monotonic() - BEGAN:6.0f} s  {row['row']:40} {how:8} "
            f"{row.get('error') or shown}",
            flush=True,
        )

    with tempfile.TemporaryDirectory(prefix="cloze-gpu-") as scratch:
        where = options.device, options.tiny, Path(scratch), options.out / "child.log"
        children = (
            child_of(*where, **dict([DETERMINISTIC])),
            child_of(*where),
        )  # the second as trainings run
        requested = [
            [name for name in names if re.search(options.only, name)]
            for names in (check_names(), speed_names(options.tiny))
        ]
        checks, speeds = zip(requested, children, strict=True)
        left = 60 * options.minutes - MARGIN - (time.monotonic() - BEGAN)
        run_rows(checks, speeds, left, written, SHORTEST if options.tiny else LONGEST)
    print()
    print(markdown(rows, machine_info))
    failed = [row["row"] for row in rows if row["row"].startswith("check: ") and row["ok"] is False]
    if failed:
        sys.exit(f"{len(failed)} of the checks failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
