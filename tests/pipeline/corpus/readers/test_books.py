"""Books: the frame around them, the layouts of text, chapters, and EPUBs from friend and foe."""

from __future__ import annotations

import zipfile

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.books import markup
from cloze.pipeline.corpus.readers.books.reader import (
    LONGEST_CHAPTER,
    PIECE,
    SHORTEST_CHAPTER,
    merge_sections,
    reader,
)
from cloze.pipeline.corpus.readers.plain_text import decode
from tests.pipeline.corpus.readers.made import chapter, write_epub
from tests.pipeline.corpus.reading import options_of
from tests.pipeline.corpus.script_texts import GERMAN

SENTENCE = (
    "It was the best of times and it was the worst of times, and nobody knew which of them it was. "
)
PARAGRAPH = (SENTENCE * 5).strip()


def wrapped(text, width=70):
    import textwrap

    return "\n".join(textwrap.wrap(text, width))


def read(tmp_path, content, name="a_book.txt", stop=True, **settings):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice, stop=stop)
    return list(reader.read(file_slice, options_of(reader, stop=stop, **settings), tally)), tally


def text_of(documents):
    return "\n".join(document.text for document in documents)


HEADS = [
    "The Project Gutenberg eBook of X\n\nTitle: The Book\n\n*** START OF THE PROJECT GUTENBERG "
    "EBOOK THE BOOK ***\n\nProduced by A. Nobody\n",
    "Title: The Book\n\n***START OF THIS PROJECT GUTENBERG EBOOK THE BOOK***\n\nE-text prepared "
    "by A. Nobody\n",
    "The Project Gutenberg Etext of The Book\n\nTitle: The Book\n\n*END*THE SMALL PRINT! FOR "
    "PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\n",
    "Title: The Book\n\n*** START OF THIS PROJECT GUTENBERG EBOOK A TITLE\nOVER TWO LINES ***\n",
]
TAILS = [
    "*** END OF THE PROJECT GUTENBERG EBOOK THE BOOK ***\n\nlicence words\n",
    "End of Project Gutenberg's The Book, by A. Nobody\n\n***END OF THIS PROJECT GUTENBERG EBOOK "
    "THE BOOK***\nlicence words\n",
    "End of the Project Gutenberg EBook of The Book\nlicence words\n",
    "THE END\n\n\n*** END OF THIS PROJECT GUTENBERG EBOOK ***\nlicence words\n",
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("tail", TAILS)
def test_the_frame_goes(tmp_path, head, tail):
    body = (
        f"The Book\n\nby A. Nobody\n\n\nCHAPTER I\n\n{wrapped(PARAGRAPH)}\n\nSo it began.\n\n\n"
        f"CHAPTER II\n\n{wrapped(PARAGRAPH)}\n\nSo it ended.\n"
    )
    documents, tally = read(tmp_path, f"{head}\n\n{body}\n\n{tail}")
    assert [d.paragraphs for d in documents] == [
        (PARAGRAPH, "So it began."),
        (PARAGRAPH, "So it ended."),
    ]
    assert [d.title for d in documents] == ["The Book: CHAPTER I", "The Book: CHAPTER II"]
    assert [d.id for d in documents] == ["books/a_book.txt/1", "books/a_book.txt/2"]
    assert tally.counters["read/documents"] == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("CHAPTER I", "CHAPTER II"),
        ("Chapter 1.", "Chapter 2."),
        ("Chapter One THE MILLIONAIRE", "Chapter Two HOW HE DINED"),
        ("I.", "II."),
        ("I. THE FIRST OF ALL", "II. THE SECOND OF ALL"),
        ("LETTER 1", "LETTER 2"),
        ("BOOK THE FIRST", "BOOK THE SECOND"),
        ("THE FIRST BOOK", "THE SECOND BOOK"),
        ("STAVE ONE: THE GHOST", "STAVE TWO: ANOTHER"),
        ("PREFACE", "CHAPTER I\n\nA LOST LANDMARK"),
        ('CHAPTER I\n\n "There Are Heroisms"', "CHAPTER II"),
    ],
)
def test_headings(tmp_path, first, second):
    documents, _ = read(
        tmp_path, f"\n\n{first}\n\n{wrapped(PARAGRAPH)}\n\n\n\n{second}\n\n{wrapped(PARAGRAPH)}\n"
    )
    assert [d.paragraphs for d in documents] == [(PARAGRAPH,), (PARAGRAPH,)]


