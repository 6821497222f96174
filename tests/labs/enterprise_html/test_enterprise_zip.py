"""Zip archives of Wikimedia Enterprise's articles and pages: as tar archives are read."""

from __future__ import annotations

import io
import random
import re
import zipfile

import pytest

from cloze.labs.enterprise_html.reader import reader
from tests.labs.enterprise_html.test_enterprise import DUMP, PAGE, TEXT, read_all


def zip_of(members, method=zipfile.ZIP_DEFLATED):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as made:
        made.writestr("M/", b"")
        for name, data in members.items():
            made.writestr(name, data)
    return packed.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_zip_archive(tmp_path, method, monkeypatch):
    pages = {
        f"M/{number}.html": PAGE.replace(TEXT, f"{TEXT} Mill {number} is small.").encode()
        for number in range(9)
    }
    data = zip_of({**pages, "img/a.png": b"\x89PNG", "M/.hidden.html": PAGE, **DUMP}, method)
    (tmp_path / "pages.zip").write_bytes(data)
    documents, (tally,) = read_all(tmp_path, stop=False)
    names = [*pages, *map(str, (1, 5, 9))]
    assert [one.id for one in documents] == [f"html/pages.zip/{name}" for name in names]
    assert documents[8].paragraphs == (f"{TEXT} Mill 8 is small.",)
    assert tally.counters["quarantined/bad_json"] == 1
    monkeypatch.setattr("cloze.labs.enterprise_html.archive.SLICE_BYTES", len(data) // 4)
    slices = reader.slices(str(tmp_path / "pages.zip"))
    assert len(slices) > 2
    assert read_all(tmp_path, slices, stop=False)[0] == documents


def test_a_damaged_zip_archive(tmp_path):
    data = zip_of(
        {
            f"{number}.html": PAGE.encode() + random.Random(number).randbytes(99).hex().encode()
            for number in range(4)
        }
    )
    at = [match.start() for match in re.finditer(rb"PK\x03\x04", data)][2]
    (tmp_path / "hole.zip").write_bytes(data[: at + 60] + bytes(40) + data[at + 100 :])
    documents, (tally,) = read_all(tmp_path / "hole.zip", stop=False)
    assert [one.id for one in documents] == [f"html/hole.zip/{number}.html" for number in (0, 2, 3)]
    (told,) = tally.unreadable
    assert "the archive's file 1.html cannot be unpacked (" in told.sentence
    (tmp_path / "cut.zip").write_bytes(data[:-30])
    documents, (tally,) = read_all(tmp_path / "cut.zip", stop=False)
    assert documents == []
    assert (
        "the archive's directory, at its end, cannot be read (File is not a zip file)"
        in tally.unreadable[0].sentence
    )


def test_a_bomb_in_a_zip_archive(tmp_path, monkeypatch):
    monkeypatch.setattr("cloze.labs.enterprise_html.archive.FREE_BYTES", 1 << 16)
    (tmp_path / "a.zip").write_bytes(
        zip_of({"a.html": PAGE.encode() + b" " * (4 << 20), "b.html": PAGE.encode()})
    )
    documents, (tally,) = read_all(tmp_path, stop=False)
    assert [one.id for one in documents] == ["html/a.zip/b.html"]
    assert tally.counters["quarantined/bomb"] == 1
