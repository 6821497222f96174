"""Logits over a vocabulary in chunks beside whole ones: the memory that a training step takes, and
how fast it is.

    python -m benchmarks.logits [--model ltr-tiny] [--changes JSON] [--batch 32] [--length 128]
    [--only bf16] [--threads 2] [--rounds 5]

A step is forward and backward of the model and its objective (left to right: every position is
predicted), without the optimizer. Each variant runs in a process of its own, in alternation; speeds
are medians over the rounds of CPU time, so they can be taken beside other work, and peaks what the
steps take above what the process took before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import torch

from benchmarks.model import reset_peak_memory
from benchmarks.model_steps import make_batches
from cloze.core.processes import peak_memory
from cloze.flows.launch.local import RANK_ENVIRONMENT
from cloze.model import hardware
from cloze.model.families.models import new_model
from cloze.model.families.registry import model_config
from cloze.model.train.evaluate.scoring import PretrainModule

BERT_MINI = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}


def one(options: argparse.Namespace) -> dict[str, float]:
    """Seconds of CPU time a step, and bytes."""
    torch.manual_seed(0)
    config = model_config(
        {"preset": options.model, **json.loads(options.changes)}, vocab_size=options.vocab_size
    )
    if options.variant == "whole":
        hardware.WHOLE_CHUNKS = 1 << 40
    names = config.default_objectives(None)
    scoring = PretrainModule(new_model(config), names, options.only).train()
    batch = make_batches(config, 1, options.batch, options.length, "full", "cpu")[0]
    counts = torch.tensor(scoring.count_targets(batch), dtype=torch.float32)

    def step() -> float:
        torch.manual_seed(0)
        loss, _ = scoring(batch, counts)
        loss.backward()
        for parameter in scoring.parameters():
            parameter.grad = None
        return float(loss.detach())

    for parameter in scoring.parameters():
        parameter.grad = None
    reset_peak_memory()
    before = peak_memory()
    loss = step()
    step()
    peak = peak_memory() - before
    began = time.process_time()
    for _ in range(options.steps):
        step()
    return {
        "seconds": (time.process_time() - began) / options.steps,
        "bytes": float(peak),
        "loss": loss,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="ltr-tiny")
    parser.add_argument(
        "--changes", default=json.dumps(BERT_MINI), help="of the model's config, as JSON"
    )
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--only", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.variant:
        print(json.dumps(one(options)))
        return
    print(
        f"{platform.processor() or platform.machine()}, {options.threads} threads, torch "
        f"{torch.__version__}"
    )
    print(
        f"{options.model}, V {options.vocab_size:,}, {options.batch} x {options.length}, "
        f"{options.only}"
    )
    found: dict[str, list[dict[str, float]]] = {"whole": [], "chunks": []}
    for _ in range(options.rounds):
        for name, runs in found.items():
            command = [sys.executable, "-m", "benchmarks.logits", *sys.argv[1:], "--variant", name]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env={**RANK_ENVIRONMENT, **os.environ},
            )
            if done.returncode:
                sys.exit(f"{name} failed:\n{done.stderr[-2000:]}")
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    base = statistics.median(run["seconds"] for run in found["whole"])
    for name, runs in found.items():
        seconds, peak = (
            statistics.median(run[key] for run in runs) for key in ("seconds", "bytes")
        )
        print(
            f"{name:8} {seconds:7.2f} s  {base / seconds:5.2f} x  {peak / 2**20:7.0f} MiB  loss "
            f"{runs[0]['loss']:.6f}"
        )


if __name__ == "__main__":
    main()