def test_contents_notes_and_marks_go(tmp_path):
    text = (
        "THE BOOK\n\n\nCONTENTS\n\n CHAPTER I. The One      1\n CHAPTER II. The Other      20\n\n\n"
        "CHAPTER I. The One\n\n"
        f"{wrapped(PARAGRAPH)}\n\nShe said _very\nloudly_ that it[1] cost 12_s_. [Illustration: a "
        f"cat]\n\n* * * * *\n\n{wrapped(PARAGRAPH)}\n\n"
        "CHAPTER II. The Other\n\n"
        + f"{wrapped(PARAGRAPH)}\n\n" * 20
        + "TRANSCRIBER'S NOTES\n\nThe spelling was kept.\n\nSo was all else.\n"
    )
    documents, tally = read(tmp_path, text)
    assert len(documents) == 2
    assert documents[0].paragraphs == (
        PARAGRAPH,
        "She said very loudly that it cost 12s.",
        PARAGRAPH,
    )
    assert set(documents[1].paragraphs) == {PARAGRAPH}
    assert tally.counters["dropped_lines/contents"] == 3
    assert tally.counters["dropped_lines/transcriber_note"] == 3


@pytest.mark.parametrize("before", [0, 6, 20])
def test_contents_go_from_short_books_wherever_they_stand(tmp_path, before):
    """After a preface, too, though that is past the middle of a booklet."""
    contents = "CONTENTS\n\n CHAPTER I. The One      1\n CHAPTER II. The Other      20\n\n\n"
    chapters = [
        f"CHAPTER {name}\n\n{wrapped(PARAGRAPH)}\n\n" for name in ("I. The One", "II. The Other")
    ]
    text = f"{wrapped(PARAGRAPH)}\n\n" * before + contents + "".join(chapters)
    documents, tally = read(tmp_path, text)
    assert tally.counters["dropped_lines/contents"] == 3
    assert [p for d in documents for p in d.paragraphs] == [PARAGRAPH] * (before + 2)


def test_three_layouts_give_one_text(tmp_path):
    paragraphs = [
        f"Paragraph {n} begins here and goes on. {SENTENCE * (n % 4 + 1)}And so it ends."
        for n in range(60)
    ]
    layouts = {
        "blank.txt": "\n\n".join(wrapped(p) for p in paragraphs),
        "wrapped.txt": "\n".join(wrapped(p) for p in paragraphs),
        "lines.txt": "\n".join(paragraphs),
        "spaced.txt": "\r\n\r\n".join(wrapped(p).replace("\n", " \r\n") for p in paragraphs),
    }
    texts = {
        name: [p for d in read(tmp_path, text, name)[0] for p in d.paragraphs]
        for name, text in layouts.items()
    }
    assert texts["blank.txt"] == paragraphs
    assert texts["lines.txt"] == paragraphs
    assert texts["spaced.txt"] == paragraphs
    assert " ".join(texts["wrapped.txt"]) == " ".join(paragraphs)
    assert len(texts["wrapped.txt"]) > 40  # a last line that is full hides a border


def test_verse_is_kept(tmp_path):
    text = (
        f"CHAPTER I\n\n{wrapped(PARAGRAPH)}\n\n  Sing, goddess, the anger,\n    of one who was "
        f"angry;\n  and sing it to me.\n\n{wrapped(PARAGRAPH)}\n"
    )
    documents, _ = read(tmp_path, text)
    assert (
        documents[0].paragraphs[1]
        == "Sing, goddess, the anger, of one who was angry; and sing it to me."
    )


def test_sections_are_of_a_sensible_length():
    long = ["x" * 1000] * 250
    found = merge_sections(
        [
            ("Part", []),
            ("One", ["y" * 100]),
            ("Two", ["z" * SHORTEST_CHAPTER]),
            ("Long", long),
            ("End", ["w"]),
        ]
    )
    assert found[0] == ("Two", ["y" * 100, "z" * SHORTEST_CHAPTER])
    lengths = [sum(map(len, paragraphs)) for _, paragraphs in found[1:]]
    assert sum(lengths) == 250_001
    assert all(PIECE * 0.8 < length < PIECE * 1.3 for length in lengths)
    assert merge_sections([("", ["x" * LONGEST_CHAPTER])]) == [("", ["x" * LONGEST_CHAPTER])]
    assert merge_sections([]) == merge_sections([("a", [])]) == []


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (f"\ufeffCafé. {PARAGRAPH}".encode(), "Café."),
        (f"Café — “so”. {PARAGRAPH}".encode("cp1252"), "Café — “so”."),
        (f"Café. {PARAGRAPH}".encode("utf-16"), "Café."),
    ],
)
def test_encodings(tmp_path, data, words):
    documents, tally = read(tmp_path, data)
    assert documents[0].text.startswith(words)
    assert tally.counters["encoding/windows-1252"] == (b"\x97" in data)


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", GERMAN),
        ("cp1252", GERMAN[:90]),
        ("cp1252", "Paris est située sur un méandre de la Seine, à l’époque gallo-romaine. " * 9),
        ("cp1252", "Stockholm är Sveriges största stad. Där ligger slottet på ön. " * 9),
        ("cp1254", "Boğaz'ın iki yakasında kurulmuş olan şehir, birçok uygarlığa ev oldu. " * 9),
        ("cp1250", "Położona jest nad Wisłą. Zażółć gęślą jaźń. Największe miasto kraju. " * 9),
        ("iso8859-2", "Praha je hlavní a současně největší město. Leží na řece Vltavě. " * 9),
    ],
)
def test_other_encodings_are_not_read_as_windows_1252(tmp_path, encoding, text):
    path = tmp_path / "a.txt"
    path.write_bytes(b"")
    tally = ReadCounters(slice=reader.slices(str(path))[0], stop=False)
    assert decode(text.encode(encoding), tally) == (text if encoding == "cp1252" else None)
    assert tally.counters["quarantined/bad_encoding"] == (encoding != "cp1252")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty_file"),
        (b" \n\n", "empty_file"),
        (b"abc\0def", "binary"),
        (b"\xff\xfea", "bad_encoding"),
    ],
)
def test_files_that_are_no_text(tmp_path, data, reason):
    documents, tally = read(tmp_path, data)
    assert documents == []
    assert tally.counters[f"quarantined/{reason}"] == 1


