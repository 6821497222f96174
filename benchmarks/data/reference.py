"""The dataset stage against google-research/bert's `create_pretraining_data.py`: same documents,
same vocabulary, one core each.

Theirs is not in this repository: `--script` names the file in a checkout of google-research/bert,
`--python` an interpreter that has TensorFlow 2 (`python -m venv V && V/bin/pip install
tensorflow-cpu`). It runs as it is; a `sitecustomize.py` made for the run gives it
`tensorflow.compat.v1` where it imports `tensorflow`. Ten copies of both, length 128, 20
predictions.

What differs: theirs cuts the documents anew for each copy and holds all in memory; ours stores a
row once with ten masks beside it. Speed is of the text read, in WordPieces a second; the difference
of two sizes leaves start-up out, beside it stand whole runs.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data import cases
from benchmarks.data.measure import (
    MEGABYTE,
    Case,
    Clock,
    Sample,
    alternate,
    median_ratio,
    run,
    slopes,
    table,
    whole,
)
from benchmarks.data.prepared import Work

SHIM = """import sys
import tensorflow.compat.v1 as v1
sys.modules["tensorflow"] = v1
"""
LENGTH, PREDICTIONS, COPIES = 128, 20, 10
OURS, PACKED, THEIRS = "cloze dataset", "cloze dataset, zstd", "create_pretraining_data.py"
NAMES = (OURS, PACKED, THEIRS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--script",
        required=True,
        help="create_pretraining_data.py in a checkout of google-research/bert",
    )
    parser.add_argument("--python", required=True, help="an interpreter that has TensorFlow 2")
    parser.add_argument(
        "--sizes",
        type=float,
        nargs=2,
        default=(1, 4),
        metavar="MB",
        help="of the two corpora, as raw text",
    )
    parser.add_argument("--their-rounds", type=int, default=1, help="theirs takes minutes")


def main(work: Work, options: argparse.Namespace) -> tuple[str, dict[str, list[Sample]]]:
    shim = Path(work.scratch("shim"))
    shim.mkdir()
    (shim / "sitecustomize.py").write_text(SHIM, encoding="utf-8")
    planned: dict[str, Case] = {}
    outputs: dict[float, Path] = {}
    for size in options.sizes:
        corpus = work.corpus(size)
        text, outputs[size] = (
            Path(work.scratch(f"text-{size:g}.txt")),
            Path(work.scratch(f"theirs-{size:g}.tfrecord")),
        )
        run(
            Case(
                function="benchmarks.data.reference:write_text",
                arguments={"corpus": corpus, "out": str(text)},
            )
        )
        for name, compression in ((OURS, "none"), (PACKED, "zstd")):
            config = {
                "recipe": "bert",
                "length": LENGTH,
                "max_predictions": PREDICTIONS,
                "drawings": COPIES,  # as theirs: a drawing has one mask
                "mask_copies": 1,
            }
            planned[f"{name} {size:g}"] = Case(
                function="benchmarks.data.cases:dataset",
                arguments={
                    "corpus": corpus,
                    "tokenizer": work.tokenizer("wordpiece"),
                    "config": {**config, "compression": compression},
                    "workers": 1,
                    "out": work.scratch(f"ours-{compression}-{size:g}"),
                },
            )
        planned[f"{THEIRS} {size:g}"] = Case(
            command=their_command(options.python, options.script, work.data, text, outputs[size]),
            environment={
                "PYTHONPATH": str(shim),
                "CUDA_VISIBLE_DEVICES": "",
                "TF_CPP_MIN_LOG_LEVEL": "3",
            },
            rounds=options.their_rounds,
        )
    samples = alternate(planned, options.rounds)
    disk = {size: output.stat().st_size for size, output in outputs.items()}
    shutil.rmtree(f"{work.path}/scratch", ignore_errors=True)
    return report(samples, options.sizes, disk), samples


def their_command(python: str, script: str, data: str, text: Path, out: Path) -> tuple[str, ...]:
    return (
        str(Path(python).absolute()),
        str(Path(script).resolve()),
        f"--input_file={text}",
        f"--output_file={out}",
        f"--vocab_file={data}/vocab/bert_base_uncased_vocab.txt",
        "--do_lower_case=True",
        f"--max_seq_length={LENGTH}",
        f"--max_predictions_per_seq={PREDICTIONS}",
        "--masked_lm_prob=0.15",
        f"--dupe_factor={COPIES}",
    )


def write_text(corpus: str, out: str) -> dict[str, Any]:
    """A corpus as their program reads it: a sentence a line, a blank line between documents."""
    with open(out, "w", encoding="utf-8") as file, Clock() as clock:
        for sentences in cases.documents(corpus):
            file.write("\n".join(" ".join(text.split()) for text in sentences) + "\n\n")
    return clock.sample(0)


def report(
    samples: Mapping[str, Sequence[Sample]], sizes: Sequence[float], disk: Mapping[float, int]
) -> str:
    """Args: disk: bytes of their output by size."""
    small, large = sizes
    work = {
        size: samples[f"{OURS} {size:g}"][0].work for size in sizes
    }  # the same text: theirs has as many pieces
    taken = {
        name: {
            size: [
                Sample(wall=one.wall, cpu=one.cpu, peak=one.peak, work=work[size], more=one.more)
                for one in samples[f"{name} {size:g}"]
            ]
            for size in sizes
        }
        for name in NAMES
    }
    marginal = {name: slopes(of[small], of[large]) for name, of in taken.items()}
    totals = {name: [whole(one) for one in of[large]] for name, of in taken.items()}
    bytes_of = {name: int(taken[name][large][0].more.get("shards", disk[large])) for name in NAMES}
    rows = []
    for name in NAMES:
        middle = sorted(marginal[name], key=lambda rate: rate.cpu)[len(marginal[name]) // 2]
        total = sorted(totals[name], key=lambda rate: rate.cpu)[len(totals[name]) // 2]
        peak = max(one.peak for one in taken[name][large])
        ratio, total_ratio = (
            median_ratio(marginal[name], marginal[THEIRS]),
            median_ratio(totals[name], totals[THEIRS]),
        )
        cells = [f"{middle.cpu:,.0f}", f"{ratio.cpu:.1f}", f"{ratio.wall:.1f}"]
        cells += [f"{total.cpu:,.0f}", f"{total_ratio.cpu:.1f}", f"{total_ratio.wall:.1f}"]
        share = disk[large] / bytes_of[name]
        rows.append(
            [
                name,
                *cells,
                f"{bytes_of[name] / MEGABYTE:,.1f} MB",
                f"1/{share:.1f}",
                f"{peak:,.0f} MB",
            ]
        )
    head = (
        "",
        "pieces/CPU s",
        "ratio",
        "of wall",
        "with start-up",
        "ratio",
        "of wall",
        "disk",
        "of theirs",
        "peak memory",
    )
    return "\n".join(
        [
            f"Corpora of {small:g} and {large:g} MB of raw text ({work[small]:,.0f} and "
            f"{work[large]:,.0f} WordPieces), {COPIES} copies."
            f" Rates between the two; with start-up: of the larger. Disk: of the larger.",
            table(head, rows),
        ]
    )
