"""Lines per second of `cloze classify` and `cloze embed`, beside transformers' pipeline.

    python -m benchmarks.verbs --text FILE --vocabulary FILE [--lines 20000] [--threads 1]
    [--rounds 2] [--other DIR]

A model as large as BERT-mini with random weights is exported, and both programs read the same file
of lines in fp32, in processes of their own with the same number of threads: `cloze` as the command,
transformers as `pipeline(...)` over a generator in batches of 32, truncating as Cloze does. The
whole command counts, with all of its processes; a run of 64 lines is subtracted, so that the rate
is that of a long file. `--other` names another checkout of Cloze, whose command runs in the same
rounds. Each round runs every variant once, in turn; the best round counts. CPU seconds are printed
beside seconds, because they can be compared on a machine with other work.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

START = 64  # lines of the run that measures start and loading
LENGTH = 128  # maximum tokens per line

THEIRS = """
import json, sys
import torch
torch.set_num_threads({threads})
from transformers import AutoTokenizer, pipeline
task, path, texts, out = sys.argv[1:]
pieces = AutoTokenizer.from_pretrained(path, model_max_length={length})
lines = (line.rstrip("\\n") for line in open(texts))
with open(out, "w") as target:
    if task == "classify":
        answer = pipeline("text-classification", path, tokenizer=pieces, top_k=None)
        for found in answer(lines, batch_size=32, truncation=True):
            target.write(json.dumps(found) + "\\n")
    else:
        answer = pipeline("feature-extraction", path, tokenizer=pieces, return_tensors=True,
                          tokenize_kwargs=dict(truncation=True))
        for found in answer(lines, batch_size=1):
            target.write(json.dumps(found[0].mean(dim=0).tolist()) + "\\n")
"""


class Seconds(NamedTuple):
    """Duration of a command, and CPU time of its processes."""

    wall: float
    cpu: float


def write_models(base: Path, vocabulary: str) -> tuple[str, str]:
    """Write a classifier of random weights, and its export."""
    import torch

    from cloze.model import checkpoint
    from cloze.model.families.models import new_model
    from cloze.model.families.registry import parse_model
    from cloze.model.hub.write import write_directory
    from cloze.pipeline import tokenizer

    torch.manual_seed(1)
    pieces = tokenizer.load(vocabulary)
    pieces.save(str(base / "tokenizer"))
    config = parse_model(
        {
            "family": "bert", "vocab_size": pieces.vocab_size, "hidden_size": 256,
            "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024,
        }
    )  # fmt: skip
    state = {
        name: tensor
        for name, tensor in new_model(config).state_dict().items()
        if name.startswith(("encoder.", "pooler."))
    }
    state |= {"classifier.weight": torch.randn(2, 256), "classifier.bias": torch.randn(2)}
    path = str(base / "checkpoint")
    checkpoint.save_weights(
        path, model=config, state=state, tokenizer=str(base / "tokenizer"),
        heads={"classifier": {"num_labels": 2}},
        task={"name": "sst2", "labels": ["negative", "positive"], "max_length": LENGTH},
    )  # fmt: skip
    checkpoint.finalize(path)
    write_directory(checkpoint.load(path), str(base / "export"))
    return path, str(base / "export")


def lines_of(path: str, count: int) -> list[str]:
    """Return `count` lines with words, repeated if the file has fewer."""
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    return list(itertools.islice(itertools.cycle([line for line in lines if line]), count))


def measure(command: list[str], threads: int, python_path: str) -> Seconds:
    """Run a command; return its seconds, and the CPU seconds of all of its processes."""
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": python_path,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Seconds(time.perf_counter() - begin, cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", required=True)
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--lines", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--other")
    options = parser.parse_args()
    here = str(Path(__file__).parents[1])
    with tempfile.TemporaryDirectory(prefix="cloze-") as directory:
        base = Path(directory)
        ours, theirs = write_models(base, options.vocabulary)
        for name, count in (("all", options.lines), ("start", START)):
            (base / name).write_text("\n".join(lines_of(options.text, count)) + "\n")
        script = THEIRS.format(threads=options.threads, length=LENGTH)
        for task in ("classify", "embed"):
            variants = {
                "cloze": [sys.executable, "-m", "cloze", task, ours, "--out", str(base / "out")],
                "transformers": [sys.executable, "-c", script, task, theirs],
            }
            checkouts = {"cloze": here, "transformers": here}
            if options.other:
                variants["other"], checkouts["other"] = variants["cloze"], options.other
            best: dict[tuple[str, str], Seconds] = {}
            for _, (name, command), texts in itertools.product(
                range(options.rounds), variants.items(), ("all", "start")
            ):
                file = str(base / texts)
                end = [file, str(base / "out")] if name == "transformers" else ["--file", file]
                root = checkouts[name]
                took = measure([*command, *end], options.threads, f"{root}/src:{root}")
                best[name, texts] = Seconds(*map(min, took, best.get((name, texts), took)))
            for name in variants:
                print(line_of(task, name, best, options.lines - START), flush=True)


def line_of(task: str, name: str, best: dict[tuple[str, str], Seconds], lines: int) -> str:
    """Return lines per second and per CPU second, and how many times as many `cloze` has."""

    def rate(variant: str, field: int) -> float:
        return lines / (best[variant, "all"][field] - best[variant, "start"][field])

    wall, cpu = rate(name, 0), rate(name, 1)
    return (
        f"{task:<9}{name:<13}{wall:8,.0f} lines/s {rate('cloze', 0) / wall:5.2f}"
        f"{cpu:8,.0f} lines/CPU s {rate('cloze', 1) / cpu:5.2f}"
        f"   start {best[name, 'start'].wall:.1f} s, {best[name, 'start'].cpu:.1f} CPU s"
    )


if __name__ == "__main__":
    main()
