"""Project Gutenberg's frames of all times, and several in one file. The wordings are those of its
files; the books are invented.
"""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.readers.base import ReadCounters, Slice
from cloze.pipeline.corpus.readers.books.gutenberg import strip_boilerplate, title
from tests.growth import is_linear

BOOK = (
    "CHAPTER I\n\n"
    + (
        "It was the best of times, and nobody knew which of them it was.\nThe end of the story was "
        "far.\n\n"
    )
    * 30
)

SMALL_PRINT = (
    "***START**THE SMALL PRINT!**FOR PUBLIC DOMAIN ETEXTS**START***\nWhy is this \"Small Print!\" "
    "statement here? You know: lawyers.\n\n"
    "*BEFORE!* YOU USE OR READ THIS ETEXT\nBy using or reading any part of this PROJECT "
    "GUTENBERG-tm\netext, you indicate that you agree.\n\n"
    "WHAT IF YOU *WANT* TO SEND MONEY EVEN IF YOU DON'T HAVE TO?\n\n"
)  # fmt: skip
OLD_HEAD = (
    "**The Project Gutenberg Etext of The Towers, by A. Nobody**\n\nCopyright laws are changing "
    "all over the world, be sure to check.\n\n"
    "**Welcome To The World of Free Plain Vanilla Electronic Texts**\n\n**Etexts Readable By Both "
    "Humans and By Computers, Since 1971**\n\n"
)

HEADS = {
    "none": "",
    "2020": (
        "The Project Gutenberg eBook of The Towers\n\nTitle: The Towers\n\n*** START OF THE "
        "PROJECT GUTENBERG EBOOK THE TOWERS ***\n"
    ),
    "2005": "Title: The Towers\n\n*** START OF THIS PROJECT GUTENBERG EBOOK THE TOWERS ***\n",
    "2004": "Title: The Towers\n\n***START OF THE PROJECT GUTENBERG EBOOK THE TOWERS***\n",
    "two lines": (
        "Title: The Towers\n\n*** START OF THIS PROJECT GUTENBERG EBOOK THE TOWERS\nOF THE TOWN "
        "***\n"
    ),
    "e-text": "Title: The Towers\n\n*** START OF THE PROJECT GUTENBERG E-TEXT THE TOWERS ***\n",
    "copyrighted": (
        "Title: The Towers\n\n*** START OF THE COPYRIGHTED PROJECT GUTENBERG EBOOK THE TOWERS ***\n"
    ),
    "1993": OLD_HEAD
    + SMALL_PRINT
    + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
    "1992": OLD_HEAD
    + SMALL_PRINT
    + "*END THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.07.02.92*END*\n",
    "1995": OLD_HEAD
    + SMALL_PRINT
    + "*END THE SMALL PRINT! FOR COPYRIGHT PROTECTED ETEXTS*Ver.04.29.93*END*\n",
    "2002": OLD_HEAD
    + SMALL_PRINT.replace("ETEXTS", "EBOOKS")
    + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN EBOOKS*Ver.02/11/02*END*\n",
    "broken line": OLD_HEAD
    + SMALL_PRINT
    + "*END THE SMALL PRINT! FOR COPYRIGHT\nPROTECTED ETEXTS*END*\n",
    "again": "*** START OF THE PROJECT GUTENBERG EBOOK THE TOWERS ***\n\n\n"
    + OLD_HEAD
    + SMALL_PRINT
    + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
    "german": "Titel: The Towers\n\n*** START OF THIS PROJECT GUTENBERG EBOOK THE TOWERS ***\n",
}
TAILS = {
    "none": "",
    "2020": (
        "*** END OF THE PROJECT GUTENBERG EBOOK THE TOWERS ***\n\nUpdated editions will replace "
        "the previous one.\n\n*** START: FULL LICENSE ***\nlicence words\n"
    ),
    "2005": (
        "End of the Project Gutenberg EBook of The Towers, by A. Nobody\n\n*** END OF THIS PROJECT "
        "GUTENBERG EBOOK THE TOWERS ***\n\nlicence words\n"
    ),
    "2004": "***END OF THE PROJECT GUTENBERG EBOOK THE TOWERS***\nlicence words\n",
    "etext": "End of The Project Gutenberg Etext of The Towers, by A. Nobody\n",
    "etext 2": "End of this Project Gutenberg Etext of The Towers\nmore of it\n",
    "etext 3": "End of Project Gutenberg's Etext of The Towers\n",
    "etext 4": "The End of the Project Gutenberg Etext of The Towers\n",
    "etext 5": "**End of The Project Gutenberg Etext of The Towers**\n",
    "this etext": "End of this Etext of The Towers\n",
    "indented": "        End of Project Gutenberg's The Towers, by A. Nobody\n",
    "is the end": "This is the end of the Project Gutenberg Etext of The Towers\n",
    "german": "Ende dieses Project Gutenberg Etextes The Towers\n\nlicence words\n",
    "german 2": "Ende dieses Projekt Gutenberg Etextes The Towers\n",
    "french": "Fin de Project Gutenberg's The Towers, by A. Nobody\n",
    "french 2": "Fin du Projet... \nFin de l'Etext de Project Gutenberg The Towers\n",
    "italian": "Fine di questo Etext Project Gutenberg\n",
    "dutch": "Einde van het Project Gutenberg EBook van The Towers\n",
    "copyrighted": "End of this is COPYRIGHTED Project Gutenberg Etext of The Towers\n",
    "small print": SMALL_PRINT
    + "*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
    "top": "More information about this book is at the top of this file.\n\nlicence words\n",
}


