"""Ideas for the record book, by seeds: the held-out loss after so many steps, or minutes.

    cloze run speedrun --until dataset --set corpus.sources=…
    python -m benchmarks.speedrun --data runs/speedrun --steps 1200 --only 'record,values'
        [--seeds 1,2,3] [--minutes 10] [--threads 1] [--set global_batch=16] [--out runs/ideas]

Each row is an idea of `IDEAS`, or several joined by ' + ', over `BASE`; each seed is `cloze run` of
one node `pretrain` (`pretrain@last` with two phases), which `cloze record` can enter if DATA is
beside it (OUT/runs/speedrun), and of one that scores its last checkpoint on all held-out rows of
the book. What is there already is not trained again, so the table grows by calls. Ideas of
`PATCHED` need product code that has not earned its lines: `git apply benchmarks/speedrun.patch` in a work tree of its own.
docs/explanation/speedrun.md is the record book.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml
from scipy.stats import ttest_ind

from cloze.core.artifacts.artifact import is_artifact, read_manifest
from cloze.core.errors import did_you_mean
from cloze.flows.graph.overrides import parse
from cloze.model.layers import embeddings


def size(layers: int, width: int) -> dict[str, Any]:
    """A model of heads of 64 values."""
    return {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": width // 64,
        "intermediate_size": 3 * width,
    }


BASE: dict[str, Any] = {
    "model": {"preset": "modern-tiny", "max_position_embeddings": 128, **size(2, 128)},
    "objectives": ["mlm"],
    "global_batch": 32,
    "learning_rate": 0.002,
    "betas": [0.9, 0.98],
    "warmup_share": 0.05,
    "schedule": "linear",
    "heldout_rows": 500,
}
MUON = {"optimizer": "muon", "learning_rate": 0.004, "hidden_lr_multiplier": 1.5}

IDEAS: dict[str, dict[str, Any]] = {
    "adamw .002": {},
    "adamw .004": {"learning_rate": 0.004},
    "muon .006": {**MUON, "learning_rate": 0.002, "hidden_lr_multiplier": 3.0},
    "muon .012": {**MUON, "learning_rate": 0.002, "hidden_lr_multiplier": 6.0},
    "record": MUON,
    "lamb": {"optimizer": "lamb", "learning_rate": 0.01},
    "2 of 192": {"model": size(2, 192)},
    "4 of 128": {"model": size(4, 128)},
    "4 of 192": {"model": size(4, 192)},
    "2 of 256": {"model": size(2, 256)},
    "4 of 256": {"model": size(4, 256)},
    "rate .0025": {"learning_rate": 0.0025},
    "rate .0016": {"learning_rate": 0.0016},
    "batch 8": {"global_batch": 8, "learning_rate": 0.001},
    "batch 64": {"global_batch": 64, "learning_rate": 0.003},
    "growing batch": {"initial_batch": 8, "batch_ramp_steps": 600},
    "causal first": {"first": {"share": 0.2, "objectives": ["clm"], "final_mask_rate": None}},
    "causal .4": {"first": {"share": 0.4, "objectives": ["clm"], "final_mask_rate": None}},
    "mntp": {"objectives": ["mntp"]},
    "falling mask rate": {
        "dataset": {"mask_rate": 0.3}, "dynamic_masking": True, "final_mask_rate": 0.15,
    },
    "masks from 40 %": {
        "dataset": {"mask_rate": 0.4}, "dynamic_masking": True, "final_mask_rate": 0.15,
    },
    "masks from 50 %": {
        "dataset": {"mask_rate": 0.5}, "dynamic_masking": True, "final_mask_rate": 0.15,
    },
    "values": {"model": {"preset": "modern-values-tiny"}},
    "whole-word masks": {"dataset": {"masking": "whole-word"}},
    "late decay": {"schedule": "wsd", "decay_share": 0.4},
    "skips": {},
    "skips from 1": {},
    "first states": {},
    "query norm": {},
    "normuon": {},
    "polar express": {},
    "cautious decay": {"weight_decay": 0.1},
    "hyperball": {},
}  # fmt: skip
PATCHED = (
    "skips", "skips from 1", "first states", "query norm", "normuon", "polar express",
    "cautious decay", "hyperball",
)  # fmt: skip


def section(name: str) -> dict[str, Any]:
    """What `name` trains with: each idea's own values over the base, a part of the model over the
    base's model.
    """
    values = copy.deepcopy(BASE)
    for part in name.split(" + "):
        idea = copy.deepcopy(IDEAS[part])
        values["model"] |= idea.pop("model", {})
        values |= idea
    return values


def sections(name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """A run's sections: a dataset if the idea has its own, one phase or two, and the score."""
    data = options.data.resolve()
    values = {**section(name), "seed": seed, **parse(options.set, "global_batch=16")}
    values["dataset"], own = str(data / "dataset"), values.pop("dataset", None)
    run: dict[str, Any] = {}
    if own is not None:
        fixed = dict(read_manifest(str(data / "dataset")).config)
        inputs = {role: str(data / role) for role in ("corpus", "vocab")}
        run["dataset"] = {**fixed, **inputs, "mask_copies": 1, **own}
        values["dataset"] = "dataset"
    first = values.pop("first", None)
    if first is None:
        run["pretrain"] = {**values, **duration(1.0, options)}
    else:  # one schedule over both phases, which a time cannot have
        whole = {"schedule_steps": options.steps} if options.steps else {}
        constant = {} if options.steps else {"schedule": "constant"}
        share = first.pop("share")
        run["pretrain"] = {**values, **first, **whole, **constant, **duration(share, options)}
        last = {**values, **whole, **duration(1 - share, options)}
        run["pretrain@last"] = {**last, "continue": "pretrain"}
    run["perplexity"] = {"dataset": str(data / "dataset"), "rows": 100_000, "precision": "fp32"}
    return run


