"""Peak memory and time of the corpus and the dataset stage as their input grows.

The stages run in one process each, so what is told is a worker with all that the stage itself holds
beside it. Peak is the kernel's figure of resident memory, which counts mapped files as long as
nobody else wants the memory; `own` leaves these out. The first size gives what the start costs;
with it taken off, time is in proportion to size where the last column says 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from benchmarks.data.corpus_stage import corpus_case
from benchmarks.data.measure import Case, Sample, alternate, table
from benchmarks.data.prepared import Work


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=float,
        nargs=3,
        default=(2, 20, 200),
        metavar="MB",
        help="of raw text, growing",
    )
    parser.add_argument(
        "--sources",
        nargs="*",
        default=["mix", "wikipedia"],
        help="of the corpus stage; the dataset stage reads the mix",
    )
    parser.add_argument(
        "--stages", nargs="*", default=["corpus", "dataset"], choices=("corpus", "dataset")
    )
    parser.add_argument("--workers", type=int, default=1)


def main(work: Work, options: argparse.Namespace) -> tuple[str, dict[str, list[Sample]]]:
    planned: dict[str, Case] = {}
    for size in options.sizes:
        if "corpus" in options.stages:
            for kind in options.sources:
                case = corpus_case(
                    work, f"memory-{kind}-{size:g}", work.raw(kind, size), {}, options.workers
                )
                planned[f"corpus, {kind} {size:g}"] = case
        if "dataset" in options.stages:
            planned[f"dataset {size:g}"] = Case(
                function="benchmarks.data.cases:dataset",
                arguments={
                    "corpus": work.corpus(size),
                    "tokenizer": work.tokenizer("wordpiece"),
                    "config": {"recipe": "bert"},
                    "workers": options.workers,
                    "out": work.scratch(f"memory-dataset-{size:g}"),
                },
                cores=options.workers,
            )
    samples = alternate(planned, options.rounds)
    return report(samples, options.sizes), samples


def report(samples: Mapping[str, Sequence[Sample]], sizes: Sequence[float]) -> str:
    """The names of samples are `case size`."""
    names = list(dict.fromkeys(name.rpartition(" ")[0] for name in samples))
    rows = []
    for name in names:
        first, small, large = (samples[f"{name} {size:g}"] for size in sizes)
        peaks = [max(one.peak for one in taken) for taken in (small, large)]
        own = [max(one.anonymous for one in taken) for taken in (small, large)]
        cells = [f"{peaks[0]:,.0f}", f"{peaks[1]:,.0f}", f"{peaks[1] / peaks[0] - 1:+.0%}"]
        cells += [f"{own[0]:,.0f}", f"{own[1]:,.0f}", f"{own[1] / own[0] - 1:+.0%}"]
        rows.append([name, *cells, f"{linearity(first, small, large):.2f}"])
    small_name, large_name = (f"{size:g}" for size in sizes[1:])
    head = (
        "",
        f"peak MB, {small_name} MB",
        f"peak MB, {large_name} MB",
        "growth",
        f"own MB, {small_name} MB",
        f"own MB, {large_name} MB",
        "growth",
        "time / size",
    )
    return table(head, rows)


def linearity(first: Sequence[Sample], small: Sequence[Sample], large: Sequence[Sample]) -> float:
    """How much dearer (CPU time, the least of the rounds) a unit of work is from small to large
    than from first to small.
    """
    cpu = [min(one.cpu for one in taken) for taken in (first, small, large)]
    work = [taken[0].work for taken in (first, small, large)]
    return ((cpu[2] - cpu[1]) / (work[2] - work[1])) / ((cpu[1] - cpu[0]) / (work[1] - work[0]))
