"""Wikimedia's projects are read as what they are, or refused each with a counted reason."""

from __future__ import annotations

import html

import pytest

from cloze.core.errors import DataError
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.encyclopedia.dump import WikipediaOptions, reader
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import is_redirect, project
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser
from tests.labs.enterprise_html.test_enterprise import article, lines, read_all
from tests.pipeline.corpus.corpora import make, prose, rows
from tests.pipeline.corpus.readers.made import page
from tests.pipeline.corpus.reading import options_of
from tests.slices import few

NAMES = {0: "", 1: "Talk", 4: "Project", 102: "Cookbook", 104: "Page", 106: "Index"}


def dump(dbname, *pages, language="en"):
    names = "".join(f'<namespace key="{key}">{name}</namespace>' for key, name in NAMES.items())
    site = f"<siteinfo><dbname>{dbname}</dbname><namespaces>{names}</namespaces></siteinfo>"
    return f'<mediawiki xml:lang="{language}">{site}\n{"".join(pages)}</mediawiki>'


def read(tmp_path, text, **options):
    path = tmp_path / "a.xml"
    path.write_text(text, encoding="utf-8")
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice)
    return list(reader.read(file_slice, options_of(reader, **options), tally)), tally


def in_(title, key, text="It is an article.", number=1, **more):
    return page(title, html.escape(text), ns=f"<ns>{key}</ns>", number=number, **more)


ALL = [in_("Mill", 0), in_("Cookbook:Bread", 102), in_("Page:A.djvu/1", 104), in_("Talk:Mill", 1)]


@pytest.mark.parametrize(
    ("dbname", "titles"),
    [
        ("enwiki", ["Mill"]),
        ("enwikibooks", ["Mill", "Cookbook:Bread"]),
        ("enwikisource", ["Mill", "Page:A.djvu/1"]),
        ("enwikinews", ["Mill"]),
        ("enwikiquote", ["Mill"]),
        ("enwikiversity", ["Mill"]),
        ("enwikivoyage", ["Mill"]),
        ("starwars", ["Mill"]),
    ],
)
def test_namespaces_by_project(tmp_path, dbname, titles):
    documents, tally = read(tmp_path, dump(dbname, *ALL))
    assert [document.title for document in documents] == titles
    assert tally.counters["dropped/namespace"] == 4 - len(titles)


@pytest.mark.parametrize(
    ("namespaces", "titles"),
    [
        (("102",), ["Cookbook:Bread"]),
        (("cookbook", "1"), ["Cookbook:Bread", "Talk:Mill"]),
        (("0", "Page"), ["Mill", "Page:A.djvu/1"]),
    ],
)
def test_namespaces_by_option(tmp_path, namespaces, titles):
    documents, _ = read(tmp_path, dump("enwikibooks", *ALL), namespaces=namespaces)
    assert [document.title for document in documents] == titles


def test_an_unknown_namespace_is_told(tmp_path):
    documents, tally = read(tmp_path, dump("enwikibooks", *ALL), namespaces=("Cookbok",))
    assert not documents
    assert "no namespace 'cookbok'" in tally.unreadable[0].sentence
    assert "cookbook" in tally.unreadable[0].sentence


@pytest.mark.parametrize(
    ("dbname", "base", "name"),
    few(
        [
            ("enwiktionary", "", "wiktionary"),
            ("commonswiki", "", "commons"),
            ("wikidatawiki", "", "wikidata"),
            ("specieswiki", "", "species"),
            pytest.param("", "https://commons.wikimedia.org/wiki/Main_Page", "commons", id="base"),
            pytest.param("", "https://fr.wiktionary.org/wiki/X", "wiktionary", id="other base"),
        ],
        "enwiktionary",
        "base",
    ),
)
def test_a_project_without_running_text_stops_no_other_file(tmp_path, dbname, base, name):
    assert project(dbname, base) == name
    text = " ".join(prose(n) for n in range(3))
    site = dump(dbname, in_("A", 0, text)).replace(
        "<namespaces>", f"<base>{base}</base><namespaces>"
    )
    (tmp_path / "a.xml").write_text(site)
    (tmp_path / "b.xml").write_text(dump("enwiki", in_("Mill", 0, text, number=2)))
    made = make(tmp_path / "out", f"wikipedia={tmp_path}/*.xml")
    assert [row["title"] for row in rows(made)] == ["Mill"]
    assert made.manifest.counters["quarantined/other_wiki"] == 1
    assert made.manifest.summary["quarantined"] == {"other_wiki": 1}
    assert name.capitalize() in made.manifest.summary["first_unreadable"]
    with pytest.raises(DataError, match=rf"{name.capitalize()}.*corpus\.namespaces to 0"):
        make(tmp_path / "alone", f"wikipedia={tmp_path}/a.xml")
    whole = make(tmp_path / "all", f"wikipedia={tmp_path}/a.xml", namespaces=["0"])
    assert len(rows(whole)) == 1


def test_a_page_of_a_book_has_no_margins(tmp_path):
    text = (
        '<noinclude><pagequality level="4" user="X" />{{rh|12|THE MILL|}}</noinclude>'
        "The mill stood by the river.<noinclude><references/></noinclude>"
    )
    pages = in_("Page:A.djvu/1", 104, text, model="proofread-page")
    documents, _ = read(tmp_path, dump("enwikisource", pages))
    assert [document.paragraphs for document in documents] == [("The mill stood by the river.",)]


def parser(name, language="en"):
    rules = WikipediaOptions().rules(language, name)
    return WikitextParser({6: ["file"], 14: ["category"]}, **rules)