def strip(text):
    tally = ReadCounters(slice=Slice(kind="books", name="a.txt", path="a.txt", size=0))
    return strip_boilerplate(text, tally).strip(), tally


LEFT = {
    "french 2": "\n\n\n\nFin du Projet..."
}  # a line by itself that names nobody, and is taken for text

# A small print after the book is the only one.
FRAMES = [
    (head, tail) for head in HEADS for tail in TAILS if tail != "small print" or head == "none"
]


@pytest.mark.parametrize(("head", "tail"), FRAMES)
def test_heads_and_tails(head, tail):
    long = BOOK * 25 if tail == "small print" else BOOK
    text, tally = strip(f"{HEADS[head]}\n\n{long}\n\n{TAILS[tail]}")
    assert text == f"{long.strip()}{LEFT.get(tail, '')}"
    if head != "none" or tail != "none":
        assert tally.counters["dropped_lines/licence"] >= 1
    assert title(HEADS[head]) == ("" if head == "none" else "The Towers")


def test_several_books_in_a_file():
    text, _ = strip("\n\n".join(f"{HEADS['2005']}\n\n{BOOK}\n\n{TAILS['2005']}" for _ in range(3)))
    assert text.count("CHAPTER I") == 3
    assert "licence" not in text
    assert "GUTENBERG" not in text.upper()


def test_a_long_book_whose_frame_is_not_closed():
    text, _ = strip(f"{HEADS['1993']}{BOOK * 25}{HEADS['2005']}{BOOK}")
    assert text.count("CHAPTER I") == 26


def test_the_notice_between_plays():
    notice = (
        "<<THIS ELECTRONIC VERSION OF THE COMPLETE WORKS OF WILLIAM\nSHAKESPEARE IS COPYRIGHT "
        "1990-1993 BY WORLD LIBRARY, INC., AND IS\nPROVIDED BY PROJECT GUTENBERG.>>"
    )
    text, _ = strip(f"{HEADS['1993']}{BOOK}\n{notice}\n{BOOK}")
    assert "ELECTRONIC" not in text
    assert text.count("CHAPTER I") == 2


@pytest.mark.parametrize(
    "text",
    [
        "In the end he read a book of Project management.",
        "He visited Gutenberg's house in Mainz.\nThe end of the day came.",
        "At the end of this book there was an index. It was long.",
    ],
)
def test_books_that_speak_of_such_things_stay(text):
    assert strip(f"{BOOK}\n\n{text}\n\n{BOOK}")[0].count("CHAPTER I") == 2


def test_a_long_line_of_names_takes_linear_time() -> None:
    tally = ReadCounters(slice=Slice(kind="books", name="a.txt", path="a.txt", size=0), stop=False)
    assert is_linear(lambda count: strip_boilerplate("Project Gutenberg " * count, tally), 240_000)
