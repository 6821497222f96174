"""What is wrong with the text of real pages, as we take it out of a dump and as others do. Run it
from the repository's root:

    python -m benchmarks.text_scorecard --dumps DIR [--before CHECKOUT] [--others PYTHON]
    [--extracted DIR]

`CHECKOUT` is an older one of this repository; `PYTHON` an interpreter that has wikiextractor,
mwparserfromhell and gensim; `DIR` of `--extracted` holds files of WikiExtractor's, whose short
sentences are told from the headings of the dumps. Every program reads the pages that we keep as
articles; sentences of others are what our splitter makes of their lines.
"""

from __future__ import annotations

import argparse
import bz2
import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.data.measure import table
from benchmarks.text_measures import Faults, common_words, faults

Texts = dict[str, dict[str, list[str]]]  # by title: `lines`, `sentences`

OURS = """
import json, sys
from cloze.core.config import parse_config
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.read.read_and_clean import read_documents
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.sources import plan_reading
from cloze.pipeline.corpus.steps.chain import build_steps, run_steps

found = {}
for dump in sys.argv[2:]:
    config = parse_config(CorpusConfig, {"sources": [{"kind": "wikipedia", "path": dump}]}, "corpus")
    steps = build_steps(config)
    for one in plan_reading(config.listed())[0]:
        for document in read_documents(config, ReadCounters(slice=one.slice)):
            result = run_steps(document, steps)
            if result.sentences is not None:
                texts, starts = result.sentences.texts, result.sentences.paragraphs
                lines = [" ".join(texts[a:b]) for a, b in zip(starts, [*starts[1:], len(texts)])]
                found[document.title] = {"lines": lines, "sentences": texts}
json.dump(found, open(sys.argv[1], "w"))
"""
OTHERS = {
    "mwparserfromhell": """
import json, sys
import mwparserfromhell
pages = json.load(open(sys.argv[2]))
json.dump({t: {"lines": mwparserfromhell.parse(x).strip_code().split("\\n")} for t, x in pages.items()}, open(sys.argv[1], "w"))
""",
    "gensim": """
import json, sys, warnings
warnings.simplefilter("ignore")
from gensim.corpora.wikicorpus import filter_wiki
pages = json.load(open(sys.argv[2]))
json.dump({t: {"lines": filter_wiki(x).split("\\n")} for t, x in pages.items()}, open(sys.argv[1], "w"))
""",
    "wikiextractor": """
import glob, json, subprocess, sys, tempfile
found = {}
for dump in sys.argv[3:]:
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([sys.executable, "-m", "wikiextractor.WikiExtractor", dump, "-o", out, "--json", "--processes", "1", "-q"], check=True)
        for name in glob.glob(out + "/*/*"):
            for line in open(name):
                page = json.loads(line)
                found[page["title"]] = {"lines": page["text"].split("\\n")}
json.dump(found, open(sys.argv[1], "w"))
""",
}
_PAGE = re.compile(r"<page>.*?</page>", re.DOTALL)


def pages_of(dump: Path) -> dict[str, str]:
    """Title to wikitext; redirects left out."""
    text = bz2.decompress(dump.read_bytes()).decode("utf-8")
    found = {}
    for page in _PAGE.findall(text):
        title, body = (
            re.search(r"<title>(.*?)</title>", page),
            re.search(r"<text[^>]*>(.*?)</text>", page, re.DOTALL),
        )
        if title and body and "<redirect" not in page:
            found[html.unescape(title[1])] = html.unescape(body[1])
    return found


def run(python: str, script: str, *arguments: str, checkout: str | None = None) -> Any:
    """What the script wrote as JSON."""
    environment = {
        **os.environ,
        "PYTHONWARNINGS": "ignore",
        **({"PYTHONPATH": checkout} if checkout else {}),
    }
    with tempfile.TemporaryDirectory() as directory:
        out = str(Path(directory, "out.json"))
        subprocess.run(
            [python, "-c", script, out, *arguments],
            check=True,
            env=environment,
            cwd=checkout,
            stderr=subprocess.DEVNULL,
        )
        return json.loads(Path(out).read_text(encoding="utf-8"))


def score(pages: Mapping[str, str], texts: Texts, titles: set[str]) -> Faults:
    """The faults of a program's texts of these pages, over all of them."""
    from cloze.pipeline.corpus.steps.sentences import split_paragraph

    common, total = common_words(pages), Faults()
    for title in sorted(titles & texts.keys()):
        lines = [" ".join(line.split()) for line in texts[title]["lines"] if line.strip()]
        sentences = texts[title].get("sentences") or [
            one for line in lines for one in split_paragraph(line)
        ]
        total += faults(pages[title], lines, sentences, common)
    return total


