"""How much of what MediaWiki shows of a page the reader of wikitext keeps. Run it from the
repository's root:

    python -m benchmarks.fidelity [PAIRS …] [--set NAME=VALUE …] [--json FILE] [--show NUMBER]

PAIRS are pages in both forms: dumps of Wikimedia Enterprise, whose records have both (`.tar.gz`,
`.ndjson`, or folders of `.json` with one record each), or a folder with `LANGUAGE/NAME.wikitext`
beside `LANGUAGE/NAME.html`; without any, the small ones among the tests. Each page goes through the
stage's own readers and steps twice, as source `wikipedia` and as source `html`, and the sentences
of the two are compared as bags: of words (letters; in scripts without blanks, characters) and of
numbers (digits; marks between thousands do not count). `shown` is what the rendering has, `kept`
the share of it that the wikitext gave too, `more` what only the wikitext gave, as a share of the
same. `inserted` are words and numbers that the rendering does not have at that place, aligned in
order, per thousand (`benchmarks.insertions`; a dump of wikitext alone has this figure only). `of <p>` is a check of the other side: the share of the words in the rendering's `<p>`
elements, outside of tables, boxes and the sections that both leave out, that source `html` keeps.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks import insertions
from benchmarks.data.measure import table
from benchmarks.page_pairs import SMALL, Pair, pairs_in
from cloze.core.config import parse_config
from cloze.labs.enterprise_html import page
from cloze.labs.enterprise_html.element_roles import role
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.read.read_and_clean import read_documents
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.encyclopedia.blocks import SectionFilter
from cloze.pipeline.corpus.sources import plan_reading
from cloze.pipeline.corpus.steps.chain import build_steps, run_steps

_UNSPACED = (
    "\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e01-\u0eff\u0f40-\u0fbc"
    "\u1000-\u109f\u1780-\u17ff"
)
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W\d_{_UNSPACED}]+")
_GROUPED = re.compile(r"(?<=\d)[.,'’ \u00a0\u2009\u202f](?=\d{3}(?!\d))")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEAR = 6  # sentences shown of a page
_HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")


@dataclass(slots=True)
class Fidelity:
    """What is counted, over all pages.

    Attributes:
        pages: of which both forms gave text.
        left_out: of which one did not.
        words, words_kept, words_more: of the rendering, of these in the text from wikitext, and in
            that alone.
        numbers, numbers_kept, numbers_more: the same.
        aligned, inserted: words and numbers of the text from wikitext, and of these those that the
            rendering does not have at that place.
        in_paragraphs, read: words in the rendering's `<p>`, and of these in the text from HTML.
        lost_numbers: those that are not kept, a page's together.
    """

    pages: int = 0
    left_out: int = 0
    words: int = 0
    words_kept: int = 0
    words_more: int = 0
    numbers: int = 0
    numbers_kept: int = 0
    numbers_more: int = 0
    aligned: int = 0
    inserted: int = 0
    in_paragraphs: int = 0
    read: int = 0
    lost_numbers: list[str] = field(default_factory=list)

    def __iadd__(self, other: Fidelity) -> Fidelity:
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(other, one.name))
        return self


def words(text: str) -> Counter[str]:
    """The bag of words of a text, in lower case."""
    return Counter(word.lower() for word in _WORD.findall(text))


def numbers(text: str) -> Counter[str]:
    """The bag of numbers of a text, without the marks between thousands."""
    return Counter(_NUMBER.findall(_GROUPED.sub("", text)))


def compare(shown: str, kept: str, paragraphs: str = "") -> Fidelity:
    """Count for one page.

    Args:
        shown: the text of its rendering.
        kept: the text of its wikitext.
        paragraphs: what stands in the rendering's `<p>`.
    """
    found = Fidelity(pages=int(bool(shown and kept)), left_out=int(not (shown and kept)))
    if not found.pages:
        return found
    ours, theirs = words(kept), words(shown)
    found.words, found.words_kept = theirs.total(), (ours & theirs).total()
    found.words_more = (ours - theirs).total()
    ours_n, theirs_n = numbers(kept), numbers(shown)
    found.numbers, found.numbers_kept = theirs_n.total(), (ours_n & theirs_n).total()
    found.numbers_more = (ours_n - theirs_n).total()
    found.lost_numbers = sorted((theirs_n - ours_n).elements())
    written = words(paragraphs)
    found.in_paragraphs, found.read = written.total(), (written & theirs).total()
    return found


def both_texts(pairs: Iterable[Pair], settings: Mapping[str, Any]) -> dict[Pair, tuple[str, str]]:
    """(text of the rendering, text of the wikitext) of each page, as the corpus stage has them;
    empty for one that it drops.
    """
    found: dict[Pair, tuple[str, str]] = {}
    by_wiki: dict[tuple[str, str], list[Pair]] = defaultdict(list)
    for pair in pairs:
        by_wiki[pair.language, pair.wiki].append(pair)
    with tempfile.TemporaryDirectory(prefix="cloze-fidelity-") as directory:
        for number, ((language, wiki), own) in enumerate(sorted(by_wiki.items())):
            dump, rendered = Path(directory, f"{number}.xml"), Path(directory, f"{number}.ndjson")
            dump.write_text(_dump(own, language, wiki), encoding="utf-8")
            rendered.write_text("".join(map(_record, range(len(own)), own)), encoding="utf-8")
            written, shown = _texts("wikipedia", dump, settings), _texts("html", rendered, settings)
            found.update(
                {
                    pair: (shown.get(place, ""), written.get(place, ""))
                    for place, pair in enumerate(own)
                }
            )
    return found


def _texts(kind: str, path: Path, settings: Mapping[str, Any]) -> dict[int, str]:
    """The sentences of each page, a line each, by its number."""
    config = parse_config(
        CorpusConfig,
        {
            "sources": [{"kind": kind, "path": str(path)}],
            "minimum_words": 0,
            "minimum_characters": 0,
            "namespaces": ["0"],
            **settings,
        },
        "corpus",
    )
    steps = build_steps(config)
    found: dict[int, str] = {}
    for one in plan_reading(config.listed())[0]:
        for document in read_documents(config, ReadCounters(slice=one.slice)):
            result = run_steps(document, steps)
            if result.sentences is not None:
                found[int(document.id.rpartition("/")[2])] = "\n".join(result.sentences.texts)
    return found


def _dump(pairs: Iterable[Pair], language: str, wiki: str) -> str:
    pages = "".join(
        f"<page><title>{html.escape(pair.title)}</title><ns>0</ns><id>{number}</"
        f"id><revision><id>1</id><model>wikitext</model>"
        f'<text xml:space="preserve">{html.escape(pair.wikitext)}</text></revision></page>\n'
        for number, pair in enumerate(pairs)
    )
    site = f"<siteinfo><dbname>{wiki or f'{language}wiki'}</dbname></siteinfo>"
    return f'<mediawiki xml:lang="{language}">{site}\n{pages}</mediawiki>\n'


def _record(number: int, pair: Pair) -> str:
    record = {
        "name": pair.title,
        "identifier": number,
        "namespace": {"identifier": 0},
        "in_language": {"identifier": pair.language},
        "article_body": {"html": pair.html, "wikitext": pair.wikitext},
    }
    return json.dumps(record) + "\n"


def paragraphs_of(pair: Pair, dropped: frozenset[str]) -> str:
    """What stands in the `<p>` elements of a rendering, but for those in what is no text and in
    sections that are left out.
    """
    root = page.parse(pair.html)
    sections = SectionFilter(dropped, frozenset())
    found = []
    top = page.content(root)
    for element in top.iter("p", *_HEADINGS):
        if element.tag != "p":
            name = "".join(element.itertext())
            sections.heading(int(element.tag[1]), name.replace("[edit]", ""))
        elif sections.is_read and not any(
            role(one) != "text" for one in element.iterancestors() if one is not top
        ):
            found.append(_plain(element))
    return "\n".join(found)


def _plain(element: Any) -> str:
    pieces = [element.text or ""]
    for child in element:
        pieces += [_plain(child) if role(child) == "text" else " ", child.tail or ""]
    return "".join(pieces)


def measure(
    pairs: Iterable[Pair], settings: Mapping[str, Any]
) -> tuple[dict[str, Fidelity], dict[Pair, tuple[str, str]]]:
    """Figures by page, and the texts they were taken from."""
    texts = both_texts(pairs, settings)
    options = CorpusConfig.model_validate({"sources": [{"kind": "html", "path": "-"}], **settings})
    found: dict[str, Fidelity] = {}
    for pair, (shown, kept) in texts.items():
        one = compare(shown, kept, paragraphs_of(pair, options.sections_to_drop(pair.language)))
        whole = _plain(page.content(page.parse(pair.html)))
        more = insertions.insertions(kept.split("\n"), insertions.Shown.of_text(whole))
        one.aligned, one.inserted = more.words, more.inserted
        found[pair.name] = one
    return found, texts


def by_language(found: Mapping[str, Fidelity]) -> dict[str, Fidelity]:
    """The figures of each language, and of all."""
    sums: dict[str, Fidelity] = defaultdict(Fidelity)
    for name, one in sorted(found.items()):
        for key in (name.partition("/")[0], "all"):
            sums[key] += one
    return dict(sorted(sums.items(), key=lambda pair: (pair[0] == "all", pair[0])))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "–"


HEAD = (
    "",
    "pages",
    "words shown",
    "kept",
    "more",
    "numbers shown",
    "kept",
    "more",
    "inserted",
    "of <p>",
)


def row(name: str, one: Fidelity) -> tuple[str, ...]:
    """A row of the table."""
    return (
        name,
        f"{one.pages:,}" + (f" (+{one.left_out} left out)" if one.left_out else ""),
        f"{one.words:,}",
        _share(one.words_kept, one.words),
        _share(one.words_more, one.words),
        f"{one.numbers:,}",
        _share(one.numbers_kept, one.numbers),
        _share(one.numbers_more, one.numbers),
        f"{1000 * one.inserted / max(1, one.aligned):.2f} ‰",
        _share(one.read, one.in_paragraphs),
    )


def worst(found: Mapping[str, Fidelity], texts: Mapping[Pair, tuple[str, str]], count: int) -> str:
    """The pages that lost most, with their lost numbers and the sentences that lost most."""
    named = {pair.name: text for pair, text in texts.items()}
    lines = []
    for name in sorted(found, key=lambda name: found[name].words_kept - found[name].words)[:count]:
        one, (shown, kept) = found[name], named[name]
        lines += [
            "",
            " | ".join(row(name, one)),
            f"  lost numbers: {', '.join(one.lost_numbers) or 'none'}",
        ]
        lines += [f"  - {sentence}" for sentence in _lost(shown, kept)]
        lines += [f"  + {sentence}" for sentence in _lost(kept, shown)[: _NEAR // 2]]
    return "\n".join(lines)


def _lost(shown: str, kept: str) -> list[str]:
    """The sentences of one text that have most words which stand in no sentence of the other's."""
    there = set(kept.split("\n"))
    have = words(kept)
    ranked = []
    for sentence in shown.split("\n"):
        own = words(sentence) + numbers(sentence)
        missing = (own - have - numbers(kept)).total() if sentence not in there else 0
        if missing or (sentence not in there and own.total()):
            ranked.append((-missing, sentence))
    return [sentence for _, sentence in sorted(ranked)[:_NEAR]]


