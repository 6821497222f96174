"""Wikimedia Enterprise's dumps: their archives and lines, what is no article, what is broken; and
folders and archives of pages.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pytest

from cloze.core.errors import DataError
from cloze.labs.enterprise_html import archive
from cloze.labs.enterprise_html.reader import reader
from cloze.pipeline.corpus.readers.base import ReadCounters
from tests.pipeline.corpus.corpora import make, prose
from tests.pipeline.corpus.reading import options_of

TEXT = "It is an article about the mill of the town, and it has a few words."


def article(
    number,
    title="Mill",
    text=TEXT,
    *,
    namespace=0,
    language="en",
    wiki="enwiki",
    wikitext="",
    **more,
):
    body = {
        "html": f"<html><head><title>{title}</title></head><body><p>{text}</p></body></html>",
        "wikitext": wikitext,
    }
    return {
        "name": title,
        "identifier": number,
        "url": f"https://{language}.wikipedia.org/wiki/{title}",
        "namespace": {"identifier": namespace},
        "in_language": {"identifier": language},
        "is_part_of": {"identifier": wiki},
        "article_body": body,
        "license": [{"identifier": "CC-BY-SA-3.0"}],
        "redirects": [{"name": "The mill"}],
        **more,
    }


def lines(*records):
    return "".join(
        (record if isinstance(record, str) else json.dumps(record, ensure_ascii=False)) + "\n"
        for record in records
    ).encode()


def tar_of(members):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def read_all(path, slices=None, *, stop=True, **options):
    """(documents, tallies) of all slices of a path."""
    documents, tallies = [], []
    for one in slices or reader.slices(str(path)):
        tally = ReadCounters(slice=one, stop=stop)
        documents += reader.read(one, options_of(reader, stop=stop, **options), tally)
        tallies.append(tally)
    return documents, tallies


DUMP = {
    "enwiki_0.ndjson": lines(
        article(1),
        article(2, "Old mill", wikitext="#REDIRECT [[Mill]]"),
        article(3, "Talk:Mill", namespace=1),
        '{"name": "Broken", "identifier": 4, "article_',
        article(5, "Wheel"),
        {"name": "Bare", "identifier": 6, "article_body": {"wikitext": "x"}},
    ),
    "enwiki_1.ndjson": lines(
        article(7, "Mill (disambiguation)"),
        article(8, "Stone", templates=[{"name": "Template:Disambiguation"}]),
        article(9, "Dam"),
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        "enwiki_namespace_0.tar.gz",
        "enwiki-NS0-20240101-ENTERPRISE-HTML.json.tar.gz",
        "enwiki.tgz",
        "enwiki.tar",
    ],
)
def test_an_archive(tmp_path, name):
    data = tar_of(DUMP)
    (tmp_path / name).write_bytes(data if name.endswith(".tar") else gzip.compress(data))
    documents, (tally,) = read_all(tmp_path)
    assert [document.id for document in documents] == [
        f"html/{name}/{number}" for number in (1, 5, 9)
    ]
    assert (
        documents[0].title,
        documents[0].paragraphs,
        documents[0].language,
        documents[0].source,
    ) == (
        "Mill",
        (TEXT,),
        "en",
        "html",
    )
    assert (documents[0].url, documents[0].licence) == (
        "https://en.wikipedia.org/wiki/Mill",
        "CC-BY-SA-3.0",
    )
    assert (tally.origin.name, tally.origin.url) == ("enwiki", "https://en.wikipedia.org/")
    assert {name: count for name, count in tally.counters.items() if "bytes" not in name} == {
        "read/documents": 7,
        "dropped/redirect": 1,
        "dropped/namespace": 1,
        "dropped/disambiguation": 2,
        "quarantined/bad_json": 1,
        "quarantined/no_html": 1,
    }
    broken, bare = tally.unreadable
    assert broken.file == f"html/{name}/enwiki_0.ndjson"
    assert "line 4 of enwiki_0.ndjson is no JSON object" in broken.sentence
    assert "line 6 of enwiki_0.ndjson has no HTML in its field article_body.html" in bare.sentence


@pytest.mark.parametrize("name", ["a.ndjson", "a.ndjson.gz"])
def test_lines_alone(tmp_path, name):
    data = DUMP["enwiki_0.ndjson"]
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    documents, (tally,) = read_all(tmp_path)
    assert [document.title for document in documents] == ["Mill", "Wheel"]
    assert tally.unreadable[0].sentence.startswith("line 4 is no JSON object")


@pytest.mark.parametrize("share", [0.5, 0.97])
def test_a_truncated_archive_is_told_in_a_sentence(tmp_path, share):
    noise = "".join(random.Random(1).choices("abcdefgh ", k=200_000))
    data = gzip.compress(
        tar_of(
            {
                "a.ndjson": lines(
                    *(
                        article(number, f"Mill {number}", f"{TEXT} {noise[number * 90 :][:90]}")
                        for number in range(2000)
                    )
                )
            }
        )
    )
    path = tmp_path / "enwiki_namespace_0.tar.gz"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DataError) as told:
        read_all(path)
    assert str(told.value) == (
        f"{path}: the file ends inside a compressed stream; get the file again, or set "
        f"corpus.on_error to quarantine to continue without it"
    )
    documents, (tally,) = read_all(path, stop=False)
    assert 0 < len(documents) < 2000
    assert [one.reason for one in tally.unreadable] == ["truncated"]


def test_an_archive_that_ends_inside_a_file(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of({"a.ndjson": DUMP["enwiki_0.ndjson"]})[:1200])
    with pytest.raises(DataError, match=r"ends inside its file a\.ndjson"):
        read_all(tmp_path)


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_gives_the_same_however_it_is_cut(tmp_path, monkeypatch, packed):
    noise = "".join(random.Random(2).choices("abcdefghij ", k=900_000))
    members = {
        f"part_{part}.ndjson": lines(
            *(
                article(
                    f"{part}-{number}", text=f"{TEXT} {noise[(part * 80 + number) * 4000 :][:4000]}"
                )
                for number in range(80)
            ),
            "{",
        )
        for part in range(2)
    }
    data = tar_of(members | {"Page.html": f"<html><body><p>{TEXT}</p></body></html>".encode()})
    (tmp_path / ("a.tar.gz" if packed else "a.tar")).write_bytes(
        gzip.compress(data) if packed else data
    )
    whole, (tally,) = read_all(tmp_path)
    monkeypatch.setattr(archive, "SLICE_BYTES", 50_000)
    monkeypatch.setattr(archive, "_BLOCK", 10_240)
    whole_again, _ = read_all(
        tmp_path, [reader._slice(path.name, str(path)) for path in tmp_path.iterdir()]
    )
    assert whole_again == whole
    slices = reader.slices(str(tmp_path))
    assert len(slices) > 3
    assert sum(one.size for one in slices) == sum(
        path.stat().st_size for path in tmp_path.iterdir()
    )
    cut, tallies = read_all(tmp_path, slices)
    assert len(whole) == 161
    assert cut == whole
    assert sum((one.counters for one in tallies), type(tally.counters)()) == tally.counters
    assert [entry for one in tallies for entry in one.unreadable] == tally.unreadable
    assert sum(any(one.counters) for one in tallies) > 2


def test_damage_is_told_by_one_slice(tmp_path, monkeypatch):
    noise = "".join(random.Random(3).choices("abcdefghij ", k=400_000))
    data = gzip.compress(
        lines(
            *(
                article(number, text=f"{TEXT} {noise[number * 4000 :][:4000]}")
                for number in range(100)
            )
        )
    )
    path = tmp_path / "a.ndjson.gz"
    path.write_bytes(data[: len(data) // 2])
    monkeypatch.setattr(archive, "SLICE_BYTES", 20_000)
    slices = reader.slices(str(path))
    assert len(slices) > 2
    _, tallies = read_all(path, slices, stop=False)
    assert [entry.reason for one in tallies for entry in one.unreadable] == ["truncated"]


def test_the_language_of_an_article_chooses_its_rules(tmp_path):
    german = (
        "</p><h2>Einzelnachweise</h2><p>Es ist ein Nachweis, den niemand liest.</p><h2>References</"
        "h2><p>Das ist ein ganzer Satz"
    )
    (tmp_path / "a.ndjson").write_bytes(
        lines(
            article(1, text=TEXT + german + ".", language="de", wiki="dewiki"),
            article(2, text=TEXT + german + "."),
        )
    )
    documents, _ = read_all(tmp_path)
    assert [document.language for document in documents] == ["de", "en"]
    assert [document.paragraphs[1] for document in documents] == [
        "Das ist ein ganzer Satz.",
        "Es ist ein Nachweis, den niemand liest.",
    ]


def test_a_wiki_of_another_kind_is_refused(tmp_path):
    (tmp_path / "a.ndjson").write_bytes(lines(*[article(1, wiki="enwiktionary")] * 3))
    documents, (tally,) = read_all(tmp_path)
    assert documents == []
    assert tally.counters["quarantined/other_wiki"] == 1
    assert "dump of Wiktionary (enwiktionary)" in tally.unreadable[0].sentence
    assert len(read_all(tmp_path, namespaces=("0",))[0]) == 3


def test_lines_that_are_no_articles_are_refused(tmp_path):
    (tmp_path / "a.ndjson").write_bytes(lines({"title": "Mill", "text": TEXT}) * 3)
    with pytest.raises(DataError, match="name it as source jsonl"):
        read_all(tmp_path)
    documents, (tally,) = read_all(tmp_path, stop=False)
    assert (documents, len(tally.unreadable)) == ([], 1)


@pytest.mark.parametrize(
    ("data", "advice"),
    [
        (b"<mediawiki xml:lang='en'>", "source wikipedia"),
        (b"%PDF-1.4", "take its text out"),
        (b"", "holds no page"),
    ],
)
def test_other_files_are_told_as_what_they_are(tmp_path, data, advice):
    (tmp_path / "a.html").write_bytes(data)
    if not data:
        assert advice in read_all(tmp_path)[1][0].unreadable[0].sentence
        return
    with pytest.raises(DataError, match=advice):
        read_all(tmp_path)


PAGE = (
    f"<html lang='de'><head><title>Mühle – Wikipedia</title></head><body><p>{TEXT}</p></body></"
    f"html>"
)


def test_folders_and_archives_of_pages(tmp_path):
    (tmp_path / "pages" / "M").mkdir(parents=True)
    (tmp_path / "pages" / "M" / "Mühle.html").write_bytes(
        PAGE.replace(" – Wikipedia", "")
        .encode("latin-1")
        .replace(b"<head>", b"<head><meta charset='iso-8859-1'>")
    )
    (tmp_path / "pages" / "talk.html").write_text(
        '<html><body class="mediawiki ns-1"><p>It is talk.</p></body></html>', encoding="utf-8"
    )
    (tmp_path / "pages" / "style.css").write_text("p {}", encoding="utf-8")
    documents, tallies = read_all(tmp_path / "pages")
    assert [(one.id, one.title, one.language, one.paragraphs) for one in documents] == [
        ("html/M/Mühle.html", "Mühle", "de", (TEXT,))
    ]
    assert sum(one.counters["dropped/namespace"] for one in tallies) == 1
    data = tar_of({"M/Mühle.html": PAGE.encode(), "img/a.png": b"\x89PNG", "B.htm": PAGE.encode()})
    (tmp_path / "pages.tar.gz").write_bytes(gzip.compress(data))
    documents, _ = read_all(tmp_path / "pages.tar.gz")
    assert [one.id for one in documents] == [
        "html/pages.tar.gz/M/Mühle.html",
        "html/pages.tar.gz/B.htm",
    ]


@pytest.mark.soak
@pytest.mark.usefixtures("warm")
def test_the_shards_are_the_same_for_one_and_two_workers(tmp_path):
    (tmp_path / "in").mkdir()
    for part in range(3):
        own = [
            article(part * 100 + number, text=prose(part * 100 + number, 6)) for number in range(20)
        ]
        (tmp_path / "in" / f"wiki_{part}.tar.gz").write_bytes(
            gzip.compress(tar_of({"a.ndjson": lines(*own)}))
        )
    shards = []
    for workers in (1, 2):
        result = make(
            tmp_path / f"out{workers}", f"html={tmp_path / 'in'}", workers=workers, shard_bytes=8192
        )
        shards.append(
            {path.name: path.read_bytes() for path in Path(result.artifact).glob("*.arrow")}
        )
    assert len(shards[0]) > 2
    assert shards[0] == shards[1]
