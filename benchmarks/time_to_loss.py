"""Time to loss: how long ours takes to the held-out loss that transformers' Trainer reaches in ten
minutes.

    python -m benchmarks.time_to_loss --corpus W/corpus --vocab vocab.txt --work DIR [--minutes 10]
    [--rates 5e-4] [--theirs fp32,bf16]
        [--ours bert,bert-tuned] [--budgets 30,45,60,90] [--threads 2]

The same text, vocabulary and sizes (BERT-mini: 4 layers of 256) on the same machine, whole commands
timed. Theirs: BertForMaskedLM, blocks of 128 tokens as `run_mlm` makes them, its own collator, 32
rows a step, a linear schedule over the steps that fit; the best of `--rates`. Both read rows that
were made before. Ours tries each budget in turn, until it is no worse.

One script scores all: it opens what both have written with transformers, on the same held-out
blocks with the same masks (15 %, 80/10/10). What is there below `--work` is not made again, so
parts can be run one after another.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cloze.pipeline import tokenizer
from cloze.pipeline.corpus.files.shards import read_shard, texts

LENGTH, BATCH, SCORED = 128, 32, 400
CLOZE = "from cloze.flows.cli import entry; entry()"

OURS: dict[str, tuple[str, list[str]]] = {
    "bert": ("packed", ["--model", "bert-mini", "--learning-rate", "5e-4", "--global-batch", "32"]),
    "bert-tuned": (
        "packed",
        [
            "--model",
            "bert-mini",
            "--learning-rate",
            "2e-3",
            "--global-batch",
            "16",
            "--set",
            "betas=[0.9, 0.98]",
        ]
        + ["--set", "model.hidden_dropout=0", "--set", "model.attention_dropout=0"],
    ),
    "modern-tiny": (
        "packed",
        [
            "--model",
            "modern-tiny",
            "--learning-rate",
            "2e-3",
            "--global-batch",
            "32",
            "--set",
            "betas=[0.9, 0.98]",
        ],
    ),
}
"""A name, the recipe of its rows, and what else is typed: `bert` is theirs in every respect,
`bert-tuned` has a rate and batch for so short a training and no dropout, `modern-tiny` is another,
smaller model (2 layers of 128).
"""

Blocks = npt.NDArray[np.int64]


def blocks(corpus: str, vocab: str, split: str, most: int | None = None) -> Blocks:
    """Documents end to end, cut into rows of 126 pieces between [CLS] and [SEP]: int64 [N, 128]."""
    pieces = tokenizer.load(vocab)
    special, backend = pieces.special, pieces.backend
    found: list[int] = []
    for path in sorted(Path(corpus).glob("corpus-*.arrow")):
        table = read_shard(str(path))
        chosen = texts(table, table["split"].to_numpy(zero_copy_only=False) == split)
        ends = np.cumsum(chosen.counts)
        for start, end in zip(ends - chosen.counts, ends, strict=True):
            found += backend.encode(
                " ".join(chosen.sentences[start:end]), add_special_tokens=False
            ).ids
            if most is not None and len(found) >= most * (LENGTH - 2):
                break
    rows = np.array(found[: len(found) // (LENGTH - 2) * (LENGTH - 2)], np.int64).reshape(
        -1, LENGTH - 2
    )[:most]
    edge = np.ones((len(rows), 1), np.int64)
    return np.hstack([edge * special.cls, rows, edge * special.sep])


def prepare(options: argparse.Namespace, work: Path) -> None:
    """Their blocks and our datasets."""
    if not (work / "heldout.npy").exists():
        np.save(work / "train.npy", blocks(options.corpus, options.vocab, "train"))
        np.save(work / "heldout.npy", blocks(options.corpus, options.vocab, "heldout", SCORED))
    for kind in {OURS[name][0] for name in options.ours.split(",")}:
        recipe = ["--recipe", "roberta", *(["--pairing", "packed"] if kind == "packed" else [])]
        arguments = [
            "--corpus",
            options.corpus,
            "--tokenizer",
            options.vocab,
            "--length",
            LENGTH,
            "--mask-copies",
            4,
            *recipe,
        ]
        cloze("dataset", *arguments, "--out", work / f"dataset-{kind}")


def cloze(*words: object) -> float:
    """Run a command of ours; seconds."""
    began = time.perf_counter()
    completed = subprocess.run(
        [sys.executable, "-c", CLOZE, *map(str, words)], capture_output=True, text=True, check=False
    )
    if completed.returncode:
        sys.exit(f"cloze {words[0]} failed:\n{completed.stdout[-500:]}\n{completed.stderr[-2000:]}")
    return time.perf_counter() - began


def scored(directory: Path, work: Path) -> float:
    """Mean cross entropy of the model in a Hugging Face directory on the held-out blocks, nats."""
    import transformers

    special = tokenizer.load(json.loads((work / "settings.json").read_text())["vocab"]).special
    model = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
    rows = torch.from_numpy(np.load(work / "heldout.npy"))
    draws = torch.Generator().manual_seed(0)
    chance = torch.rand(rows.shape, generator=draws)
    chosen = (
        (torch.rand(rows.shape, generator=draws) < 0.15)
        & (rows != special.cls)
        & (rows != special.sep)
    )
    random = torch.randint(0, model.config.vocab_size, rows.shape, generator=draws)
    shown = torch.where(chosen & (chance < 0.8), torch.tensor(special.mask), rows)
    shown = torch.where(chosen & (chance >= 0.9), random, shown)
    total = 0.0
    with torch.no_grad():
        for at in range(0, len(rows), 20):
            logits = model(shown[at : at + 20]).logits[chosen[at : at + 20]].float()
            total += float(
                torch.nn.functional.cross_entropy(
                    logits, rows[at : at + 20][chosen[at : at + 20]], reduction="sum"
                )
            )
    return total / int(chosen.sum())


def train_theirs(options: argparse.Namespace) -> None:
    """transformers' Trainer on the blocks below `--work`, for the steps that fit."""
    import transformers

    work, out = Path(options.work), Path(options.out)
    torch.set_num_threads(options.threads)
    rows = np.load(work / "train.npy", mmap_mode="r")
    vocab = json.loads((work / "settings.json").read_text())["vocab"]
    pieces = transformers.BertTokenizer(vocab)
    shape = {
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
    }
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(pieces), **shape))

    class Rows(torch.utils.data.Dataset[dict[str, Any]]):
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, at: int) -> dict[str, Any]:
            return {"input_ids": rows[at].tolist()}

    def arguments(steps: int) -> transformers.TrainingArguments:
        return transformers.TrainingArguments(
            output_dir=str(out),
            max_steps=steps,
            per_device_train_batch_size=BATCH,
            learning_rate=float(options.rates),
            warmup_steps=0.1,
            weight_decay=0.01,
            bf16=options.train == "bf16",
            use_cpu=True,
            save_strategy="no",
            logging_steps=10,
            report_to=[],
        )

    def trainer(steps: int) -> transformers.Trainer:
        collator = transformers.DataCollatorForLanguageModeling(pieces)
        return transformers.Trainer(
            model=model, args=arguments(steps), train_dataset=Rows(), data_collator=collator
        )

    if options.steps == 0:  # how fast a step is
        trainer(3).train()
        began = time.perf_counter()
        trainer(10).train()
        print(json.dumps({"step": (time.perf_counter() - began) / 10}))
        return
    trainer(options.steps).train()
    model.save_pretrained(out)
    pieces.save_pretrained(out)


