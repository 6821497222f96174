"""Steps that a whole command makes in five minutes: `cloze pretrain` beside transformers' Trainer.

    python -m benchmarks.whole_command --vocab vocab.txt [--precision fp32] [--rounds 1]
    [--ours 60,200] [--theirs 5,20] [--compile]

BERT-mini, 32 full rows of 128 tokens a step, masked language modelling, one thread, random tokens
(speed does not depend on what they are). Each command runs with two numbers of steps, the programs
in alternation; a line through both gives the seconds of start and end, and of a step. Processor time
of all processes of a command is counted, so a machine in use changes little; wall clock is shown
beside it. `ONEDNN_MAX_CPU_ISA=AVX512_CORE` with `--precision fp32` stands for a CPU without bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.time_to_loss import BATCH, CLOZE, LENGTH
from tests.model.datasets import write_dataset

SECONDS = 300.0
ROWS = 2048


def timed(command: Sequence[object]) -> tuple[float, float]:
    """Processor seconds and wall-clock seconds of a command and the processes it waits for."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:  # each command compiles anew
        environment["TORCHINDUCTOR_CACHE_DIR"] = cache
        done = subprocess.run(
            [sys.executable, *map(str, command)], env=environment, capture_output=True, check=False
        )
    if done.returncode:
        sys.exit(f"{command} failed:\n{done.stderr[-2000:].decode()}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return used, time.perf_counter() - began


def commands(options: argparse.Namespace, work: Path) -> dict[str, list[object]]:
    """Both commands without steps and output."""
    compiled = "--compile" if options.compile else "--no-compile"
    words = {"--model": "bert-mini", "--global-batch": BATCH, "--learning-rate": 5e-4}
    words |= {"--precision": options.precision, "--threads": 1}
    words |= {"--dataset": work / "dataset", "--objective": "mlm", "--set": "heldout_rows=64"}
    arguments = ["--train", options.precision, "--work", work, "--rates", "5e-4", "--threads", 1]
    return {
        "ours": [
            "-c",
            CLOZE,
            "pretrain",
            compiled,
            *(word for pair in words.items() for word in pair),
        ],
        "theirs": ["-m", "benchmarks.time_to_loss", *arguments],
    }


def prepare(vocab: str, work: Path) -> None:
    """Random rows of one shape for both."""
    (work / "settings.json").write_text(json.dumps({"vocab": str(Path(vocab).resolve())}))
    size = len(Path(vocab).read_text(encoding="utf-8").splitlines())
    rows = np.random.default_rng(0).integers(1000, size, (ROWS, LENGTH))
    np.save(work / "train.npy", rows)
    write_dataset(work / "dataset", rows=ROWS, length=LENGTH, vocab_size=size, full=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab", required=True, help="a vocab.txt of 30,522 lines")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ours", default="60,200", help="two numbers of steps")
    parser.add_argument("--theirs", default="5,20", help="two numbers of steps")
    parser.add_argument("--compile", action="store_true", help="ours compiled")
    options = parser.parse_args()
    print(f"{options.precision}, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        prepare(options.vocab, work)
        found: dict[str, dict[int, list[tuple[float, float]]]] = {"ours": {}, "theirs": {}}
        for number in range(options.rounds):
            for place in (0, 1):
                for name, command in commands(options, work).items():
                    steps = int(getattr(options, name).split(",")[place])
                    out = work / f"{name}-{steps}-{number}"
                    taken = timed([*command, "--steps", steps, "--out", out])
                    found[name].setdefault(steps, []).append(taken)
                    print(
                        f"{name} {steps} steps: {taken[0]:.1f} s, {taken[1]:.1f} by wall clock",
                        flush=True,
                    )
    made = {}
    for name, times in found.items():
        (few, short), (many, long) = ((n, min(t)[0]) for n, t in sorted(times.items()))
        step = (long - short) / (many - few)
        made[name] = (SECONDS - (short - few * step)) / step
        print(
            f"{name}: {short - few * step:.1f} s and {step:.3f} s a step, {made[name]:.0f} in 5 min"
        )
    print(f"{made['ours'] / made['theirs']:.2f} x; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