def main() -> None:
    """The table, and what was lost."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pairs", nargs="*", type=Path, default=[SMALL])
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the corpus stage",
    )
    parser.add_argument("--json", type=Path, help="where the figures are written")
    parser.add_argument(
        "--show", type=int, default=0, metavar="NUMBER", help="so many of the pages that lost most"
    )
    given = parser.parse_args()
    if dumps := [path for path in given.pairs if ".xml" in path.name]:
        insertions.report(dumps, show=given.show)
        given.pairs = [path for path in given.pairs if path not in dumps]
        if not given.pairs:
            return
    pairs = {pair.name: pair for path in given.pairs for pair in pairs_in(path)}
    if not pairs:
        sys.exit(
            f"{', '.join(map(str, given.pairs))}: no page in both forms; see python -m "
            f"benchmarks.fidelity --help"
        )
    settings = {name: value for name, _, value in (one.partition("=") for one in given.set)}
    found, texts = measure(pairs.values(), settings)
    sums = by_language(found)
    print(table(HEAD, [row(name, one) for name, one in sums.items()]))
    if given.show:
        print(worst(found, texts, given.show))
    if given.json:
        figures = {"languages": sums, "pages": found}
        content = {
            key: {name: asdict(one) for name, one in value.items()}
            for key, value in figures.items()
        }
        given.json.write_text(
            json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
