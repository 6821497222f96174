"""Source babylm: the challenge's files, with headings, speakers, notes, and no end of a document."""

from __future__ import annotations

import gzip
from pathlib import Path

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import ReadCounters
from tests.pipeline.corpus.reading import options_of


def read(path: Path, **settings: int) -> tuple[list[Document], ReadCounters]:
    """Return the documents, and the counters of the last file."""
    reader, documents = READERS.find("babylm"), []
    for file_slice in reader.slices(str(path)):
        tally = ReadCounters(file_slice)
        documents += list(reader.read(file_slice, options_of(reader, **settings), tally))
    return documents, tally


def test_headings_speakers_and_notes(tmp_path: Path) -> None:
    (tmp_path / "childes.train").write_text(
        "= = = Eng-NA/Brown/a.cha = = =\n*MOT:\twhere is [points] the ball ?\n[she laughs.]\n"
        "*SI1:\tthere !\n*CHI:\n= = = b.cha = = =\n*FAT:\tIt's 3:30.\n"
    )
    documents, tally = read(tmp_path)
    assert [(d.id, d.title, d.paragraphs) for d in documents] == [
        ("babylm/childes.train/1", "Eng-NA/Brown/a.cha", ("where is the ball ?", "there !")),
        ("babylm/childes.train/2", "b.cha", ("It's 3:30.",)),
    ]
    assert tally.counters["dropped_lines/annotation"] == 2
    assert tally.counters["read/documents"] == 2


def test_blank_lines_end_a_document_and_only_training_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "simple_wiki.train.txt.gz").write_bytes(
        gzip.compress(
            "= = = April = = =\nApril is a month.\nA: no speaker.\n\nB:\tÜbung.\n".encode()
        )
    )
    (tmp_path / "simple_wiki.dev").write_text("Held out.\n")
    documents, _ = read(tmp_path)
    assert [(d.title, d.paragraphs) for d in documents] == [
        ("April", ("April is a month.", "A: no speaker.")),
        ("", ("Übung.",)),
    ]


def test_lines_without_any_border_are_cut_by_number(tmp_path: Path) -> None:
    lines = [f"Line {number}." for number in range(2500)]
    (tmp_path / "open_subtitles.train").write_text("\n".join(lines))
    documents, _ = read(tmp_path)
    assert [len(d.paragraphs) for d in documents] == [1000, 1000, 500]
    assert [line for d in documents for line in d.paragraphs] == lines


def test_what_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.train").write_bytes(
        b"Fine.\n\nBad \xc3\xa9\xff one \xc3\xa9\xc3\xa9.\n\n" + b"x" * 99 + b"\nLast.\n"
    )
    documents, tally = read(tmp_path, maximum_document_bytes=50)
    assert [(d.id[-1], d.paragraphs) for d in documents] == [("1", ("Fine.",)), ("3", ("Last.",))]
    assert [item.reason for item in tally.unreadable] == ["bad_utf8", "long_line"]
    assert (tmp_path / "a.train").read_bytes()[tally.unreadable[0].offset] == 0xFF
    (tmp_path / "a.train").write_bytes(b"\n")
    assert [item.reason for item in read(tmp_path)[1].unreadable] == ["empty_file"]


def test_a_long_line_of_signs_takes_no_quadratic_work(tmp_path: Path) -> None:
    path = tmp_path / "a.train"
    path.write_text("[" * 50_000 + "\n" + "= " * 9_000 + "x" + " =" * 9_000 + "y\n")
    assert len(read(path)[0]) == 1
