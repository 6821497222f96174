"""Fine-tuning as a user does it, beside transformers' own Trainer: SST-2 on a BERT-mini, whole
commands and the training in them.

    python -m benchmarks.finetune --data SST-2 --vocab bert_base_uncased_vocab.txt [--examples 6400]
    [--rounds 2] python -m benchmarks.finetune --data SST-2 --checkpoint W/pretrain python -m
    benchmarks.finetune --data SST-2 --checkpoint W/pretrain --scores 3 --examples 8000 --epochs 2

Same weights, examples, batch size and number of steps. In each round every variant once, in
alternation, each a process of its own; medians over the rounds.

    theirs, fp32 and bf16   the script that everybody writes: datasets, a fast tokenizer,
    DataCollatorWithPadding, Trainer as it comes ours                    `cloze finetune`, as it
    comes: the precision that the machine is good at ours, fp32              the same with
    --precision fp32

`command` is the time of the whole process: start, reading, tokenizing, training, scoring the dev
split, saving; `cpu` what it and its children took of the processors, which is the figure to look at
where other work is running. `training` are the examples a second of the steps alone, from the end
of the first one to the end of the last one, without scoring and saving. `peak` is the most memory
that the command and all its processes had at once (their resident sets added up).

With --scores N both are fine-tuned with N seeds instead, and the accuracies on the dev split are
compared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil
import torch

from cloze.model import checkpoint
from cloze.model.families.models import new_model
from cloze.model.families.registry import model_config
from cloze.model.hub.write import write_directory
from cloze.model.tasks.finetune.stage import FinetuneConfig
from cloze.model.train.precision import native_bf16
from cloze.pipeline import tokenizer

CLOZE = "from cloze.flows.cli import entry; entry()"
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One way to fine-tune."""

    theirs: bool
    precision: str  # auto: what ours takes by itself

    @property
    def name(self) -> str:
        return " ".join(
            [
                "theirs" if self.theirs else "ours",
                *([] if self.precision == "auto" else [self.precision]),
            ]
        )


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one run took.

    Attributes:
        command: seconds of the whole process.
        cpu: seconds of processor time that it and its children took.
        training: examples a second of the steps.
        peak: bytes of all its processes together.
        accuracy: on the dev split.
    """

    command: float
    cpu: float
    training: float
    peak: int
    accuracy: float


def prepare(options: argparse.Namespace, work: Path) -> tuple[Path, Path]:
    """The checkpoint to begin with, ours and as a Hugging Face directory, and below `work` the
    data.
    """
    data = work / "data"
    data.mkdir()
    header, *lines = (Path(options.data) / "train.tsv").read_text(encoding="utf-8").splitlines()
    random.Random(0).shuffle(lines)
    (data / "train.tsv").write_text(
        "\n".join([header, *lines[: options.examples], ""]), encoding="utf-8"
    )
    shutil.copy(Path(options.data) / "dev.tsv", data / "dev.tsv")
    ours = Path(options.checkpoint) if options.checkpoint else work / "begin"
    if not options.checkpoint:
        pieces = tokenizer.load(options.vocab)
        pieces.save(str(work / "pieces"))
        shape = model_config(
            options.model, vocab_size=pieces.vocab_size, pad_token_id=pieces.special.pad
        )
        torch.manual_seed(0)
        checkpoint.save_weights(
            str(ours),
            model=shape,
            state=new_model(shape).state_dict(),
            tokenizer=str(work / "pieces"),
            heads=shape.heads,
        )
        checkpoint.finalize(str(ours))
    theirs = work / "begin-hf"
    write_directory(checkpoint.load(str(ours)), str(theirs))
    return ours, theirs


def command(
    variant: Variant, options: argparse.Namespace, work: Path, seed: int, out: Path
) -> list[str]:
    """What a user would type."""
    if variant.theirs:
        settings = {
            "theirs": variant.precision,
            "work": work,
            "out": out,
            "seed": seed,
            "epochs": options.epochs,
        }
        settings |= {"batch": options.batch, "learning_rate": options.learning_rate}
        named = itertools.chain.from_iterable(
            (f"--{name.replace('_', '-')}", str(value)) for name, value in settings.items()
        )
        return [sys.executable, "-m", "benchmarks.finetune", *named]
    settings = {
        "checkpoint": options.begin,
        "task": "sst2",
        "data": work / "data",
        "out": out,
        "seed": seed,
    }
    settings |= {
        "epochs": options.epochs,
        "global-batch": options.batch,
        "learning-rate": options.learning_rate,
    }
    settings |= {"precision": variant.precision, "threads": options.threads}
    named = itertools.chain.from_iterable(
        (f"--{name}", str(value)) for name, value in settings.items()
    )
    return [sys.executable, "-c", CLOZE, "finetune", *named, "--no-baselines", "--json"]


def run(variant: Variant, options: argparse.Namespace, work: Path, seed: int) -> Found:
    """Fine-tune once, in a process of its own."""
    out = work / "out"
    shutil.rmtree(out, ignore_errors=True)
    environment = {
        **os.environ,
        "CLOZE_SLOTS_DIR": str(work / "slots"),
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(work / "cache"),
        "OMP_NUM_THREADS": str(options.threads),
    }
    began, before = time.perf_counter(), _children_cpu()
    process = subprocess.Popen(
        command(variant, options, work, seed, out),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    peak = _Peak(process.pid)
    output, errors = process.communicate()
    seconds, cpu = time.perf_counter() - began, _children_cpu() - before
    shutil.rmtree(work / "cache", ignore_errors=True)  # a user tokenizes once; here every run does
    if process.returncode:
        sys.exit(f"{variant.name} failed:\n{output[-1000:]}\n{errors[-2000:]}")
    line = json.loads(output.strip().splitlines()[-1])
    if variant.theirs:
        return Found(
            command=seconds,
            cpu=cpu,
            training=line["training"],
            peak=peak.found(),
            accuracy=line["accuracy"],
        )
    summary = json.loads((out / "manifest.json").read_text())["summary"]
    pieces = json.loads((out / "manifest.json").read_text())["tokens"]
    training = summary["tokens_per_second"] * summary["examples"]["train"] / pieces
    return Found(
        command=seconds,
        cpu=cpu,
        training=training,
        peak=peak.found(),
        accuracy=summary["metrics"]["accuracy"],
    )


def _children_cpu() -> float:
    """Seconds of processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Peak:
    """Looks ten times a second at the resident sets of a process and its children."""

    def __init__(self, pid: int) -> None:
        self._process, self._most, self._ended = psutil.Process(pid), 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            total = 0
            try:
                for process in [self._process, *self._process.children(recursive=True)]:
                    total += process.memory_info().rss
            except psutil.Error:
                continue
            self._most = max(self._most, total)

    def found(self) -> int:
        self._ended.set()
        self._thread.join()
        return self._most


