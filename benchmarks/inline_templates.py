"""What becomes of the sentences that hold a template, in dumps of any language. Run it from the
repository's root:

    python -m benchmarks.inline_templates DUMP … [--show NUMBER]

A sentence is found again by the letters before and behind its template, so the figures do not
depend on the reader that is measured.
One line for each language: pages, prose kept (share of all sentences), markup left, and of the
inline templates how many are filled (words stand in their place), leave no word (`hole`), lost
their sentence (`dropped`), or lost a part of it (`cut`). Then the templates that lose most
sentences, with an example of each.
"""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.insertions import articles
from benchmarks.text_measures import _MARKUP, _REFERENCE
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import appended_sections
from cloze.pipeline.corpus.steps import sentences

_APPENDED = frozenset(appended_sections())
_SECTION = re.compile(r"^(={2,6})\s*(.*?)\s*=+\s*$", re.MULTILINE)
_TABLE = re.compile(r"^[ :*]*\{\|.*?^\s*\|\}", re.MULTILINE | re.DOTALL)
_ELEMENTS = re.compile(
    r"<(gallery|table|timeline|source|syntaxhighlight|poem|score)\b.*?</\1\s*>",
    re.DOTALL | re.IGNORECASE,
)
_BRACES = re.compile(r"\{\{|\}\}")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_FILE = re.compile(
    r"\[\[[^\[\]|:]+:(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]|\[\[[^\[\]]*(?:\|[^\[\]]*){2,}\]\]"
)
_END = re.compile(r"(?<=[.!?؟।։။።۔])[\"'”’»)\]]*\s+(?=\S)|(?<=[。！？])")
_MARK = "\x01"  # stands for a template
_KEY, _SHORTEST = 14, 5  # letters
_FARTHEST = 160  # letters that a template may say


def letters(text: str) -> str:
    """Letters, digits and vowel signs of a text."""
    return "".join(
        one for one in text.lower() if one.isalnum() or unicodedata.category(one)[0] == "M"
    )


def prose(wikitext: str) -> Iterator[tuple[str, list[str]]]:
    """(sentence with marks for templates, the templates) of the running text of a page."""
    text = _ELEMENTS.sub("", _REFERENCE.sub("", _TABLE.sub("", wikitext)))
    pieces, position, skipped = [], 0, 7
    for heading in [*_SECTION.finditer(text), None]:
        if skipped == 7:
            pieces.append(text[position : heading.start() if heading else len(text)])
        if heading:
            position, level = heading.end(), len(heading[1])
            skipped = (
                (level if heading[2].lower() in _APPENDED else 7) if level <= skipped else skipped
            )
    text, found = _marked("\n".join(pieces))
    used = iter(found)
    for line in text.split("\n"):
        own = [next(used) for _ in range(line.count(_MARK))]
        line = (
            _LINK.sub(r"\1", _FILE.sub("", line))
            if line.count(_MARK) == _FILE.sub("", line).count(_MARK)
            else ""
        )
        line = re.sub(r"''+|<[^<>]*>|\[https?:\S+ ?|&\w+;|-\{|\}-", " ", line).strip()
        if len(line) < 80 or line[0] in "|*#:;!=[{" or "http" in line:
            continue
        places = iter(own)
        for sentence in _END.split(line):
            inside = [next(places) for _ in range(sentence.count(_MARK))]
            if len(letters(sentence)) > 2 * _KEY:
                yield sentence, inside


def _marked(text: str) -> tuple[str, list[str]]:
    """The text with a mark for each template on one line, and these templates."""
    pieces: list[str] = []
    found: list[str] = []
    depth = begin = position = 0
    for match in _BRACES.finditer(text):
        if match[0] == "{{":
            if not depth:
                begin = match.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                content = text[begin + 2 : match.start()]
                pieces.append(text[position:begin])
                if "\n" not in content:
                    pieces.append(_MARK)
                    found.append(content)
                position = match.end()
    return "".join((*pieces, text[position:])), found


def fate(before: str, behind: str, text: str) -> str:
    """What became of a template between these letters: filled, hole, dropped or cut."""
    seen = False
    place = text.find(before)
    while place >= 0:
        seen = True
        end = place + len(before)
        found = text.find(behind, end, end + _FARTHEST)
        if found >= 0:
            return "filled" if found > end else "hole"
        place = text.find(before, place + 1)
    return "cut" if seen or behind in text else "dropped"


def measure(
    path: Path, found: dict[str, Counter[str]], lost: dict[tuple[str, str], list[str]]
) -> None:
    """Add the pages of a dump to `found`, and the templates that lost their sentence to `lost`."""
    for markup, page in articles(path):
        lines = sentences.split(markup.extract(page.text).paragraphs, markup.language).texts
        text, count = letters("".join(lines)), found.setdefault(markup.language, Counter())
        count["pages"] += 1
        count["markup"] += len(_MARKUP.findall("\n".join(lines)))
        for sentence, templates in prose(page.text):
            parts = [letters(part) for part in sentence.split(_MARK)]
            count["sentences"] += 1
            count["kept"] += any(part[:_KEY] in text for part in parts if len(part) >= _KEY)
            for content, before, behind in zip(templates, parts, parts[1:], strict=False):
                if min(len(before), len(behind)) >= _SHORTEST:
                    what = fate(before[-_KEY:], behind[:_KEY], text)
                    count[what] += 1
                    if what == "dropped":
                        name = content.partition("|")[0].strip().lower()
                        lost.setdefault((markup.language, name), []).append("{{" + content + "}}")


def main() -> None:
    """The lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", nargs="+", type=Path)
    parser.add_argument(
        "--show",
        type=int,
        default=0,
        metavar="NUMBER",
        help="so many templates that lose sentences",
    )
    given = parser.parse_args()
    found: dict[str, Counter[str]] = {}
    lost: dict[tuple[str, str], list[str]] = {}
    for path in given.dumps:
        measure(path, found, lost)
    found["all"] = sum(found.values(), Counter())
    for language, count in found.items():
        fates = [count[what] for what in ("filled", "hole", "dropped", "cut")]
        print(
            f"{language:4} {count['pages']:6,} pages  "
            f"{100 * count['kept'] / max(1, count['sentences']):5.1f} % of {count['sentences']:7,} "
            f"sentences  markup {count['markup']:5}  templates {sum(fates):6,}: filled "
            f"{fates[0]:5} hole {fates[1]:5} dropped {fates[2]:5} "
            f"cut {fates[3]:4}  lost {100 * fates[2] / max(1, sum(fates)):5.1f} %"
        )
    for (language, name), examples in sorted(lost.items(), key=lambda pair: -len(pair[1]))[
        : given.show
    ]:
        print(f"{len(examples):5}  {language:4} {name:28} {examples[0][:110]}")


if __name__ == "__main__":
    main()
