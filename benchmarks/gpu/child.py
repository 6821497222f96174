"""Runs rows in a process of its own: what ends it (a fault of the driver, memory that is out) ends
one row.

    python -m benchmarks.gpu.child --device cuda --scratch DIR [--tiny]

Reads a JSON object a line, {"row": name, "seconds": n}, and answers each with one: {"row": …, "ok":
…, "took": …, and figures or an error}. Everything else that is printed goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.rows import row_named
from cloze.core.processes import die_with_parent


def run(name: str, place: Any) -> dict[str, Any]:
    """The row's answer, whatever comes of it."""
    from benchmarks.gpu.tiny_trainings import Skipped

    began = time.perf_counter()
    try:
        found: dict[str, Any] = {"ok": True, "figures": dict(row_named(name)(place))}
    except Skipped as why:
        found = {"ok": None, "error": str(why)}
    except Exception as error:
        traceback.print_exc()
        found = {"ok": False, "error": " ".join(f"{type(error).__name__}: {error}".split())[:400]}
    return {"row": name, **found, "took": round(time.perf_counter() - began, 2)}


def begin(device: str) -> None:
    """Start the device. A machine whose driver cannot map memory piece by piece, as ranks ask of
    torch's allocator, is not asked for it.
    """
    if device == "cuda":
        import torch

        try:
            torch.zeros(1, device=device).item()
        except RuntimeError as error:
            print(f"the device does not start: {error}", file=sys.stderr, flush=True)
            if os.environ.pop("PYTORCH_ALLOC_CONF", None):
                os.execv(
                    sys.executable, [sys.executable, "-m", "benchmarks.gpu.child", *sys.argv[1:]]
                )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", required=True)
    parser.add_argument("--scratch", required=True, type=Path)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    die_with_parent()
    begin(options.device)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    from benchmarks.gpu.place import Place

    place = Place(device=options.device, tiny=options.tiny, scratch=options.scratch)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(run(asked["row"], replace(place, seconds=asked["seconds"]))), file=answers)


if __name__ == "__main__":
    main()