def theirs(options: argparse.Namespace) -> None:
    """transformers' Trainer on the files below `work`; prints one line of JSON."""
    import datasets
    import numpy as np
    import transformers

    work = Path(options.work)
    pieces = transformers.AutoTokenizer.from_pretrained(work / "begin-hf")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        work / "begin-hf", num_labels=2
    )
    files = {split: str(work / "data" / f"{split}.tsv") for split in ("train", "dev")}
    found = datasets.load_dataset("csv", data_files=files, delimiter="\t", quoting=3)
    found = found.map(
        lambda rows: pieces(rows["sentence"], truncation=True, max_length=128), batched=True
    )

    class Clock(transformers.TrainerCallback):
        ends: list[float] = []  # noqa: RUF012

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.perf_counter())

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=options.out,
            num_train_epochs=options.epochs,
            per_device_train_batch_size=options.batch,
            per_device_eval_batch_size=64,
            learning_rate=options.learning_rate,
            warmup_steps=0.1,
            weight_decay=0.01,
            seed=options.seed,
            bf16=options.theirs == "bf16",
            use_cpu=True,
        ),
        train_dataset=found["train"],
        eval_dataset=found["dev"],
        processing_class=pieces,
        data_collator=transformers.DataCollatorWithPadding(pieces),
        compute_metrics=lambda prediction: {
            "accuracy": float(
                (np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean()
            )
        },
        callbacks=[Clock()],
    )
    trainer.train()
    accuracy = trainer.evaluate()["eval_accuracy"]
    trainer.save_model(options.out)
    ends = Clock.ends
    examples = options.epochs * len(found["train"]) - options.batch
    print(json.dumps({"training": examples / (ends[-1] - ends[0]), "accuracy": accuracy}))