def theirs(precision: str, rate: str, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One training of theirs: its steps are those that fit into the minutes, whole command."""
    out = work / f"theirs-{precision}-{rate}"
    if (out / "found.json").exists():
        return dict(json.loads((out / "found.json").read_text()))

    def command(steps: int) -> list[str]:
        settings = {
            "train": precision,
            "steps": steps,
            "rates": rate,
            "work": work,
            "out": out,
            "threads": options.threads,
        }
        named = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        return [sys.executable, "-m", "benchmarks.time_to_loss", *named]

    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    output = subprocess.run(
        command(0), env=environment, capture_output=True, text=True, check=True
    ).stdout
    steps = int((60 * options.minutes - 15) / json.loads(output.strip().splitlines()[-1])["step"])
    began = time.perf_counter()
    subprocess.run(command(steps), env=environment, capture_output=True, check=True)
    found = {"seconds": time.perf_counter() - began, "steps": steps, "loss": scored(out, work)}
    (out / "found.json").write_text(json.dumps(found))
    return found


def ours(name: str, budget: int, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """One training of ours."""
    kind, words = OURS[name]
    out = work / f"ours-{name}-{budget}"
    if (out / "found.json").exists():
        return dict(json.loads((out / "found.json").read_text()))
    shutil.rmtree(
        out, ignore_errors=True
    )  # of a try that was cut off: what it made would take no time now
    arguments = [
        "--dataset",
        work / f"dataset-{kind}",
        "--max-time",
        f"{budget}s",
        "--threads",
        options.threads,
        "--set",
        "heldout_rows=64",
    ]
    seconds = cloze(
        "pretrain", *arguments, *words, "--set", "objectives=[mlm]", "--out", out / "pretrain"
    )
    cloze("export", out / "pretrain", "--out", out / "hf")
    steps = json.loads((out / "pretrain" / "manifest.json").read_text())["summary"]["steps"]
    found = {"seconds": seconds, "steps": steps, "loss": scored(out / "hf", work)}
    (out / "found.json").write_text(json.dumps(found))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", help="a corpus artifact")
    parser.add_argument("--vocab", help="a vocab.txt")
    parser.add_argument("--work", required=True, help="a directory for all that is made")
    parser.add_argument("--minutes", type=float, default=10.0, help="of each training of theirs")
    parser.add_argument("--rates", default="5e-4", help="learning rates of theirs")
    parser.add_argument("--theirs", default="fp32,bf16", help="precisions of theirs")
    parser.add_argument("--ours", default=",".join(OURS))
    parser.add_argument("--budgets", default="30,45,60,90,120,180", help="seconds that ours tries")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    for hidden in ("--train", "--out"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train_theirs(options)
        return
    if not options.corpus or not options.vocab:
        parser.error("name --corpus and --vocab")
    work = Path(options.work).resolve()
    work.mkdir(parents=True, exist_ok=True)
    (work / "settings.json").write_text(json.dumps({"vocab": str(Path(options.vocab).resolve())}))
    prepare(options, work)
    machine = platform.processor() or platform.machine()
    print(
        f"{machine}, {options.threads} threads, torch {torch.__version__}, load "
        f"{os.getloadavg()[0]:.1f}"
    )
    print(
        "| who | steps | command | held-out MLM | time to theirs |\n|---|---|---|---|---|",
        flush=True,
    )
    for precision in options.theirs.split(","):
        tried = {rate: theirs(precision, rate, options, work) for rate in options.rates.split(",")}
        rate, best = min(tried.items(), key=lambda item: float(item[1]["loss"]))
        print(
            f"| Trainer, {precision}, {rate} | {best['steps']} | {best['seconds']:.0f} s | "
            f"{best['loss']:.3f} | |",
            flush=True,
        )
        for name in options.ours.split(","):
            for budget in map(int, options.budgets.split(",")):
                found = ours(name, budget, options, work)
                ratio = (
                    f"1/{best['seconds'] / found['seconds']:.1f}"
                    if found["loss"] <= best["loss"]
                    else "not yet"
                )
                print(
                    f"| ours, {name} | {found['steps']} | {found['seconds']:.0f} s | "
                    f"{found['loss']:.3f} | {ratio} |",
                    flush=True,
                )
                if found["loss"] <= best["loss"]:
                    break


if __name__ == "__main__":
    main()
