"""What each template says from wikitext, beside what MediaWiki shows of it. Run it from the
repository's root:

    python -m benchmarks.fidelity_templates PAGES … [--language CODE] [--show NUMBER]

PAGES are pages as Parsoid writes them (`.html`, or dumps of Wikimedia Enterprise): beside the
output of a template they carry what its author wrote. A line for each template of a language whose
words differ in running text (paragraphs and lists, not boxes), most often first: how many of its
uses
differ, and examples: the wikitext, what the reader of wikitext makes of it (`…` is a hole), what is
shown.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.page_pairs import pages_in
from cloze.labs.enterprise_html import archive, page
from cloze.labs.enterprise_html.element_roles import role
from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

_LONGEST = 100  # characters of an example
_BEFORE, _BEHIND = "It was said that ", " was there."  # a sentence to stand in
_RUNNING = ("p", "li", "dd")


@dataclass(slots=True)
class Uses:
    """Of one template: how often it is used, how often what it says differs, and
    examples of that.
    """

    count: int = 0
    differ: int = 0
    examples: list[tuple[str, str, str]] = field(default_factory=list)


def compare(html: str, found: dict[tuple[str, str], Uses], show: int = 3) -> None:
    """Add the templates of a page to `found`, by language and name."""
    root = page.parse(html)
    if root is None:
        return
    language = archive.of_page(html, root).language or "en"
    markup, way = WikitextParser({}, language=language), page.HtmlExtractor(language=language)
    for name, wikitext, group in _templates(page.content(root)):
        said = _plain("\n".join(markup.extract(f"{_BEFORE}{wikitext}{_BEHIND}").paragraphs))
        shown = _plain("\n".join(way.extract(_paragraph(group)).paragraphs))
        one = found[language, name]
        one.count += 1
        if said != shown:
            one.differ += 1
            if len(one.examples) < show:
                one.examples.append((wikitext[:_LONGEST], said[:_LONGEST], shown[:_LONGEST]))


def _templates(top: Any) -> Iterator[tuple[str, str, list[Any]]]:
    """(name, wikitext, elements shown) of each template that stands alone in running text."""
    for element in top.iter(*_RUNNING):
        if any(
            role(one) != "text" for one in [element, *element.iterancestors()] if one is not top
        ):
            continue
        for one in element.iter():
            if (
                "mw:Transclusion" not in one.get("typeof", "")
                or one is element
                or "data-mw" not in one.attrib
            ):
                continue
            try:
                parts = json.loads(one.get("data-mw"))["parts"]
                template = parts[0]["template"]
                name, values = template["target"]["wt"].strip(), template["params"]
            except (ValueError, KeyError, TypeError, IndexError):
                continue
            if len(parts) == 1:
                written = "".join(
                    f"|{value['wt']}"
                    if key.isdigit() and "=" not in value["wt"]
                    else f"|{key}={value['wt']}"
                    for key, value in values.items()
                )
                group = [
                    sibling
                    for sibling in one.getparent()
                    if sibling.get("about") == one.get("about")
                ]
                yield (
                    name.split("\n")[0].lower().replace("_", " "),
                    f"{{{{{name}{written}}}}}",
                    group,
                )


def _paragraph(group: Iterable[Any]) -> Any:
    """The elements in a sentence of their own."""
    from copy import deepcopy

    from lxml import etree

    body = etree.Element("body")
    paragraph = etree.SubElement(body, "p")
    paragraph.text = _BEFORE
    copies = [deepcopy(one) for one in group]
    paragraph.extend(copies)
    copies[-1].tail = _BEHIND
    return body


def _plain(text: str) -> str:
    return (
        PLACEHOLDER_PATTERN.sub("…", text)
        .removeprefix(_BEFORE.strip())
        .removesuffix(_BEHIND.strip())
        .strip()
    )


def table_of(found: dict[tuple[str, str], Uses]) -> str:
    """The lines for templates that differ."""
    lines = []
    for (language, name), one in sorted(
        found.items(), key=lambda pair: (pair[0][0], -pair[1].differ, pair[0][1])
    ):
        if one.differ:
            lines.append(f"{language}  {name}  {one.differ} of {one.count}")
            lines += [
                f"      {wikitext}  →  {said or '(nothing)'}  |  {shown or '(nothing)'}"
                for wikitext, said, shown in one.examples
            ]
    return "\n".join(lines)


def main() -> None:
    """The lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--language", help="of the pages that are looked at; all by default")
    parser.add_argument(
        "--show", type=int, default=3, metavar="NUMBER", help="so many examples of each template"
    )
    given = parser.parse_args()
    found: dict[tuple[str, str], Uses] = defaultdict(Uses)
    for path in given.pages:
        for html in pages_in(path):
            compare(html, found, given.show)
    print(table_of({key: one for key, one in found.items() if given.language in (None, key[0])}))


if __name__ == "__main__":
    main()
