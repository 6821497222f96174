"""What a page says of itself: an article of Wikimedia Enterprise, or a page in HTML; and why it may be no article."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.corpus.provenance import licence_name
from pipeline.corpus.readers.paragraphs import at
from pipeline.corpus.readers.wikipedia import mediawiki_names

_SITE = re.compile(
    r"\s+[-–—|]\s+(?:Wikip|Вікіпедія|Википедия|ويكيبيديا|ویکی|위키백과|维基百科|維基百科|ウィキペディア).*\Z", re.IGNORECASE
)
_LANGUAGE = "//html/@lang|//body/@lang|//meta[@http-equiv='content-language']/@content"
_MEANINGS = "//*[@id='disambigbox' or @id='disambig' or contains(concat(' ', @class, ' '), ' dmbox ')]|//meta[@property='mw:PageProp/disambiguation']"

_MAY_MEAN = re.compile("""dmbox|mw:PageProp/disambiguation|id=["']?disambig""")


class NoArticle(Exception):
    """A record has not the fields of an article. Attributes: field: that is missing or not of its kind."""

    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class Article:
    """A page as a source has it.

    Attributes:
        id, title: of the page; the id is empty where only its place says one.
        html: the page.
        wikitext: the same as its authors wrote it; empty where the source has it not.
        namespace: its key, 0 for articles.
        language: ISO 639, or empty.
        wiki: name of the database, such as `enwiki`; may be empty.
        url: of the page; may be empty.
        licence: of the text, by its SPDX name; several of which each will do joined by OR; may be empty.
        templates: names of those that the page uses, without their namespace.
    """

    id: str = ""
    title: str = ""
    html: str
    wikitext: str = ""
    namespace: int = 0
    language: str = ""
    wiki: str = ""
    url: str = ""
    licence: str = ""
    templates: tuple[str, ...] = ()


def of_record(record: Mapping[str, Any]) -> Article:
    """An article as Wikimedia Enterprise writes it.

    Raises:
        NoArticle: it has no HTML, or no name.
    """
    html = at(record, "article_body.html")
    name, number = record.get("name"), record.get("identifier")
    if not isinstance(html, str):
        raise NoArticle("article_body.html", "has no HTML in its field article_body.html")
    if not isinstance(name, str) or not isinstance(number, (int, str)):
        raise NoArticle("name", "has no name and identifier")
    namespace, wikitext = at(record, "namespace.identifier"), at(record, "article_body.wikitext")
    templates = record.get("templates")
    return Article(
        id=str(number),
        title=name,
        html=html,
        wikitext=wikitext if isinstance(wikitext, str) else "",
        namespace=namespace if isinstance(namespace, int) else 0,
        language=mediawiki_names.language_code(str(at(record, "in_language.identifier") or "")),
        wiki=str(at(record, "is_part_of.identifier") or ""),
        url=str(record.get("url") or ""),
        licence=_licence(record.get("license")),
        templates=tuple(
            str(one.get("name", "")).partition(":")[2] for one in templates or () if isinstance(one, dict)
        ),
    )  # fmt: skip


def _licence(found: Any) -> str:
    """Of a list of licences their names, as far as they have any."""
    names = [str(one.get("identifier") or one.get("url") or "") for one in found or () if isinstance(one, dict)]
    return " OR ".join(dict.fromkeys(licence_name(name) for name in names if name))


def of_page(text: str, root: Any) -> Article:
    """A page in HTML."""
    heading = root.xpath("//*[@id='firstHeading']")
    title = "".join(heading[0].itertext()) if heading else root.findtext(".//title") or ""
    languages = [mediawiki_names.language_code(value.strip()) for value in root.xpath(_LANGUAGE)]
    return Article(
        title=" ".join(_SITE.sub("", title).split()),
        html=text,
        language=next(filter(None, languages), ""),
        namespace=_namespace(root),
    )


def _namespace(root: Any) -> int:
    """The key of the namespace: of Parsoid's pages by `<meta>`, of a skin's by the class of their body."""
    for value in root.xpath("//meta[@property='mw:pageNamespace']/@content"):
        if value.strip().lstrip("-").isdigit():
            return int(value)
    body = root.find("body")
    found = re.search(r"(?:^|\s)ns-(\d{1,4})(?=\s|$)", body.get("class", "")) if body is not None else None
    return int(found[1]) if found else 0


def reason(article: Article, root: Any, more: frozenset[str]) -> str | None:
    """Why a page is no article.

    Args:
        article: what it says of itself.
        root: of its HTML.
        more: names of templates that mark disambiguation pages, beside the known ones, in lower case.
    """
    text = article.html  # a search in its tree takes as long as parsing it
    redirect = "mw:PageProp/redirect" in text and root.xpath("boolean(//link[@rel='mw:PageProp/redirect'])")
    if redirect or mediawiki_names.is_redirect(article.wikitext):
        return "redirect"
    if article.namespace:
        return "namespace"
    written = "".join(f"{{{{{name}}}}}" for name in article.templates)
    if (
        mediawiki_names.names_meanings(article.title)
        or mediawiki_names.lists_meanings(article.wikitext or written, more)
        or (_MAY_MEAN.search(text) and root.xpath(f"boolean({_MEANINGS})"))
    ):
        return "disambiguation"
    return None