def duration(share: float, options: argparse.Namespace) -> dict[str, Any]:
    if options.steps:
        return {"steps": round(share * options.steps)}
    return {"max_time": f"{round(60 * share * options.minutes)}s"}


def trained(name: str, seed: int, options: argparse.Namespace) -> tuple[float, float]:
    """The held-out loss and the tokens/s of one run; trained if it is not there."""
    label = re.sub("[^a-z0-9]+", "-", name)
    run = options.out / "runs" / f"{label}-{seed}"
    if not is_artifact(str(run / "perplexity")):
        config = options.out / f"{run.name}.yaml"
        config.parent.mkdir(parents=True, exist_ok=True)
        threads = {"threads": options.threads, "oversubscribe": True, "compile": False}
        content = {"name": run.name, **sections(name, seed, options), "run": threads}
        config.write_text(yaml.safe_dump(content, sort_keys=False))
        patched = [part for part in name.split(" + ") if part in PATCHED]
        if patched and not hasattr(embeddings, "IDEA"):
            raise SystemExit(f"{name} needs `git apply benchmarks/speedrun.patch`")
        command = [sys.executable, "-m", "cloze", "run", config.name, "--no-prefect"]
        own = {"IDEA": ",".join(patched), "CLOZE_RUNS_DIR": str(options.out.resolve() / "runs")}
        done = subprocess.run(
            command,
            cwd=options.out,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{name}: {done.stderr.strip() or done.stdout.strip()}")
    score = read_manifest(str(run / "perplexity")).summary["metrics"]["heldout_loss"]
    last = run / ("pretrain@last" if (run / "pretrain@last").exists() else "pretrain")
    return score, read_manifest(str(last)).summary["tokens_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="of cloze run speedrun")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", default=",".join(IDEAS), help="ideas, separated by commas")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", nargs="*", default=(), metavar="KEY=VALUE", help="of pretrain")
    parser.add_argument("--out", type=Path, default=Path("runs/ideas"))
    options = parser.parse_args()
    names = options.only.split(",")
    for part in [part for name in names for part in name.split(" + ") if part not in IDEAS]:
        parser.error(f"there is no idea {part!r}; {did_you_mean(part, IDEAS)}")
    print(
        "| idea | held-out loss, by seed | beside the first row | p | tokens/s |\n|---|---|---|---|---|"
    )
    first: list[float] = []
    for name in names:
        rows = [trained(name, int(seed), options) for seed in options.seeds.split(",")]
        losses, speed = [loss for loss, _ in rows], fmean(speed for _, speed in rows)
        first = first or losses
        spread = f"± {stdev(losses):.3f}" if len(losses) > 1 else ""
        seeds = ", ".join(f"{loss:.3f}" for loss in losses)
        p = ttest_ind(losses, first, equal_var=False, alternative="less").pvalue
        print(
            f"| {name} | {fmean(losses):.3f} {spread}: {seeds} "
            f"| {fmean(losses) - fmean(first):+.3f} | {p:.3f} | {speed:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