def report(found: Mapping[str, Faults]) -> str:
    """A row a program; faults a million characters, or as shares."""
    head = (
        "", "pages", "million characters", "markup", "glued words", "holes", "lists half kept",
        "numbers lost", "sentences torn",
    )  # fmt: skip
    rows = []
    for name, one in found.items():
        millions = one.characters / 1e6
        rows.append(
            [name, str(one.pages), f"{millions:.2f}"]
            + [f"{count / millions:.1f}" for count in (one.markup, one.glued, one.holes)]
            + [
                f"{one.half_lists} of {one.lists}",
                f"{one.lost_numbers} of {one.numbers}",
                f"{one.torn / max(1, one.sentences):.1%}",
            ]
        )
    return table(head, rows)


HEADINGS = """
import json, sys
from cloze.pipeline.corpus.readers.encyclopedia.wikiextractor import is_heading
headings, sentences = json.load(open(sys.argv[2]))
json.dump([sum(not is_heading(one) for one in headings), sum(map(is_heading, sentences))], open(sys.argv[1], "w"))
"""
_ABBREVIATED = re.compile(r"\b(?:Mr|Mrs|Ms|Dr|St|vs|No|Sgt|Maj|[A-Z])\.")


def labelled(pages: Mapping[str, str], extracted: Path) -> tuple[list[str], list[str]]:
    """(headings of the dumps with a full stop, as WikiExtractor wrote them; short sentences from
    inside its paragraphs), eight words at most.
    """
    headings, sentences = set(), set()
    for wikitext in pages.values():
        for heading in re.findall(r"^={2,5}\s*([^=\n]+?)\s*={2,5}\s*$", wikitext, re.MULTILINE):
            bare = re.sub(
                r"\[\[(?:[^|\]]*\|)?([^\]]*)\]\]|'{2,}|<[^>]*>|\{\{[^}]*\}\}", r"\1", heading
            ).strip()
            if bare and len(bare.split()) <= 8 and bare[-1] not in ".?!":
                headings.add(bare + ".")
    for file in sorted(extracted.glob("wiki_*"))[::3]:
        for line in file.read_text(encoding="utf-8").split("\n"):
            for one in (
                re.split(r"(?<=[a-z0-9]\.) (?=[A-Z])", line.strip())[1:-1]
                if line.count(". ") > 1
                else ()
            ):
                words = len(one.split())
                if (
                    1 < words <= 8
                    and len(one) < 58
                    and one.count(".") == 1
                    and one[-1] == "."
                    and one[0].isupper()
                    and not _ABBREVIATED.search(one)
                ):
                    sentences.add(one)
    return sorted(headings), sorted(sentences)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.text_scorecard",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--dumps", required=True, type=Path, help="directory of MediaWiki dumps, .xml.bz2"
    )
    parser.add_argument("--before", help="an older checkout of this repository")
    parser.add_argument(
        "--others", metavar="PYTHON", help="an interpreter that has the other programs"
    )
    parser.add_argument(
        "--extracted", type=Path, help="directory of WikiExtractor's files, of the old format"
    )
    options = parser.parse_args(arguments)
    here = str(Path(__file__).resolve().parents[1])
    dumps = sorted(options.dumps.glob("*.xml.bz2"))
    pages: dict[str, str] = {}
    for dump in dumps:
        pages.update(pages_of(dump))
    names = [str(dump) for dump in dumps]
    checkouts = {"ours, before": options.before, "ours": here}
    texts: dict[str, Texts] = {
        name: run(sys.executable, OURS, *names, checkout=str(Path(path).resolve()))
        for name, path in checkouts.items()
        if path
    }
    if options.others:
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump(pages, file)
            file.flush()
            for name, script in OTHERS.items():
                texts[name] = run(options.others, script, file.name, *names)
    titles = set(texts["ours"])
    sys.stdout.write(
        report({name: score(pages, found, titles) for name, found in texts.items()}) + "\n"
    )
    if options.extracted:
        headings, sentences = labelled(pages, options.extracted)
        with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
            json.dump([headings, sentences], file)
            file.flush()
            for name, path in checkouts.items():
                if path:
                    taken = run(
                        sys.executable, HEADINGS, file.name, checkout=str(Path(path).resolve())
                    )
                    shown = (
                        f"{name}: of {len(headings):,} headings {taken[0]} are taken for sentences,"
                        f" "
                    )
                    sys.stdout.write(
                        f"{shown}of {len(sentences):,} short sentences {taken[1]} for headings\n"
                    )


if __name__ == "__main__":
    main()
