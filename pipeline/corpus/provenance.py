"""Where text is from, and under which licence: what a source is said to be, what its reader finds out, and how licences are called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from urllib.parse import urlsplit

UNKNOWN = "unknown"
"""What a licence is called that nobody names."""

_CREATIVE = re.compile(
    r"(?:https?://)?(?:www\.)?creativecommons\.org/licen[sc]es/(?P<path>[a-z]+(?:-[a-z]+)*)/(?P<number>\d\.\d)(?:/.*)?"
    r"|(?:creative commons|cc)[ -](?P<words>by(?:[ -](?:nc|nd|sa))*)[ -]v?(?P<version>\d\.\d)",
    re.IGNORECASE,
)
_ZERO = re.compile(
    r"(?:https?://)?(?:www\.)?creativecommons\.org/publicdomain/zero/1\.0(?:/.*)?|cc[ -]?0(?:[ -]1\.0)?", re.IGNORECASE
)
_OR, _AND = re.compile(r"\s+OR\s+", re.IGNORECASE), re.compile(r"\s+AND\s+", re.IGNORECASE)
_DATE = re.compile(r"-(\d{4})(?:(\d\d)(\d\d)|-(\d\d)-(\d\d))?(?=[-.])")
_RESERVED = re.compile(r"[%?#&+\"<>\\^`{|}\s]")  # in a title; other letters stand in an address as they are (RFC 3987)
# Projects whose text is under one licence, and since when (https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use; the change to 4.0 was
# on 7 June 2023, the one from the GFDL on 15 June 2009). Wikinews and Wikidata have others.
_WIKIMEDIA = re.compile(
    r"(?:([\w-]+)\.)?(?:m\.)?(wikipedia|wiktionary|wikibooks|wikiquote|wikisource|wikiversity|wikivoyage)\.org"
)
_SINCE = (("2023-06-07", "CC-BY-SA-4.0"), ("2009-06-15", "CC-BY-SA-3.0"), ("", "GFDL-1.2-or-later"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What is known of a source; empty where nothing is.

    Attributes:
        name: of the collection, such as `enwiki`.
        url: where it was got.
        date: of the snapshot: a year, a month or a day, as in ISO 8601.
        licence: of its text: an SPDX name or expression, or any text.
    """

    name: str = ""
    url: str = ""
    date: str = ""
    licence: str = ""

    @property
    def label(self) -> str:
        """Name and date: what documents carry."""
        return f"{self.name} {self.date}".strip()

    def filled(self, found: Origin) -> Origin:
        """With what is not said here as `found` says it."""
        return Origin(**{name: value or getattr(found, name) for name, value in asdict(self).items()})


NOTHING_KNOWN = Origin()


def joined(origins: Iterable[Origin]) -> Origin:
    """What several sources say of one file: of two licences either holds."""
    given = list(origins)
    found = {name: sorted({getattr(one, name) for one in given} - {""}) for name in (field.name for field in fields(Origin))}
    return Origin(**{name: (" OR " if name == "licence" else ", ").join(values) for name, values in found.items()})


def licence_name(text: str) -> str:
    """How a licence is called here: those of Creative Commons by their SPDX name, also from their address; others as they stand."""
    text = " ".join(text.split())
    if _ZERO.fullmatch(text):
        return "CC0-1.0"
    found = _CREATIVE.fullmatch(text)
    if found is None:
        return text
    return f"CC-{(found['path'] or found['words']).replace(' ', '-')}-{found['number'] or found['version']}".upper()


def allows(licence: str, wanted: frozenset[str]) -> bool:
    """Whether a licence is one of `wanted` (casefolded names): of `A OR B` one suffices, of `A AND B` it takes both."""
    names = [_AND.split(one) for one in _OR.split(licence or UNKNOWN)]
    return licence.casefold() in wanted or any(all(name.strip("() ").casefold() in wanted for name in one) for one in names)


def wiki(name: str, base: str, file: str) -> Origin:
    """A wiki's dump.

    Args:
        name: of its database, such as `enwiki`; may be empty, as in old dumps.
        base: address of its main page; may be empty.
        file: the dump's name, which may say the day.
    """
    host = (urlsplit(base).hostname or "").removeprefix("www.")
    found = _DATE.search(file)
    date = "-".join(filter(None, found.groups())) if found else ""
    known = _WIKIMEDIA.fullmatch(host)
    if known and known[1]:
        name = name or known[1].replace("-", "_") + ("wiki" if known[2] == "wikipedia" else known[2])
    return Origin(name=name or host, url=f"https://{host}/" if host else "", date=date, licence=wiki_licence(host, date))


def wiki_licence(host: str, date: str = "") -> str:
    """The licence of the text of Wikimedia's wikis on that day, and today where it is not known; of others empty."""
    if not _WIKIMEDIA.fullmatch(host):
        return ""
    return next(licence for since, licence in _SINCE if not date or date >= since[: len(date)])


def page_url(base: str, title: str) -> str:
    """The address of a wiki's page, from that of its main page; empty where that is not known."""
    before, at, _ = base.rpartition("title=") if "title=" in base else base.rpartition("/")
    if not at or "//" not in before:
        return ""
    return f"{before}{at}{_RESERVED.sub(lambda match: f'%{ord(match[0]):02X}', title.replace(' ', '_'))}"
