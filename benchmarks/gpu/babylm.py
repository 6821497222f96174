"""BabyLM Strict-Small on a machine that has a GPU and no network: training, mean, BLiMP.

    python -m benchmarks.gpu.babylm pack RUN BLIMP run.tar.xz   # here, after
        cloze run babylm-strict-small --set size=gpu --until dataset --until dataset@256 …  made RUN
    python -m benchmarks.gpu.babylm run run.tar.xz --out results    # there

The archive has the preset's sections as JSON, both datasets, and the pairs. What runs there needs
what `benchmarks.gpu` needs. The row to make: at most 5 minutes on an H200 for 72 % on the official
ten million words.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

PRESET, PLAN = "babylm-strict-small", "plan.json"
DATASETS = ("dataset", "dataset@256")
MADE = ("pretrain", "pretrain@256", "merge", "score", "score@masked")


def plan(
    pairs: Path, size: str, overrides: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The preset's trainings, mean and score, of one seed: name, stage, inputs and fields."""
    from cloze.flows.graph.config import load

    changes: dict[str, dict[str, Any]] = {
        "corpus": {"sources": [{"kind": "jsonl", "path": str(pairs)}]},  # not read
        "pretrain": {"matrix": {"seed": [1]}},
        "score": {"data": str(pairs)},
    }
    for name, fields in overrides.items():
        changes[name] = {**changes.get(name, {}), **fields}
    nodes = [
        node
        for node in load(PRESET, {"size": size, **changes}).nodes.values()
        if node.section in (*DATASETS, *MADE)
    ]
    names = {node.name: node.section for node in nodes}
    return [
        {
            "name": node.section,
            "stage": node.stage,
            "inputs": {role: names[str(origin.node)] for role, origin in node.inputs.items()},
            "config": node.config.model_dump(mode="json", exclude_unset=True),
        }
        for node in nodes
        if node.section in MADE
    ]


def pack(run: Path, pairs: Path, archive: Path, planned: list[dict[str, Any]]) -> None:
    """Write the archive: plan, datasets, pairs."""
    with tarfile.open(archive, "w:xz") as tar, tempfile.TemporaryDirectory() as scratch:
        written = Path(scratch) / PLAN
        written.write_text(json.dumps(planned))
        tar.add(written, PLAN)
        for name in DATASETS:
            tar.add((run / name).resolve(), name)
        tar.add(pairs.resolve(), "pairs")


def unpack(archive: Path, out: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(out, filter="data")


def make(out: Path, device: str) -> dict[str, Any]:
    """Run the stages of the plan in `out` one after the other; return seconds by stage, and the
    scores.
    """
    from cloze.core.stages.execute import execute
    from cloze.core.stages.execution import Execution
    from cloze.model.train.stage import STAGE as PRETRAIN
    from cloze.model.use.stages import MERGE, SCORE

    stages = {stage.name: stage for stage in (PRETRAIN, MERGE, SCORE)}
    results: dict[str, Any] = {}
    for node in json.loads((out / PLAN).read_text()):
        stage, name = stages[node["stage"]], node["name"]
        fields = {**node["config"], **({"data": str(out / "pairs")} if stage is SCORE else {})}
        result = execute(
            stage,
            stage.config.model_validate(fields),
            {role: str(out / source) for role, source in node["inputs"].items()},
            str(out / name),
            execution=Execution(device=device),
        )
        results[name] = {"seconds": round(result.seconds, 1)}
        results[name] |= result.manifest.summary.get("metrics") or {}
        accuracy = results[name].get("accuracy")
        scored = "" if accuracy is None else f", {100 * accuracy:.2f} %"
        print(f"{name}: {result.seconds:.1f} s{scored}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    for name in ("run", "pairs", "archive"):
        packing.add_argument(name, type=Path)
    packing.add_argument("--size", default="gpu")
    running = verbs.add_parser("run")
    running.add_argument("archive", type=Path)
    running.add_argument("--out", type=Path, default=Path("runs/babylm"))
    running.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.verb == "pack":
        pack(options.run, options.pairs, options.archive, plan(options.pairs, options.size))
        print(f"{options.archive}: {options.archive.stat().st_size / 1e6:.1f} MB")
        return
    unpack(options.archive, options.out)
    results = make(options.out, options.device)
    (options.out / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