def compare_speed(options: argparse.Namespace, variants: list[Variant], work: Path) -> None:
    """Print a line a variant: medians over the rounds."""
    found: dict[str, list[Found]] = {variant.name: [] for variant in variants}
    for _, variant in itertools.product(range(options.rounds), variants):
        found[variant.name].append(run(variant, options, work, seed=1))
        print(
            f"  {variant.name}: {found[variant.name][-1]}, load {os.getloadavg()[0]:.1f}",
            file=sys.stderr,
        )
    base, all_medians = variants[0].name, {name: medians(runs) for name, runs in found.items()}
    for name, own in all_medians.items():
        ratios = {figure: all_medians[base][figure] / own[figure] for figure in ("command", "cpu")}
        print(
            f"{name:12} command {own['command']:6.1f} s {ratios['command']:5.2f} x   cpu "
            f"{own['cpu']:6.1f} s {ratios['cpu']:5.2f} x"
            f"   training {own['training']:6,.0f} examples/s "
            f"{own['training'] / all_medians[base]['training']:5.2f} x"
            f"   peak {own['peak'] / 2**30:.2f} GiB   accuracy {own['accuracy']:.3f}"
        )


def medians(runs: list[Found]) -> dict[str, float]:
    """Of each figure its median."""
    return {
        field.name: statistics.median(getattr(run, field.name) for run in runs)
        for field in fields(Found)
    }


def compare_scores(options: argparse.Namespace, variants: list[Variant], work: Path) -> None:
    """Print mean and deviation of the accuracy over the seeds."""
    for variant in variants:
        scores = [
            run(variant, options, work, seed).accuracy for seed in range(1, options.scores + 1)
        ]
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        print(
            f"{variant.name:12} {statistics.mean(scores):.4f} ± {spread:.4f}   "
            f"{' '.join(f'{score:.4f}' for score in scores)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="a directory with SST-2's train.tsv and dev.tsv")
    parser.add_argument("--checkpoint", help="to begin with; without it random weights")
    parser.add_argument("--vocab", help="without a checkpoint: the vocabulary")
    parser.add_argument("--model", default="bert-mini", help="without a checkpoint: the preset")
    parser.add_argument("--examples", type=int, default=6400)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--learning-rate", type=float, default=FinetuneConfig().peak_learning_rate(1)
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", help="variants, such as 'ours fp32'")
    parser.add_argument(
        "--scores", type=int, default=0, help="compare the scores of this many seeds"
    )
    for name in ("--theirs", "--work", "--out"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.theirs:
        theirs(options)
        return
    if not options.data or not (options.checkpoint or options.vocab):
        parser.error("name --data, and --checkpoint or --vocab")
    bf16 = native_bf16(torch.device("cpu"))
    variants = [
        Variant(theirs=True, precision="fp32"),
        *([Variant(theirs=True, precision="bf16")] if bf16 else []),
    ]
    variants += [
        Variant(theirs=False, precision="auto"),
        *([Variant(theirs=False, precision="fp32")] if bf16 else []),
    ]
    variants = [variant for variant in variants if not options.only or variant.name in options.only]
    machine = platform.processor() or platform.machine()
    load = os.getloadavg()[0]
    print(f"{machine}, {options.threads} threads, torch {torch.__version__}, load {load:.1f}")
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        options.begin, exported = prepare(options, work)
        print(
            f"{options.examples} examples x {options.epochs}, {options.batch} a step; "
            f"{exported.name}"
        )
        (compare_scores if options.scores else compare_speed)(options, variants, work)


if __name__ == "__main__":
    main()
