"""The GPU levers of `cloze.labs.levers`, each alone and all together, beside today's step.

    python -m benchmarks.gpu.levers --minutes 9                       # on a GPU
    python -m benchmarks.gpu.levers --device cpu --tiny --minutes 2   # with stand-ins, anywhere

A row is a case and a way. Both steps are those of the product's engine, on the same packed batches,
compiled, without dropout, so that their losses can be compared; the way `dropout` is today's step
with BERT's. The two are timed in alternation. Rows go to rows.jsonl in --out, and results.md has
the one table; both are copied to $OUT, where that is set. A second call with the same --out
continues: it runs what is missing, and what failed or was killed, with the compiled graphs that are
there. Rows of other code or of another machine are refused.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any

BEGAN = time.monotonic()
MARGIN = 8.0  # seconds of the minutes for the end
ROW = "levers: "


def code() -> str:
    """A hash of what is measured: another commit, another figure."""
    base = Path(__file__).resolve().parents[2]
    files = sorted(
        path
        for folder in ("model", "labs/levers", "benchmarks/gpu")
        for path in (base / folder).rglob("*.py")
    )
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(base).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def read_rows(path: Path, head: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of earlier calls; a line that a killed call left half is dropped.

    Raises:
        ValueError: they are of another machine or other code.
    """
    if not path.exists():
        return []
    found = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    if not found:
        return []
    before, *rows = found
    if different := [name for name in head if before.get(name) != head[name]]:
        name = different[0]
        raise ValueError(
            f"{path} has rows of {name} {before.get(name)}, this is {head[name]}; give another "
            f"--out"
        )
    return [row for row in rows if "row" in row]


def missing(names: list[str], rows: list[dict[str, Any]]) -> list[str]:
    """Names that have no answer yet: rows that were never run, failed, or had no time."""
    answered = {
        row["row"]
        for row in rows
        if row["ok"] is True or (row["ok"] is None and row["error"] != NO_TIME)
    }
    return [name for name in names if name not in answered]


NO_TIME = "there was no time left"


def publish(out: Path, table: str) -> None:
    """Write the table; copy it and the rows to $OUT, which a borrowed machine sends back."""
    (out / "results.md").write_text(table)
    if elsewhere := os.environ.get("OUT"):
        for name in ("rows.jsonl", "results.md"):
            if (out / name).exists():
                shutil.copy(out / name, elsewhere)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--tiny", action="store_true", help="everything at the smallest size")
    parser.add_argument("--out", type=Path, default=Path("runs/levers"))
    parser.add_argument("--only", default="", help="rows whose names match this regular expression")
    options = parser.parse_args()
    import torch

    from benchmarks.gpu.__main__ import machine
    from benchmarks.gpu.lever_rows import lever_names
    from benchmarks.gpu.lever_table import markdown
    from benchmarks.gpu.parent import LONGEST, SHORTEST, child_of, run_rows

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no GPU here that torch can use; --device cpu --tiny runs the same rows")
    head = {**machine(options.device), "tiny": options.tiny, "code": code()}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    try:
        rows = read_rows(path, head)
    except ValueError as error:
        sys.exit(str(error))
    names = [name for name in lever_names(options.tiny) if re.search(options.only, name)]
    open_names = missing(names, rows)
    kept = [row for row in rows if row["row"] not in open_names]
    print(f"{len(names) - len(open_names)} of {len(names)} rows are there", flush=True)

    def written(row: dict[str, Any]) -> None:
        kept.append(row)
        text = "".join(json.dumps(each) + "\n" for each in (head, *kept))
        making = path.with_suffix(".making")
        making.write_text(text)
        making.replace(path)  # a kill leaves the rows before, or these
        publish(options.out, markdown(names, kept, head))
        how = {True: "ok", False: "FAILED", None: "not run"}[row["ok"]]
        figures = row.get("figures") or {}
        shown = row.get("error") or f"x {figures['ratio']:.3f}, loss {figures['loss']:.1e}"
        print(f"{time.monotonic() - BEGAN:6.0f} s  {row['row']:44} {how:8} {shown}", flush=True)

    scratch = options.out / "scratch"
    scratch.mkdir(exist_ok=True)
    for half in scratch.glob("*.making"):  # of a call that was killed
        shutil.rmtree(half)
    child = child_of(options.device, options.tiny, scratch.absolute(), options.out / "child.log")
    left = 60 * options.minutes - MARGIN - (time.monotonic() - BEGAN)
    longest = SHORTEST if options.tiny else LONGEST
    run_rows(([], child), (open_names, child), left, written, longest)
    table = markdown(names, kept, head)
    publish(options.out, table)
    print(f"\n{table}")
    if rest := missing(names, kept):
        print(f"{len(rest)} rows are missing; the same command continues", flush=True)
    if any(row["ok"] is False for row in kept):
        sys.exit("a row failed; its error is in the table")


if __name__ == "__main__":
    main()