CONTENT = "A mill of stone. It was built in 1822 and is open on Sundays."


@pytest.mark.parametrize(
    "listing",
    [
        "{{see\n| name=Old Mill | alt= | url=http://x.org | lat=1.2 | content=" + CONTENT + "\n}}",
        *("{{" + kind + "|name=Old Mill|phone=+1 2|content=" + CONTENT + "}}"
            for kind in ("do", "buy", "eat", "drink", "sleep", "go", "listing", "other")),
        "{{vCard|type=museum|name=Old Mill|description=" + CONTENT + "}}",
        "{{Voir|nom=Old Mill|latitude=1|description=" + CONTENT + "}}",
        "{{see|nome=Old Mill|prezzo=2|descrizione=" + CONTENT + "}}",
        "{{listing|название=Old Mill|описание=" + CONTENT + "}}",
        "{{Regionlist|region1name=Old Mill|region1color=#fff|region1description=" + CONTENT + "}}",
        "{{eat|name=[[Old Mill]]|content=A mill of ''stone''. It was built in 1822 and is "
        "[http://x.org open] on {{nowrap|Sundays}}.}}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["* {}\n* {}", "{}\n\n{}"])
def test_a_listing_of_wikivoyage_is_text(listing, form):
    found = parser("wikivoyage").extract(form.format(listing, listing))
    assert found.paragraphs == [f"Old Mill: {CONTENT}"] * 2


def test_a_listing_among_names_stays():
    text = f"== Publications ==\n* {{{{buy|name=Old Mill|content={CONTENT}}}}}\n* {{{{see|name=River}}}}"
    found = parser("wikivoyage").extract(f"{text}\n* The station\n* The [[Lake]], in the north")
    assert found.paragraphs == [f"Old Mill: {CONTENT}"]
    assert found.dropped == {"heading": 1, "list_item": 3}


def test_a_listing_without_content_is_counted():
    found = parser("wikivoyage").extract("* {{see|name=Old Mill|content=}}\n* {{do|name=River}}")
    assert found.paragraphs == []
    assert found.removed == [("list_item", "Old Mill"), ("list_item", "River")]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("Emprunté au {{étyl|la|fr}} dérivé de {{recons|x}} par les moines.", []),
        ("From {{bor|en|ga}}, from {{inh|en|ga|muileann}} in the north.", []),
        ("{{lb|en|archaic}} A building in which grain is ground.", ["A building in which grain is ground."]),
        ("A {{l|en|building}} in which {{m|en|grain}} is ground.", ["A building in which grain is ground."]),
    ],
)  # fmt: skip
def test_wiktionary_shows_no_code_of_a_language(text, kept):
    from cloze.pipeline.corpus.steps.sentences import split

    assert split(parser("wiktionary").extract(text).paragraphs).texts == kept


def test_quotations_stay_and_their_sources_go():
    found = parser("wikiquote").extract(
        "* The mill grinds slowly, but it grinds very small.\n** ''The Wheel'' (1822)\n"
        "* He who comes first to the mill may sit where he will.\n** Attributed\n"
    )
    assert found.paragraphs == [
        "The mill grinds slowly, but it grinds very small.",
        "He who comes first to the mill may sit where he will.",
    ]
    assert found.dropped == {"list_item": 2}


@pytest.mark.parametrize(
    "word", ["REDIRECT", "redirect", "виж", "пренасочване", "வழிமாற்று", "దారిమార్పు", "ПРЕУСМЕРИ",
        "YONALTIRISH", "გადამისამართება", "PATRZ", "رجوع مکرر", "重新導向"],
)  # fmt: skip
def test_words_of_redirects(word):
    assert is_redirect(f"#{word} [[Mill]] " + "x" * 3000)


def test_namespaces_of_rendered_pages(tmp_path):
    pages = [article(1), article(2, "Cookbook:Bread", namespace=102), article(3, namespace=4)]
    for wiki, count in (("enwikibooks", 2), ("enwiki", 1)):
        (tmp_path / "a.ndjson").write_bytes(
            lines(*({**one, "is_part_of": {"identifier": wiki}} for one in pages))
        )
        assert len(read_all(tmp_path)[0]) == count
    assert len(read_all(tmp_path, namespaces=("102", "4"))[0]) == 2


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.xml.7z", b"7z\xbc\xaf\x27\x1c\0\4" + b"x" * 90, "7-zip archive.*7z x"),
        ("a.xml.rar", b"Rar!\x1a\x07\x01\0" + b"x" * 90, "RAR archive.*unrar x"),
        ("a.tar", b"a" * 257 + b"ustar\0" + b"x" * 300, "tar archive"),
        ("a.sql", b"-- MySQL dump 10.16\n\nDROP TABLE page;\n", "an SQL dump"),
        ("a.xml", b"<!DOCTYPE html><html><body>404</body></html>", "an HTML page.*source html"),
        (
            "a.xml",
            b"<?xml version='1.0'?><feed><doc></doc></feed>",
            "begins with <feed>.*pages-art",
        ),
        ("a.xml", b"<rdf:RDF xmlns:rdf='x'></rdf:RDF>", "begins with <rdf:RDF>"),
        ("a.xml", b'{"entities": {"Q1": {}}}', "a file of JSON objects"),
    ],
)
def test_files_of_another_form_are_told_truly(tmp_path, name, content, told):
    (tmp_path / name).write_bytes(content)
    file_slice = reader.slices(str(tmp_path / name))[0]
    with pytest.raises(DataError, match=told) as error:
        list(reader.read(file_slice, options_of(reader), ReadCounters(slice=file_slice)))
    assert "damaged" not in str(error.value)
