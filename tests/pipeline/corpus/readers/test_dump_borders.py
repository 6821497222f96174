"""Pages of a dump are the same wherever what is read at a time ends."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.corpus.readers.encyclopedia import mediawiki_xml
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_xml import Dump, Page
from cloze.pipeline.corpus.readers.streams import CorruptStreamError

HEADER = (
    '<mediawiki xml:lang="de"><siteinfo><dbname>dewiki</dbname><base>https://de.x/</base>'
    '<namespaces><namespace key="0" /><namespace key="6">Datei</namespace></namespaces>'
    "</siteinfo>\n"
)
PAGES = [
    ("Mühle", "0", "1", "Eine <b>Mühle</b> & ein Rad. &amp; mehr"),
    ("Datei:X", "6", "22", "<page> in a text </pag e>"),
    ("Leer", "0", "333", ""),
    ("Ende", "0", "4", "x" * 70 + " ü"),
]
ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


def dump() -> bytes:
    rows = []
    for title, space, number, text in PAGES:
        written = "".join(ESCAPES.get(char, char) for char in text)
        rows.append(
            f"  <page>\n <title>{title}</title><ns>{space}</ns><id>{number}</id>\n"
            f" <revision><id>9</id><model>wikitext</model><text bytes='1'>{written}</text>"
            f"</revision>\n  </page>\n"
        )
    return (HEADER + "".join(rows) + "</mediawiki>\n").encode()


class Pieces(io.RawIOBase):
    """A source that gives so many bytes at a time, in turn; `damage` is the number of one read."""

    def __init__(self, data: bytes, sizes: list[int], damage: int | None = None) -> None:
        super().__init__()
        self.data, self.sizes, self.turn, self.damage = data, sizes, 0, damage

    def read(self, size: int = -1) -> bytes:
        count = self.sizes[self.turn % len(self.sizes)]
        self.turn += 1
        if self.turn == self.damage:
            raise CorruptStreamError("damaged", "a stream cannot be unpacked", 7)
        found, self.data = self.data[:count], self.data[count:]
        return found


class Tally:
    """Counters that record every damage."""

    def __init__(self) -> None:
        self.damage: list[Any] = []

    def record_damage(self, *values: Any, **named: Any) -> None:
        self.damage.append((values, named))

    quarantine = record_damage


def read(
    data: bytes, sizes: list[int], burst: int = 1, damage: int | None = None
) -> tuple[list[Page], Any, Tally]:
    """Args: burst: bytes that are gathered before pages are looked for."""
    tally = Tally()
    source: Any = Pieces(data, sizes, damage)
    found = Dump(source, tally, 10_000)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mediawiki_xml, "_CHUNK", min(burst, 50))
        patch.setattr(mediawiki_xml, "_BURST", burst)
        return list(found.pages()), found, tally


def check(sizes: list[int], burst: int = 1) -> None:
    pages, found, tally = read(dump(), sizes, burst)
    assert [(page.title, page.ns, page.id, page.text) for page in pages] == PAGES
    assert {page.model for page in pages} == {"wikitext"}
    assert tally.damage == []
    assert (found.count, found.site.language, found.site.dbname) == (4, "de", "dewiki")
    assert found.site.names[6] >= {"datei"}


@pytest.mark.parametrize("size", [*range(1, 40), 100, 1 << 20])
def test_pieces_of_any_size_give_the_same_pages(size: int) -> None:
    check([size])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=8), st.integers(1, 1500))
def test_pieces_of_different_sizes_give_the_same_pages(sizes: list[int], burst: int) -> None:
    check(sizes, burst)


@settings(max_examples=60, deadline=None)
@given(st.integers(5, 300), st.integers(2, 1500), st.integers(1, 40))
def test_damage_costs_the_same_pages_however_much_is_gathered(
    size: int, burst: int, damage: int
) -> None:
    pages, found, tally = read(dump(), [size], burst, damage)
    expected, whole, whole_tally = read(dump(), [size], 1, damage)
    assert pages == expected
    assert (found.count, found.site) == (whole.count, whole.site)
    assert tally.damage == whole_tally.damage


def test_a_border_fits_in_what_is_kept() -> None:
    assert len("</page >") <= mediawiki_xml._LONGEST_BORDER
