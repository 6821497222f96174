"""The loader, as training uses it: seconds until the batch at any position of any epoch is there,
and tokens/s into batches.

In one process: rows gathered from the mapped shards in the sampler's order, masks laid over them,
padded, as tensors; stored masks and fresh ones (`dynamic`). Tokens are real ones, padding left out.
The seconds are those of a process that has its modules imported and nothing opened; hashing the
shards before their first use (`cloze.model.data.shards.verify`) is no part of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.data.measure import Case, Clock, Sample, alternate, median_rate, table, whole
from benchmarks.data.prepared import Work

DATASETS: dict[str, dict[str, Any]] = {
    "bert 128": {"recipe": "bert", "length": 128},
    "bert-wwm 128": {"recipe": "bert-wwm", "length": 128},
    "roberta 512": {"recipe": "roberta", "length": 512},
    "albert 512": {"recipe": "albert", "length": 512},
    "spanbert 512": {"recipe": "spanbert", "length": 512},
    "packed 512": {"recipe": "packed", "length": 512},
}
POSITIONS = (0.0, 0.37, 0.999, 6.5)  # epochs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=float, default=25, metavar="MB", help="of raw text")
    parser.add_argument("--tokens-a-batch", type=int, default=32_768)
    parser.add_argument("--datasets", nargs="*", default=list(DATASETS), choices=DATASETS)


def main(work: Work, options: argparse.Namespace) -> tuple[str, dict[str, list[Sample]]]:
    planned: dict[str, Case] = {}
    for name in options.datasets:
        dataset = work.dataset(options.size, "wordpiece", DATASETS[name])
        batch = max(1, options.tokens_a_batch // DATASETS[name]["length"])
        for dynamic in (False, True):
            masks = "fresh" if dynamic else "stored"
            arguments = {"dataset": dataset, "dynamic": dynamic, "batch": batch}
            planned[f"{name}, {masks}"] = Case(
                function="benchmarks.data.loader:throughput", arguments=arguments
            )
            for position in POSITIONS:
                planned[f"{name}, {masks} @{position}"] = Case(
                    function="benchmarks.data.loader:reach",
                    arguments={**arguments, "position": position},
                )
    samples = alternate(planned, options.rounds)
    return report(samples), samples


def report(samples: Mapping[str, Sequence[Sample]]) -> str:
    """The names of samples are `case`, for tokens/s, and `case @position`."""
    rows = []
    for name in (name for name in samples if "@" not in name):
        rate = median_rate([whole(sample) for sample in samples[name]])
        reached = [
            one for case, taken in samples.items() if case.startswith(f"{name} @") for one in taken
        ]
        wall, cpu = (
            max((getattr(one, field) for one in reached), default=float("nan"))
            for field in ("wall", "cpu")
        )
        rows.append(
            [
                name,
                f"{rate.cpu / 1e6:.2f}M",
                f"{rate.wall / 1e6:.2f}M",
                f"{wall:.3f} s",
                f"{cpu:.3f} s",
            ]
        )
    head = ("", "tokens/CPU s", "tokens/s", "to any position, the longest", "of it CPU")
    return table(head, rows)


def throughput(dataset: str, dynamic: bool, batch: int) -> dict[str, Any]:
    """An epoch's batches, after some that find the record batches. Work: tokens."""
    import numpy as np
    import torch

    from cloze.model.data.batch import collate
    from cloze.model.data.mixture import make_sampler, training_shards

    torch.set_num_threads(1)
    shards = training_shards(dataset, dynamic)
    order = make_sampler(shards, 0, dynamic, batch)
    assert shards.info is not None
    tokens = 0
    starts = range(0, len(shards) - batch + 1, batch)
    for start in starts[:4]:
        shards.take(*order.locate(np.arange(start, start + batch)))
    with Clock() as clock:
        for start in starts:
            rows = shards.take(*order.locate(np.arange(start, start + batch)))
            collate(rows, pad=shards.info.special.pad, longest=shards.info.length)
            tokens += int(rows.lengths.sum())
    return clock.sample(tokens)


def reach(dataset: str, dynamic: bool, batch: int, position: float) -> dict[str, Any]:
    """The batch at `position` (in epochs) of a run, from nothing opened. Work: 1."""
    import numpy as np
    import torch

    from cloze.model.data import rows as _fresh  # noqa: F401 (its modules are imported before the clock starts)
    from cloze.model.data.batch import collate
    from cloze.model.data.mixture import make_sampler, training_shards

    torch.set_num_threads(1)
    with Clock() as clock:
        shards = training_shards(dataset, dynamic)
        order = make_sampler(shards, 0, dynamic, batch)
        assert shards.info is not None
        first = int(position * len(shards))
        rows = shards.take(*order.locate(np.arange(first, first + batch)))
        collate(rows, pad=shards.info.special.pad, longest=shards.info.length)
    return clock.sample(1)
