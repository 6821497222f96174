"""Crawled pages against their gold text: what each extractor and each rule of `preset: web` keeps.
Run it from the repository's root:

    python -m benchmarks.web_pages BENCHMARK

BENCHMARK is a checkout of scrapinghub/article-extraction-benchmark: `ground-truth.json` and
`html/*.html.gz`, 181 pages of news and blogs. A line for each extractor, and with the default one
for each rule alone and for all: F, precision and recall of 4-grams (means over pages, as that
benchmark counts them), pages that are left, and CPU time a page. With `--segments CHECKOUT`, a
checkout of adbar/trafilatura, also its 990 pages with segments that belong to the text or do not.
readability-lxml is compared if it is installed.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloze.core.config import parse_config
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers import web_text
from cloze.pipeline.corpus.readers.web_text import decode_page, main_text
from cloze.pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps

_WORD = re.compile(r"\w+")
_WIDTH = 4
Read = Callable[[str], list[str]]


def trafilatura(html: str) -> list[str]:
    """The lines by the default."""
    found = main_text(html, "trafilatura")
    return [] if isinstance(found, str) else found[1]


def fast(html: str) -> list[str]:
    """The lines by Resiliparse."""
    found = main_text(html, "fast")
    return [] if isinstance(found, str) else found[1]


def precise(html: str) -> list[str]:
    """The lines by trafilatura's precision mode alone."""
    return web_text._extract(html, favor_precision=True)[0]


def plain(html: str) -> list[str]:
    """The lines by trafilatura as it is."""
    from trafilatura import bare_extraction

    page = bare_extraction(html, include_comments=False, fast=True, with_metadata=False)
    return [] if page is None else page.text.split("\n")


def readability(html: str) -> list[str]:
    """The lines by readability-lxml."""
    from lxml.html import fromstring
    from readability import Document as Page

    root = fromstring(Page(html).summary())
    for element in root.iter("p", "div", "li", "br", "tr", "h1", "h2", "h3"):
        element.tail = f"\n{element.tail or ''}"
    return [line for line in root.text_content().split("\n") if line.strip()]


READERS: dict[str, Read] = {
    "default": trafilatura,
    "trafilatura as it is": plain,
    "its precision mode": precise,
    "fast": fast,
}
if importlib.util.find_spec("readability"):
    READERS["readability-lxml"] = readability


def segments(name: str, checkout: Path, read: Read) -> str:
    """The figures on trafilatura's own pages: segments that must be found, and others."""
    tests = checkout / "tests"
    kept = wanted = others = 0
    took = time.process_time()
    entries = json.loads((tests / "evaldata.json").read_text()).values()
    for entry in entries:
        path = next(
            path for path in (tests / "cache", tests / "eval") if (path / entry["file"]).exists()
        )
        html = decode_page((path / entry["file"]).read_bytes(), is_html=True)
        text = " ".join(" ".join(read(html)).split())
        found = [" ".join(segment.split()) in text for segment in entry["with"]]
        kept, wanted = kept + sum(found), wanted + len(found)
        others += sum(" ".join(segment.split()) in text for segment in entry["without"])
    precision, recall = kept / (kept + others), kept / wanted
    took = 1000 * (time.process_time() - took) / len(entries)
    return (
        f"{name:44} F {2 * precision * recall / (precision + recall):.3f}  P {precision:.3f}  "
        f"R {recall:.3f}  {len(entries):4} pages  {took:6.1f} ms a page"
    )


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
    name: str, pages: Mapping[str, str], gold: Mapping[str, Any], read: Read, **settings: Any
) -> str:
    """The figures of one way to read the pages; `steps=False`: without the stage's steps."""
    with_steps = settings.pop("steps", True)
    config = parse_config(TextConfig, {"language": "auto"} | settings, "corpus")
    steps = build_steps(config)
    precision, recall, left = [], [], 0
    took = 0.0
    for name_of_page, html in pages.items():
        begin = time.process_time()
        lines = read(html)
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
    parser.add_argument("--segments", type=Path, metavar="CHECKOUT")
    arguments = parser.parse_args()
    folder = arguments.benchmark
    gold = json.loads((folder / "ground-truth.json").read_text())
    pages = {
        name: decode_page(
            gzip.decompress((folder / "html" / f"{name}.html.gz").read_bytes()), is_html=True
        )
        for name in gold
    }
    main_text(next(iter(pages.values())), "trafilatura")  # imports
    for name, read in READERS.items():
        print(row(f"{name}, text alone", pages, gold, read, steps=False), flush=True)
        print(row(f"{name}, preset prose", pages, gold, read), flush=True)
        if arguments.segments:
            print(segments(f"{name}, segments", arguments.segments, read), flush=True)
    rules = {
        key: value
        for base in TextConfig.__mro__
        for key, value in vars(base).get("web", {}).items()
    }
    for key, value in rules.items():
        print(row(f"prose and {key}={value}", pages, gold, trafilatura, **{key: value}), flush=True)
    print(
        row(
            "prose and c4=True, c4_end_marks=False",
            pages,
            gold,
            trafilatura,
            c4=True,
            c4_end_marks=False,
        ),
        flush=True,
    )
    print(row("preset web", pages, gold, trafilatura, preset="web"), flush=True)
    print(
        row("preset web, language=en", pages, gold, trafilatura, preset="web", language="en"),
        flush=True,
    )
    print(
        row(
            "preset web, C4's end marks",
            pages,
            gold,
            trafilatura,
            preset="web",
            c4_end_marks=True,
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
