"""Provenance: origin and licence of the text, from the config or from the readers."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cloze.core import hub_names, storage

UNKNOWN = "unknown"
"""Name of a missing licence."""

_CREATIVE = re.compile(
    r"(?:https?://)?(?:www\.)?creativecommons\.org/licen[sc]es/(?P<path>[a-z]+(?:-[a-z]+)*)/"
    r"(?P<number>\d\.\d)(?:/.*)?"
    r"|(?:creative commons|cc)[ -](?P<words>by(?:[ -](?:nc|nd|sa))*)[ -]v?(?P<version>\d\.\d)",
    re.IGNORECASE,
)
_ZERO = re.compile(
    r"(?:https?://)?(?:www\.)?creativecommons\.org/publicdomain/zero/1\.0(?:/.*)?|cc[ -]?0(?:[ "
    r"-]1\.0)?",
    re.IGNORECASE,
)
_OR, _AND, _BRACKETS = map(re.compile, (r"\s+or\s+", r"\s+and\s+", r"\(([^()]*)\)"))
_ACCEPTED, _REFUSED = "\0", "\1"  # stand for an expression in brackets
_DATE = re.compile(r"-(20\d\d)(?:(\d\d)(\d\d)|-(\d\d)-(\d\d))?(?=[-.])")
# Reserved in a title; other letters are allowed in URLs (RFC 3987).
_RESERVED = re.compile(r"[%?#&+\"<>\\^`{|}\s]")
# Wikimedia projects under one licence, and the dates of the changes: GFDL to CC BY-SA 3.0 on 15
# June 2009, to 4.0 on 7 June 2023 (https://foundation.wikimedia.org/wiki/Policy:Terms_of_Use).
# Wikinews and Wikidata have other licences.
_WIKIMEDIA = re.compile(
    r"(?:([\w-]+)\.)?(?:m\.)?(wikipedia|wiktionary|wikibooks|wikiquote|wikisource|wikiversity|"
    r"wikivoyage)\.org"
)
_SINCE = (("2023-06-07", "CC-BY-SA-4.0"), ("2009-06-15", "CC-BY-SA-3.0"), ("", "GFDL-1.2-or-later"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Provenance of a source; unknown fields are empty."""

    name: str = ""  # name of the collection, such as `enwiki`
    url: str = ""  # address it was downloaded from
    date: str = ""  # date of the snapshot: year, month or day in ISO 8601
    licence: str = ""  # licence of the text: SPDX name or expression, or any text

    @property
    def label(self) -> str:
        """Return name and date; documents carry it as their origin."""
        return f"{self.name} {self.date}".strip()

    def filled(self, other: Origin) -> Origin:
        """Return a copy with empty fields filled from `other`."""
        return Origin(**{key: value or getattr(other, key) for key, value in asdict(self).items()})


NOTHING_KNOWN = Origin()


def merge_origins(origins: Iterable[Origin]) -> Origin:
    """Merge the origins of one file that several sources contain; licences are joined by OR."""
    known = [asdict(origin) for origin in origins]
    values = {name: sorted({each[name] for each in known} - {""}) for name in asdict(NOTHING_KNOWN)}
    return Origin(
        **{name: (" OR " if name == "licence" else ", ").join(values[name]) for name in values}
    )


def licence_name(text: str) -> str:
    """Normalize a licence name: Creative Commons names and URLs to SPDX, others unchanged."""
    text = " ".join(text.split())
    if _ZERO.fullmatch(text):
        return "CC0-1.0"
    match = _CREATIVE.fullmatch(text)
    if match is None:
        return text
    return (
        f"CC-{(match['path'] or match['words']).replace(' ', '-')}-"
        f"{match['number'] or match['version']}"
    ).upper()