def test_the_samples(samples):
    for file_slice in reader.slices(str(samples / "books")):
        tally = ReadCounters(slice=file_slice)
        documents = list(reader.read(file_slice, options_of(reader), tally))
        assert len(documents) >= 4, file_slice.name
        text = text_of(documents)
        assert "GUTENBERG" not in text.upper()
        assert "CHAPTER I." not in text
        assert not tally.unreadable


# EPUB


def test_an_epub_is_read_in_the_order_of_its_spine(tmp_path):
    body = (
        f"<p>{PARAGRAPH}</p><p>A&nbsp;<i>b</i> c&mdash;d.<br/>E<sup>1</sup>.</p><p "
        f"class='footnote'>note</p>"
    )
    chapters = {
        "b.xhtml": chapter("Two", body),
        "a.xhtml": chapter("One", body),
        "c%20d.xhtml": "",
        "cover.xhtml": chapter("Cover", body),
    }
    chapters["c d.xhtml"] = chapter(
        "Three", f"<div>{PARAGRAPH}<blockquote><p>Inner one.</p></blockquote>after</div>"
    )
    del chapters["c%20d.xhtml"]
    path = write_epub(
        tmp_path / "x.epub",
        chapters,
        order=[1, 0, 3, 2],
        extra=[("nav.xhtml", "nav"), ("n.xhtml", "scripted nav")],
    )
    documents, tally = read(tmp_path, path.read_bytes(), "y.epub")
    assert [d.title for d in documents] == ["A Book: One", "A Book: Two", "A Book: Three"]
    assert documents[0].paragraphs == (PARAGRAPH, "A b c—d. E.")
    assert documents[2].paragraphs == (PARAGRAPH, "Inner one.", "after")
    assert not tally.unreadable


def test_names_that_climb_lead_nowhere(tmp_path):
    path = write_epub(
        tmp_path / "x.epub", {"../../../../etc/passwd": chapter("One", f"<p>{PARAGRAPH}</p>")}
    )
    with pytest.raises(DataError, match="missing"):
        read(tmp_path, path.read_bytes(), "y.epub")
    path = write_epub(
        tmp_path / "x.epub",
        {
            "../EPUB/a.xhtml": chapter("One", f"<p>{PARAGRAPH}</p>"),
            "a.xhtml": chapter("One", f"<p>{PARAGRAPH}</p>"),
        },
    )
    assert len(read(tmp_path, path.read_bytes(), "y.epub")[0]) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.epub", "y.epub"]


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(markup, "MOST_MEMBER_BYTES", 100_000)
    path = write_epub(
        tmp_path / "x.epub", {"a.xhtml": chapter("One", "<p>" + "a" * 10_000_000 + "</p>")}
    )
    assert path.stat().st_size < 100_000
    with pytest.raises(DataError, match="unpacks to more than a book can hold"):
        read(tmp_path, path.read_bytes(), "y.epub")


def test_entities_are_not_resolved(tmp_path):
    path = tmp_path / "x.epub"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "META-INF/container.xml",
            '<!DOCTYPE c [<!ENTITY e SYSTEM "file:///etc/passwd">]><container><rootfile '
            'full-path="&e;"/></container>',
        )
    with pytest.raises(DataError):
        read(tmp_path, path.read_bytes(), "y.epub")


@pytest.mark.parametrize("data", [b"PK\x03\x04 broken", b"", b"no zip at all"])
def test_an_epub_that_is_none(tmp_path, data):
    with pytest.raises(DataError, match="cannot be read"):
        read(tmp_path, data, "y.epub")
    assert read(tmp_path, data, "y.epub", stop=False)[1].counters["quarantined/damaged_epub"] == 1


def test_a_directory_without_books(tmp_path):
    (tmp_path / "a.pdf").write_bytes(b"x")
    with pytest.raises(
        DataError, match=r"contains no file of source books \(\*\.txt, .*\*\.epub\)"
    ):
        reader.slices(str(tmp_path))


def test_a_huge_text_is_refused(tmp_path):
    assert (
        read(tmp_path, "word " * 1000, maximum_document_bytes=1000)[1].counters[
            "quarantined/too_large"
        ]
        == 1
    )
