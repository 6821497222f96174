"""The corpus stage's MB/s a core, source by source: parsed, cleaned, filtered, cut into sentences,
rid of copies, written.

MB are of the input as it is unpacked; a core's second is a second of CPU time of all processes. Two
sizes of each source are read, and the difference is told, so start-up is left out; repeated
documents are no copies of each other (`sources.py`).

With `--workers-against-one` a corpus of books is read by one worker and by two. That needs a quiet
machine with two cores. With `--gensim PYTHON`, an interpreter that has gensim, also gensim's
`WikiCorpus` on the same dumps, its pool one process: it takes markup out and makes lower-case
words, and does nothing about sentences, filters or copies. With `--wikiextractor PYTHON` also
WikiExtractor, one process, without its pass over the dump for templates (`--no-templates`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.data.measure import (
    MEGABYTE,
    Case,
    Sample,
    alternate,
    median_rate,
    median_ratio,
    slopes,
    table,
)
from benchmarks.data.prepared import Work
from benchmarks.data.sources import KINDS, Raw

GENSIM_NAME = "gensim WikiCorpus"
WIKIEXTRACTOR_NAME = "WikiExtractor"
TIMED = """
import json, os, resource, sys, time

def seconds():
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in found)

if __name__ == "__main__":
    path, size = sys.argv[1:]
    wall, cpu, more = time.perf_counter(), seconds(), {}
    %s
    print(json.dumps({"wall": time.perf_counter() - wall, "cpu": seconds() - cpu, "work": float(size), "more": more}))
"""
OTHERS = {
    GENSIM_NAME: """
    from gensim.corpora.wikicorpus import WikiCorpus
    more["articles"] = sum(1 for _ in WikiCorpus(path, dictionary={}, processes=1).get_texts())
""",
    WIKIEXTRACTOR_NAME: """
    from wikiextractor import WikiExtractor
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "extracted")
    sys.argv[1:] = [path, "-o", out, "--no-templates", "--processes", "1", "-q"]
    WikiExtractor.main()
""",
}
"""What other programs do with a dump."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sources", nargs="*", default=list(KINDS), choices=KINDS)
    parser.add_argument(
        "--sizes",
        type=float,
        nargs=2,
        default=(6, 24),
        metavar="MB",
        help="of each source, unpacked",
    )
    parser.add_argument("--gensim", metavar="PYTHON", help="an interpreter that has gensim")
    parser.add_argument(
        "--wikiextractor", metavar="PYTHON", help="an interpreter that has wikiextractor"
    )
    parser.add_argument(
        "--workers-against-one",
        action="store_true",
        help="one worker against two on the mix of books and encyclopedia",
    )
    parser.add_argument(
        "--config",
        nargs="*",
        default=[],
        metavar="KEY=VALUE",
        help="of the corpus config, such as dedup=none",
    )


def corpus_case(
    work: Work, name: str, raws: Sequence[Raw], config: Mapping[str, Any], workers: int = 1
) -> Case:
    return Case(
        function="benchmarks.data.cases:corpus",
        arguments={
            "sources": [{"kind": raw.kind, "path": raw.path} for raw in raws],
            "size": sum(raw.bytes for raw in raws),
            "config": dict(config),
            "workers": workers,
            "out": work.scratch(f"corpus-{name}-{workers}"),
        },
        cores=workers,
    )


def main(work: Work, options: argparse.Namespace) -> tuple[str, dict[str, list[Sample]]]:
    config = dict(pair.split("=", 1) for pair in options.config)
    planned: dict[str, Case] = {}
    for kind in options.sources:
        for size in options.sizes:
            planned[f"{kind} {size:g}"] = corpus_case(
                work, f"{kind}-{size:g}", work.raw(kind, size), config
            )
    for name, python in (
        (GENSIM_NAME, options.gensim),
        (WIKIEXTRACTOR_NAME, options.wikiextractor),
    ):
        if python is None:
            continue
        script = Path(work.scratch(f"run_{name.split()[0].lower()}.py"))
        script.write_text(TIMED % OTHERS[name], encoding="utf-8")
        for size in options.sizes:
            (dump,) = work.raw("wikipedia", size)
            command = (str(Path(python).absolute()), str(script), dump.path, str(dump.bytes))
            planned[f"{name} {size:g}"] = Case(
                command=command, environment={"PYTHONWARNINGS": "ignore"}
            )
    if options.workers_against_one:
        for size in options.sizes:
            for workers in (1, 2):
                planned[f"mix, {workers} workers {size:g}"] = corpus_case(
                    work, f"mix-{size:g}", work.raw("mix", size), config, workers
                )
    samples = alternate(planned, options.rounds)
    return report(samples, options.sizes), samples


def report(samples: Mapping[str, Sequence[Sample]], sizes: Sequence[float]) -> str:
    """The names of samples are `case size`."""
    small, large = (f"{size:g}" for size in sizes)
    names = list(dict.fromkeys(name.rpartition(" ")[0] for name in samples))
    rates = {name: slopes(samples[f"{name} {small}"], samples[f"{name} {large}"]) for name in names}
    rows = []
    for name in names:
        rate, last = median_rate(rates[name]), samples[f"{name} {large}"][0]
        kept = f"{last.more['bytes'] / last.work:.2f}" if "bytes" in last.more else ""
        documents = last.more.get("documents", last.more.get("articles", 0))
        figures = [
            f"{last.work / MEGABYTE:.1f}",
            f"{rate.cpu / MEGABYTE:.2f}",
            f"{rate.wall / MEGABYTE:.2f}",
            f"{documents:,}",
            kept,
        ]
        rows.append([name, *figures, f"{max(one.peak for one in samples[f'{name} {large}']):,.0f}"])
    head = ("source", "MB", "MB/s a core", "MB/s", "documents", "text kept", "peak MB")
    lines = [table(head, rows)]
    for name, whose in ((GENSIM_NAME, "gensim's"), (WIKIEXTRACTOR_NAME, "WikiExtractor's")):
        if name in rates and "wikipedia" in rates:
            ratio = median_ratio(rates["wikipedia"], rates[name])
            lines.append(f"Wikipedia: {ratio.cpu:.2f} times {whose} MB/s a core.")
    if "mix, 2 workers" in rates:
        ratio = median_ratio(rates["mix, 2 workers"], rates["mix, 1 workers"])
        lines.append(
            f"Two workers: {ratio.wall:.2f} times one by wall time, at {1 / ratio.cpu:.2f} times "
            f"its CPU time."
        )
    return "\n".join(lines)