def license_matches(licence: str, accepted: frozenset[str]) -> bool:
    """Return True if `licence` is in `accepted` (casefolded names).

    `A OR B` needs one of the names, `A AND B` both; AND binds more tightly, and brackets group.
    """

    def accepts(expression: str) -> bool:
        return any(
            all(name.strip() in names for name in _AND.split(alternative))
            for alternative in _OR.split(expression)
        )

    licence, names = (licence or UNKNOWN).casefold(), accepted | {_ACCEPTED}
    if licence in accepted:
        return True
    while match := _BRACKETS.search(licence):  # the first innermost ones
        value = _ACCEPTED if accepts(match[1]) else _REFUSED
        licence = f"{licence[: match.start()]} {value} {licence[match.end() :]}"
    return accepts(licence)


def wiki(name: str, base: str, file: str) -> Origin:
    """Return the origin of a wiki dump.

    Args:
        name: database name such as `enwiki`; may be empty, as in old dumps.
        base: URL of the main page; may be empty.
        file: file name of the dump, which may contain the date.
    """
    try:
        host = (urlsplit(base).hostname or "").removeprefix("www.")
    except ValueError:  # no URL
        host = ""
    match = _DATE.search(file)
    date = "-".join(filter(None, match.groups())) if match else ""
    known = _WIKIMEDIA.fullmatch(host)
    if known and known[1]:
        name = name or f"{known[1].replace('-', '_')}{known[2].replace('wikipedia', 'wiki')}"
    return Origin(
        name=name or host,
        url=f"https://{host}/" if host else "",
        date=date,
        licence=wiki_licence(host, date),
    )


def wiki_licence(host: str, date: str = "") -> str:
    """Return the licence of a Wikimedia wiki on `date` (default: today); empty for other hosts."""
    if not _WIKIMEDIA.fullmatch(host):
        return ""
    return next(licence for since, licence in _SINCE if not date or date >= since[: len(date)])


def page_url(base: str, title: str) -> str:
    """Return the URL of a page, derived from the main page's URL; empty if that is unknown."""
    before, separator, _ = base.rpartition("title=") if "title=" in base else base.rpartition("/")
    if not separator or "//" not in before:
        return ""
    return (
        f"{before}{separator}"
        f"{_RESERVED.sub(lambda match: f'%{ord(match[0]):02X}', title.replace(' ', '_'))}"
    )


_HEAD = re.compile(r"---\s*?\n(.*?)^---\s*?$", re.DOTALL | re.MULTILINE)
# Heads list the columns of each configuration, up to megabytes: only these keys are parsed.
_LICENCES = re.compile(r"^licenses?(?:_name)?:(?:[ \t].*|\s*?$)(?:\n(?:[ \t-].*|$))*", re.MULTILINE)


def card_licence(path: str) -> tuple[str, str]:
    """Return the name of a data set, and the licence that its card (README.md) states.

    The card lies in a repository of the Hub, or up to three folders above the files of a copy
    (CONFIG/SPLIT/FILE); the nearest counts. Without one that states a licence, a copy has no name.
    """
    import yaml

    repository = hub_names.repository(path)
    folders = [path, *map(str, Path(path).parents)][:4] if storage.is_local(path) else []
    for folder in [repository] if repository else folders:
        with contextlib.suppress(OSError, yaml.YAMLError):  # none, or none that can be read
            text = storage.read_at_once(storage.join(folder, "README.md"))
            head = _HEAD.match(text.decode("utf-8-sig", "replace"))
            stated = yaml.safe_load("\n".join(_LICENCES.findall(head[1] if head else ""))) or {}
            given = stated.get("license_name") or stated.get("license") or stated.get("licenses")
            parts = given.values() if isinstance(given, dict) else [given]  # by configuration
            listed = itertools.chain(*(p if isinstance(p, list) else [p] for p in parts))
            # each of several applies; what is unknown of a part stays
            names = dict.fromkeys(licence_name(name) for name in listed if isinstance(name, str))
            licence = " AND ".join(names if set(names) != {UNKNOWN} else ())
            return repository or (Path(folder).absolute().name if licence else ""), licence
    return repository, ""
