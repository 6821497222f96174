"""Names of MediaWiki by language: redirects, disambiguation pages, appended sections, projects.

A dump names its namespaces, but not their aliases (`Bild:` for `Datei:`), its magic words, or the
templates of disambiguation pages. They are data (mediawiki_names.txt); more can be set in the
config.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from cloze.pipeline.corpus.readers import prose

_LISTS = prose.read_lists(Path(__file__).with_suffix(".txt"), " | ")


def read_table(section: str) -> dict[str, str]:
    """Return a section of the data whose entries are a key, a blank and a value."""
    return {key: value for key, _, value in (entry.partition(" ") for entry in _LISTS[section])}


def alternatives(section: str) -> str:
    """Return the entries of a section as the alternatives of a pattern."""
    return prose.alternatives(_LISTS, section)


def read_list(section: str) -> list[str]:
    """Return the entries of a section of the data in order."""
    return _LISTS[section]


def read_names(section: str) -> frozenset[str]:
    """Return the entries of a section of the data."""
    return frozenset(_LISTS[section])


FILE_ALIASES = read_names("file namespaces")
MEDIA_ALIASES = read_names("media namespaces")
CATEGORY_ALIASES = read_names("category namespaces")
ENGLISH_NAMES = read_table("language names en")
GERMAN_NAMES = read_table("language names de")


# Redirects.

_WORDS = "|".join(re.escape(word).replace("_", "[ _]?") for word in _LISTS["redirects"])
_KNOWN_REDIRECT = re.compile(rf"\s*#\s*(?:{_WORDS})\s*:?\s*\[\[", re.IGNORECASE)
# `#WORD [[Target]]` followed only by templates, categories and switches: any word means a redirect.
_BARE_REDIRECT = re.compile(
    r"\s*#[^\W\d_][^\[\]{}|#\n]{0,40}:?\s*\[\[[^\[\]\n]{1,255}\]\]\s*(?:(?:\{\{[^{}]*\}\}|"
    r"\[\[[^\[\]\n]*:[^\[\]\n]*\]\]|__\w+__)\s*)*"
)


def is_redirect(text: str) -> bool:
    """Return True if the text of a page is a redirect."""
    head = text[:200].lstrip()
    if not head.startswith("#"):
        return False
    if _KNOWN_REDIRECT.match(head):
        return True
    return len(text) < 2000 and _BARE_REDIRECT.fullmatch(text) is not None


# Disambiguation pages.

_TEMPLATES = read_names("disambiguation templates")
_ENDINGS = tuple(f" {name}" for name in ("disambig", "disambiguation", "dab"))
_BEGINNINGS = ("airport disambig", "letter-number", "species latin name")
_OPENING = re.compile(r"\{\{(\s*[^|{}\n]*)[|}\n]")
_TEMPLATE = re.compile(r"(?:[^\W\d_]{2,20}:)?([^\W\d][^|{}\n]{0,60}?)")
_LONGEST_NAME = 82  # characters; longer texts are not cached
_TITLE = re.compile(
    rf"[(（](?:{'|'.join(map(re.escape, _LISTS['disambiguation titles']))})[)）]$", re.IGNORECASE
)


def lists_meanings(text: str, more: frozenset[str] = frozenset()) -> bool:
    """Return True if a page has the magic word or a template of disambiguation, `more` included."""
    for opening in set(_OPENING.findall(text)):  # most occur many times
        opening = opening.strip()
        if len(opening) <= _LONGEST_NAME:
            name, is_known = _template_name(opening)
            if is_known or name in more:
                return True
    return "__DISAMBIG__" in text


@functools.lru_cache(maxsize=1 << 13)  # most pages use the same ones
def _template_name(opening: str) -> tuple[str, bool]:
    """Return a template's lower-case name, and whether it marks disambiguation pages."""
    match = _TEMPLATE.fullmatch(opening)
    name = match[1].lower().replace("_", " ") if match else ""
    return name, name in _TEMPLATES or name.endswith(_ENDINGS) or name.startswith(_BEGINNINGS)


def names_meanings(title: str) -> bool:
    """Return True if a title ends like a disambiguation page: `Mercury (disambiguation)`."""
    return title[-1:] in (")", "）") and bool(_TITLE.search(title))


# Sections, languages and projects.

APPENDED_SECTIONS = {
    section.rpartition(" ")[2]: names
    for section, names in _LISTS.items()
    if section.startswith("appended sections ")
}

PROSE_OR_LISTS = read_names("sections of prose or of lists")


def appended_sections(*languages: str) -> frozenset[str]:
    """Return lower-case headings of references, links and notes in `languages` (none: all)."""
    known = languages or tuple(APPENDED_SECTIONS)
    return frozenset(name for language in known for name in APPENDED_SECTIONS.get(language, ()))


_CODE = re.compile(r"([a-z]{2,3})(?:-.*)?")
_NAMESPACES = read_table("namespaces by project")
_OTHERS = "|".join(name for name in _NAMESPACES if name != "wikipedia")
_DATABASE = re.compile(rf"(?:.*?)({_OTHERS})(?:wiki)?")
_HOST = re.compile(rf"https?://(?:[\w-]+\.)*({_OTHERS})\.")


def language_code(name: str) -> str:
    """Return the ISO 639 code of `xml:lang` (`zh-Hans`: `zh`); empty if invalid."""
    match = _CODE.fullmatch(name.lower())
    return match[1] if match else ""


def project(dbname: str, base: str) -> str:
    """Return the Wikimedia project of a dump: `wiktionary`, `commons`; of others `wikipedia`.

    Args:
        dbname: database name, such as `enwiktionary`.
        base: URL of a page of the wiki.
    """
    match = _DATABASE.fullmatch(dbname.lower()) or _HOST.match(base.lower())
    return match[1] if match else "wikipedia"


def namespaces_of(project: str) -> tuple[str, ...]:
    """Return the namespaces of a project that are read by default: 0, and lower-case names."""
    return tuple(filter(None, _NAMESPACES[project].split(";")))


# Templates of projects.

_WORDS_OF_WIKTIONARY = read_names("wiktionary words")
_LISTING_NAMES = _LISTS["listing names"]
_LISTING_CONTENT = re.compile(rf"(.*?)(?:{'|'.join(map(re.escape, _LISTS['listing contents']))})")


def listing(content: str) -> str:
    """Return names and descriptions of a listing of Wikivoyage, `Mill: It is old.`, else "".

    Args:
        content: text between the braces, with inner templates rendered.
    """
    arguments: dict[str, str] = {}
    for argument in content.split("|")[1:]:
        key, equals, value = argument.partition("=")
        if equals:
            arguments[key.strip().lower()] = " ".join(value.split())
    pieces: list[str] = []
    for key, value in arguments.items():
        if value and (match := _LISTING_CONTENT.fullmatch(key)):
            names = (arguments.get(f"{match[1]}{name}") for name in _LISTING_NAMES)
            pieces.append(": ".join((*list(filter(None, names))[:1], value)))
    return "\n\n".join(pieces) or next(
        (arguments[name] for name in _LISTING_NAMES if arguments.get(name)), ""
    )


def is_word(content: str) -> bool:
    """Return True if a template of Wiktionary shows the word that it names."""
    return content.partition("|")[0].strip().lower() in _WORDS_OF_WIKTIONARY
