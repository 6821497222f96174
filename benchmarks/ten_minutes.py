"""The ten-minute encoder: the lowest held-out MLM loss that a recipe comes to in `--max-time 10m`,
one row a recipe.

    python -m benchmarks.ten_minutes --dataset W/dataset [--minutes 10] [--threads 2] [--only
    NAME,…] [--out runs/ten-minutes]

Each row is `cloze pretrain` as a user types it, from the first weights to the last checkpoint, with
what `RECIPES` says beside `BASE`. All score the same held-out rows and the same masks: those of the
dataset. A row that is there already is not trained again, so the table grows by calls.
docs/explanation/speedrun.md is the record book.
"""

from __future__ import annotations

import argparse
import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from cloze.core.artifacts.artifact import read_manifest
from cloze.core.errors import did_you_mean

BASE: dict[str, Any] = {
    "model": {
        "preset": "modern-tiny",
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 768,
        "max_position_embeddings": 128,
    },
    "objectives": ["mlm"],
    "global_batch": 32,
    "learning_rate": 0.002,
    "betas": [0.9, 0.98],
    "warmup_share": 0.05,
    "schedule": "linear",
    "heldout_rows": 500,
}
"""What a row starts from: a narrow pre-norm encoder on single sequences, which leaves the unigram
plateau soonest (docs/decisions/experiments.md).
"""

RECIPES: dict[str, dict[str, Any]] = {
    "base": {},
    "bert": {
        "model": {
            "preset": "bert-mini",
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "max_position_embeddings": 128,
        }
    },
    "batch 16": {"global_batch": 16},
    "batch 8": {"global_batch": 8, "learning_rate": 0.001},
    "batch 64": {"global_batch": 64, "learning_rate": 0.003},
    "batch 128": {"global_batch": 128, "learning_rate": 0.004},
    "batch 128 by lamb": {"global_batch": 128, "optimizer": "lamb", "learning_rate": 0.01},
    "batch 8 to 32": {"initial_batch": 8, "batch_ramp_steps": 600},
    "rate .001": {"learning_rate": 0.001},
    "rate .004": {"learning_rate": 0.004},
    "2 of 192": {
        "model": {
            "num_hidden_layers": 2,
            "hidden_size": 192,
            "intermediate_size": 576,
            "num_attention_heads": 3,
        }
    },
    "2 of 128": {
        "model": {
            "num_hidden_layers": 2,
            "hidden_size": 128,
            "intermediate_size": 384,
            "num_attention_heads": 2,
        }
    },
    "4 of 128": {"model": {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 2}},
    "4 of 192": {"model": {"hidden_size": 192, "intermediate_size": 576, "num_attention_heads": 3}},
    "rate .003": {"learning_rate": 0.003},
    "clip 5": {"grad_clip": 5.0},
    "causal first": {"first": {"share": 0.3, "objectives": ["clm"], "schedule": "constant"}},
    "causal half first": {"first": {"share": 0.5, "objectives": ["clm"], "schedule": "constant"}},
    "both ways first": {
        "first": {"share": 0.5, "objectives": ["clm", "mntp"], "schedule": "constant"}
    },
    "2 layers": {"model": {"num_hidden_layers": 2}},
    "6 layers of 192": {
        "model": {
            "num_hidden_layers": 6,
            "hidden_size": 192,
            "intermediate_size": 576,
            "num_attention_heads": 3,
        }
    },
    "8 layers of 256": {"model": {"num_hidden_layers": 8}},
    "4 layers of 384": {
        "model": {"hidden_size": 384, "intermediate_size": 1152, "num_attention_heads": 6}
    },
    "muon .02": {"optimizer": "muon", "learning_rate": 0.002, "hidden_lr_multiplier": 10.0},
    "muon .012": {"optimizer": "muon", "learning_rate": 0.002, "hidden_lr_multiplier": 6.0},
    "muon .006": {"optimizer": "muon", "learning_rate": 0.002, "hidden_lr_multiplier": 3.0},
    "muon 1.5": {"optimizer": "muon", "hidden_lr_multiplier": 1.5},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.01},
    "stable-adamw": {"optimizer": "stable-adamw"},
    "wsd": {"schedule": "wsd", "decay_share": 0.3},
    "one-cycle": {"schedule": "one-cycle"},
    "betas .9 .95": {"betas": [0.9, 0.95]},
    "weight decay .1": {"weight_decay": 0.1},
}


def section(name: str) -> dict[str, Any]:
    """What `name` trains with: a recipe's own values over the base, a part of the model over the
    base's model.
    """
    found = {**BASE}
    for part in name.split(" + "):
        recipe = copy.deepcopy(RECIPES[part])
        model = recipe.pop("model", {})
        found["model"] = model if "preset" in model else {**found["model"], **model}
        found |= recipe
    return found


def sections(name: str, seconds: float, dataset: str) -> dict[str, Any]:
    """A run's sections: one phase, or two that share the time, of which the last one predicts what
    is scored.
    """
    last = section(name)
    first = last.pop("first", None)
    if first is None:
        return {"pretrain": {"dataset": dataset, "max_time": f"{round(seconds)}s", **last}}
    share = first.pop("share")
    return {
        "pretrain": {"dataset": dataset, **last, **first, "max_time": f"{round(share * seconds)}s"},
        "pretrain@last": {
            **last,
            "continue": "pretrain",
            "max_time": f"{round((1 - share) * seconds)}s",
        },
    }


def trained(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """The summary of the training below `--out`; trained if it is not there."""
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    run = f"{options.minutes:g}m-{options.threads}t-{re.sub('[^a-z0-9]+', '-', name)}"
    config = out / f"{run}.yaml"
    values = sections(name, 60 * options.minutes, str(Path(options.dataset).resolve()))
    config.write_text(
        yaml.safe_dump(
            {"name": run, **values, "run": {"threads": options.threads, "oversubscribe": True}},
            sort_keys=False,
        )
    )
    command = [
        sys.executable,
        "-c",
        "from cloze.flows.cli import entry; entry()",
        "run",
        config.name,
        "--no-prefect",
    ]
    completed = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise SystemExit(f"{name}: {completed.stderr.strip() or completed.stdout.strip()}")
    return dict(read_manifest(str(out / "runs" / run / list(values)[-1])).summary)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", required=True, help="a dataset artifact of single sequences")
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="of each training, from its first weights to its checkpoint",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--only", help="names of recipes; several in one row with ' + '; by default all"
    )
    parser.add_argument("--out", default="runs/ten-minutes")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else list(RECIPES)
    for part in [part for name in names for part in name.split(" + ") if part not in RECIPES]:
        parser.error(f"there is no recipe {part!r}; {did_you_mean(part, RECIPES)}")
    print(
        "| recipe | parameters | steps | million tokens | tokens/s | held-out MLM | beside the "
        "first row |\n|---|---|---|---|---|---|---|"
    )
    first = None
    for name in names:
        found = trained(name, options)
        loss = found["heldout_loss"]
        first = loss if first is None else first
        print(
            f"| {name} | {found['parameters'] / 1e6:.1f}M | {found['steps']:,} | "
            f"{found['tokens'] / 1e6:.2f} | {found['tokens_per_second']:,.0f} "
            f"| {loss:.3f} | {loss - first:+.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
