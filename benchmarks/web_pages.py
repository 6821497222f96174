"""Crawled pages against their gold text: what each extractor and each rule of `preset: web` keeps.
Run it from the repository's root:

    python -m benchmarks.web_pages BENCHMARK

BENCHMARK is a checkout of scrapinghub/article-extraction-benchmark: `ground-truth.json` and
`html/*.html.gz`, 181 pages of news and blogs. A line for each extractor, and with the default one
for each rule alone and for all: F, precision and recall of 4-grams (means over pages, as that
benchmark counts them), pages that are left, and CPU time a page.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cloze.core.config import parse_config
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers.web_text import decode_page, main_text
from cloze.pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps

_WORD = re.compile(r"\w+")
_WIDTH = 4


def shares(gold: str, found: str) -> tuple[float, float, float]:
    """Of the 4-grams of both: in both, only found, only gold."""
    both, ours = _grams(gold), _grams(found)
    true = sum((both & ours).values())
    parts = true, sum((ours - both).values()), sum((both - ours).values())
    return tuple(part / sum(parts) for part in parts) if sum(parts) else (1.0, 0.0, 0.0)  # type: ignore[return-value]


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = _WORD.findall(text)
    found = (
        tuple(words[begin : begin + _WIDTH]) for begin in range(max(1, len(words) - _WIDTH + 1))
    )
    return Counter(gram for gram in found if gram)


def row(
    name: str, pages: Mapping[str, str], gold: Mapping[str, Any], extractor: Any, **settings: Any
) -> str:
    """The figures of one way to read the pages; `steps=False`: without the stage's steps."""
    with_steps = settings.pop("steps", True)
    config = parse_config(TextConfig, {"language": "auto"} | settings, "corpus")
    steps = build_steps(config)
    precision, recall, left = [], [], 0
    took = 0.0
    for name_of_page, html in pages.items():
        begin = time.process_time()
        found = main_text(html, extractor)
        lines = [] if isinstance(found, str) else found[1]
        if with_steps:
            result = run_steps(
                Document(id=name_of_page, source="warc", title="", paragraphs=tuple(lines)), steps
            )
            lines = result.sentences.texts if result.sentences else []
        took += time.process_time() - begin
        left += bool(lines)
        true, more, missing = shares(gold[name_of_page]["articleBody"], "\n".join(lines))
        precision += [true / (true + more)] if true + more else []
        recall += [true / (true + missing)] if true + missing else []
    p, r = statistics.mean(precision), statistics.mean(recall)
    return (
        f"{name:44} F {2 * p * r / (p + r):.3f}  P {p:.3f}  R {r:.3f}  {left:4} pages  "
        f"{1000 * took / len(pages):6.1f} ms a page"
    )


def main() -> None:
    """The lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("benchmark", type=Path)
    folder = parser.parse_args().benchmark
    gold = json.loads((folder / "ground-truth.json").read_text())
    pages = {
        name: decode_page(
            gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes()), is_html=True
        )
        for name in gold
    }
    main_text(next(iter(pages.values())), "trafilatura")  # imports
    for extractor in ("trafilatura", "fast"):
        print(row(f"{extractor}, text alone", pages, gold, extractor, steps=False), flush=True)
        print(row(f"{extractor}, preset prose", pages, gold, extractor), flush=True)
    rules = {
        key: value
        for base in TextConfig.__mro__
        for key, value in vars(base).get("web", {}).items()
    }
    for key, value in rules.items():
        print(
            row(f"prose and {key}={value}", pages, gold, "trafilatura", **{key: value}), flush=True
        )
    print(
        row(
            "prose and c4=True, c4_end_marks=False",
            pages,
            gold,
            "trafilatura",
            c4=True,
            c4_end_marks=False,
        ),
        flush=True,
    )
    print(row("preset web", pages, gold, "trafilatura", preset="web"), flush=True)
    print(
        row(
            "preset web, C4's end marks",
            pages,
            gold,
            "trafilatura",
            preset="web",
            c4_end_marks=True,
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
