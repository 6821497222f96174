"""The dataset stage, corpus shards to shards with masks, against `encode_batch_fast` alone on the
same text and cores.

Both on a small corpus and on a large one; what is compared is the difference, so start-up is left
out. All text is different
up to 62 MB: the stage remembers words, and text that came again would flatter it. Beside it, one
copy of masks and ten.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.data.measure import (
    Case,
    Rate,
    Sample,
    alternate,
    median_rate,
    median_ratio,
    slopes,
    table,
    whole,
)
from benchmarks.data.prepared import Work

COPIES = {
    "bert, 1 copy": {"drawings": 1, "mask_copies": 1},
    "bert, 10 copies": {"drawings": 1, "mask_copies": 10},
}
# Every recipe with the same ten copies and length, so that what they do is compared and not how
# much.
RECIPES = ("bert-wwm", "albert", "spanbert", "electra", "roberta", "roberta-doc", "packed", "lm")
ALONE = "encode_batch_fast"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=float,
        nargs=2,
        default=(5, 25),
        metavar="MB",
        help="of the two corpora, as raw text",
    )
    parser.add_argument(
        "--cores",
        type=int,
        default=1,
        help="the stage gets as many workers, the tokenizer as many threads",
    )
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), help="beside bert")
    parser.add_argument("--length", type=int, default=128)


def main(work: Work, options: argparse.Namespace) -> tuple[str, dict[str, list[Sample]]]:
    requested: dict[str, Mapping[str, Any]] = {
        name: {**copies, "recipe": "bert"} for name, copies in COPIES.items()
    }
    for recipe in options.recipes:
        copies = 1 if recipe == "lm" else 10  # which has no masks
        requested[f"{recipe}, {copies} {'copy' if copies == 1 else 'copies'}"] = {
            "drawings": 1,
            "mask_copies": copies,
            "recipe": recipe,
        }
    plans = {
        name: ("wordpiece", {"length": options.length, **config})
        for name, config in requested.items()
    }
    if "roberta" in options.recipes:
        plans["roberta, BPE, 10 copies"] = (
            "bpe",
            {"mask_copies": 10, "length": options.length, "recipe": "roberta"},
        )
    cases: dict[str, Case] = {}
    for size in options.sizes:
        corpus = work.corpus(size)
        for tokenizer in dict.fromkeys(tokenizer for tokenizer, _ in plans.values()):
            arguments = {
                "corpus": corpus,
                "tokenizer": work.tokenizer(tokenizer),
                "parallel": options.cores > 1,
            }
            environment = {"RAYON_NUM_THREADS": str(options.cores)}
            cases[f"{ALONE}, {tokenizer} {size:g}"] = Case(
                function="benchmarks.data.cases:tokenizer_alone",
                arguments=arguments,
                environment=environment,
                cores=options.cores,
            )
        for name, (tokenizer, config) in plans.items():
            out = work.scratch(f"dataset-{size:g}-{name.replace(' ', '').replace(',', '-')}")
            arguments = {
                "corpus": corpus,
                "tokenizer": work.tokenizer(tokenizer),
                "config": config,
                "out": out,
            }
            cases[f"{name} {size:g}"] = Case(
                function="benchmarks.data.cases:dataset",
                arguments={**arguments, "workers": options.cores},
                cores=options.cores,
            )
    samples = alternate(cases, options.rounds)
    return report(
        samples, {name: tokenizer for name, (tokenizer, _) in plans.items()}, options.sizes
    ), samples


def report(
    samples: Mapping[str, Sequence[Sample]], tokenizers: Mapping[str, str], sizes: Sequence[float]
) -> str:
    """Args: tokenizers: of each case that is no tokenizer alone. The names of samples are `case
    size`.
    """
    small, large = (f"{size:g}" for size in sizes)

    def marginal(name: str) -> list[Rate]:
        return slopes(samples[f"{name} {small}"], samples[f"{name} {large}"])

    def row(name: str, alone: str) -> list[str]:
        rate, ratio = median_rate(marginal(name)), median_ratio(marginal(name), marginal(alone))
        total = median_ratio(
            *([whole(sample) for sample in samples[f"{case} {large}"]] for case in (name, alone))
        )
        cells = [
            f"{rate.cpu / 1e6:.2f}M",
            f"{rate.wall / 1e6:.2f}M",
            f"{ratio.cpu:.2f}",
            f"{ratio.wall:.2f}",
            f"{total.cpu:.2f}",
        ]
        return [name, *cells]

    rows = []
    for tokenizer in dict.fromkeys(tokenizers.values()):
        alone = f"{ALONE}, {tokenizer}"
        rows.append(row(alone, alone))
        rows += [row(name, alone) for name, uses in tokenizers.items() if uses == tokenizer]
    head = (
        "",
        "pieces/CPU s",
        "pieces/s",
        "ratio (CPU)",
        "ratio (wall)",
        f"ratio with start-up, {large} MB (CPU)",
    )
    one, ten = (marginal(name) for name in COPIES)
    copies = median_ratio(one, ten)
    first, last = (samples[f"{ALONE}, wordpiece {size}"][0].work for size in (small, large))
    return "\n".join(
        [
            f"Corpora of {small} and {large} MB of raw text ({first / 1e6:.2f}M and "
            f"{last / 1e6:.2f}M WordPieces); rates between them.",
            table(head, rows),
            f"Ten copies cost {copies.cpu:.2f} times the CPU time of one ({copies.wall:.2f} of "
            f"wall time).",
        ]
    )
