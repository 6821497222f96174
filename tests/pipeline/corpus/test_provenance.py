"""Where text is from and under which licence: in the documents, in the card, and as what is kept of
it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.core.stages.execute import execute
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.files.intermediate import CORPUS
from cloze.pipeline.corpus.provenance import (
    Origin,
    licence_name,
    license_matches,
    merge_origins,
    page_url,
    wiki,
    wiki_licence,
)
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.corpora import made_documents, make, prose, rows, write_corpus
from tests.pipeline.dataset import datasets
from tests.pipeline.vocab.vocabularies import make as make_vocab

LOOSE = {"minimum_letters": 0.0, "dedup": "exact", "shard_bytes": 4096}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("https://creativecommons.org/licenses/by-sa/4.0/", "CC-BY-SA-4.0"),
        ("http://creativecommons.org/licenses/by/3.0/deed.en", "CC-BY-3.0"),
        ("Creative Commons BY-NC 4.0", "CC-BY-NC-4.0"),
        ("cc-by-sa-4.0", "CC-BY-SA-4.0"),
        ("https://creativecommons.org/publicdomain/zero/1.0/", "CC0-1.0"),
        ("CC0", "CC0-1.0"),
        ("MIT", "MIT"),
        ("  Public domain\n in the USA ", "Public domain in the USA"),
        ("CC-BY-SA-4.0 OR MIT", "CC-BY-SA-4.0 OR MIT"),
        ("", ""),
    ],
)
def test_names_of_licences(text, name):
    assert licence_name(text) == name


def test_what_is_kept():
    wanted = frozenset({"cc-by-sa-4.0", "mit"})
    kept = (
        "CC-BY-SA-4.0",
        "mit",
        "GPL-3.0-only OR MIT",
        "MIT AND CC-BY-SA-4.0",
        "(MIT OR GPL-3.0-only)",
        "(MIT or GPL-3.0-only) AND (CC0-1.0 OR (CC-BY-SA-4.0 AND MIT))",
        "GPL-3.0-only OR(MIT)",
    )
    assert all(license_matches(licence, wanted) for licence in kept)
    assert not any(
        license_matches(licence, wanted)
        for licence in (
            "",
            "CC-BY-SA-3.0",
            "MIT AND GPL-3.0-only",
            "Apache-2.0 OR GPL-3.0-only",
            "(MIT OR Apache-2.0) AND CC-BY-NC-4.0",
            "MIT AND (CC0-1.0 OR (CC-BY-SA-4.0 AND GPL-3.0-only))",
            "MIT (for parts)",
            "Other (MIT)",
            "(MIT",
            "()",
        )
    )
    assert license_matches("", frozenset({"unknown"}))
    assert license_matches("Own terms (2024)", frozenset({"own terms (2024)"}))


def test_a_wiki_says_where_it_is_from():
    base = "https://de.wikipedia.org/wiki/Wikipedia:Hauptseite"
    found = wiki("dewiki", base, "x/dewiki-20240501-pages-articles-multistream.xml.bz2")
    assert found == Origin(
        name="dewiki", url="https://de.wikipedia.org/", date="2024-05-01", licence="CC-BY-SA-4.0"
    )
    assert wiki("", base, "dewiki-latest-pages-articles.xml") == Origin(
        name="dewiki", url="https://de.wikipedia.org/", licence="CC-BY-SA-4.0"
    )
    assert wiki("", "https://zh-yue.wikivoyage.org/wiki/A", "").name == "zh_yuewikivoyage"
    assert wiki("", "https://wiki.example.org/wiki/A", "").name == "wiki.example.org"
    assert wiki("", "", "enwiki-2014-p10p10000.xml.bz2") == Origin(date="2014")
    part = wiki("dewiki", base, "dewiki-latest-pages-articles-0003.xml.bz2")
    assert (part.date, part.licence) == ("", "CC-BY-SA-4.0")  # a number of a part is no year
    assert wiki("", "https://[de.wikipedia.org/wiki?curid=12", "wiki_00") == Origin()
    assert page_url(base, "Große Straße?") == "https://de.wikipedia.org/wiki/Große_Straße%3F"
    assert (
        page_url("http://x.org/w/index.php?title=Main", "A&B")
        == "http://x.org/w/index.php?title=A%26B"
    )
    assert page_url("", "A") == ""


@pytest.mark.parametrize(
    ("date", "licence"),
    [
        ("2023-06-07", "CC-BY-SA-4.0"),
        ("2023-06-06", "CC-BY-SA-3.0"),
        ("2019", "CC-BY-SA-3.0"),
        ("2008-01-01", "GFDL-1.2-or-later"),
        ("", "CC-BY-SA-4.0"),
    ],
)
def test_wikimedia_changed_its_licence(date, licence):
    assert wiki_licence("en.wikipedia.org", date) == licence
    assert wiki_licence("wiki.example.org", date) == ""


def test_of_two_licences_either_holds():
    assert merge_origins(
        [Origin(licence="MIT", name="b"), Origin(), Origin(licence="CC0-1.0", name="a")]
    ) == Origin(licence="CC0-1.0 OR MIT", name="a, b")


def _records(path: Path, *numbers: int, **more: str) -> Path:
    lines = [
        json.dumps({"id": f"d{n}", "title": f"T{n}", "text": prose(n), **more}) for n in numbers
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def _sources(tmp_path: Path) -> list[dict[str, str]]:
    """Three files: of one the config says all, of another its records do, of the third nobody
    anything.
    """
    return [
        {
            "kind": "jsonl",
            "path": str(_records(tmp_path / "said.jsonl", 1, 2)),
            "licence": "https://creativecommons.org/licenses/by/4.0/",
            "name": "Letters",
            "url": "https://letters.example.org/",
            "date": "2024-05-01",
        },
        {
            "kind": "jsonl",
            "path": str(
                _records(tmp_path / "own.jsonl", 3, license="MIT", url="https://example.org/3")
            ),
            "licence": "CC0-1.0",
        },
        {"kind": "jsonl", "path": str(_records(tmp_path / "silent.jsonl", 4))},
    ]


def _made(out: Path, sources: list[dict[str, str]], **settings: object):
    config = parse_config(CorpusConfig, {"sources": sources, **LOOSE, **settings}, "corpus")
    return execute(STAGE, config, {}, str(out))


def test_documents_say_where_they_are_from(tmp_path):
    sources = _sources(tmp_path)
    result = _made(tmp_path / "out", sources)
    told = {
        row["id"].rsplit("/")[-1]: (row["url"], row["licence"], row["origin"])
        for row in rows(result)
    }
    assert told == {
        "d1": ("", "CC-BY-4.0", "Letters 2024-05-01"),
        "d2": ("", "CC-BY-4.0", "Letters 2024-05-01"),
        "d3": ("https://example.org/3", "MIT", ""),  # a record's own counts more
        "d4": ("", "", ""),
    }
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert [
        (one["kind"], one["name"], one["date"], one["licence"], one["documents"])
        for one in card["origins"]
    ] == [
        ("jsonl", "", "", "", 1),
        ("jsonl", "", "", "MIT", 1),
        ("jsonl", "Letters", "2024-05-01", "CC-BY-4.0", 2),
    ]
    assert card["origins"][2]["url"] == "https://letters.example.org/"
    assert sum(one["words"] for one in card["origins"]) == card["totals"]["words"]
    assert {one["licence"]: one["documents"] for one in card["licences"]} == {
        "CC-BY-4.0": 2,
        "MIT": 1,
        "unknown": 1,
    }
    assert result.manifest.summary["licences"] == {"CC-BY-4.0": 2, "MIT": 1, "unknown": 1}
    again = _made(tmp_path / "again", sources[::-1])
    assert again.manifest.content_sha256 == result.manifest.content_sha256
    assert again.manifest.fingerprint == result.manifest.fingerprint
    other = _made(tmp_path / "other", [{**sources[0], "licence": "MIT"}, *sources[1:]])
    assert other.manifest.fingerprint != result.manifest.fingerprint


def test_what_is_under_another_licence_is_dropped_and_counted(tmp_path):
    result = _made(tmp_path / "out", _sources(tmp_path), licences=["mit", "CC-BY-4.0"])
    assert {row["licence"] for row in rows(result)} == {"MIT", "CC-BY-4.0"}
    assert result.manifest.counters["dropped/other_licence"] == 1
    silent = _made(tmp_path / "silent", _sources(tmp_path), licences=["unknown"])
    assert [row["licence"] for row in rows(silent)] == [""]


def test_one_content_of_two_sources(tmp_path):
    path = _records(tmp_path / "a.jsonl", 1)
    shutil.copy(path, tmp_path / "b.jsonl")
    sources = [
        {"kind": "jsonl", "path": str(tmp_path / f"{name}.jsonl"), "licence": said}
        for name, said in (("a", "MIT"), ("b", "CC0"))
    ]
    for number, given in enumerate((sources, sources[::-1])):
        (row,) = rows(_made(tmp_path / f"out{number}", given))
        assert row["licence"] == "CC0-1.0 OR MIT"


def test_what_the_config_says_counts_more_than_the_dump(samples, tmp_path):
    result = make(tmp_path / "own", f"wikipedia={samples}/wikipedia")
    base = {row["origin"] for row in rows(result)}
    assert len(base) == 1
    assert all(row["url"].startswith("http") for row in rows(result))
    said = {
        "kind": "wikipedia",
        "path": f"{samples}/wikipedia",
        "name": "Made up",
        "licence": "CC0-1.0",
    }
    config = parse_config(CorpusConfig, {"sources": [said]}, "corpus")
    told = rows(execute(STAGE, config, {}, str(tmp_path / "said")))
    assert {(row["licence"], row["origin"]) for row in told} == {("CC0-1.0", "Made up")}
    assert [row["sentences"] for row in told] == [row["sentences"] for row in rows(result)]


@pytest.mark.parametrize("date", ["May 2024", "2024-5-1"])
def test_a_date_is_a_date(date):
    with pytest.raises(UsageError, match="date"):
        parse_config(
            CorpusConfig, {"sources": [{"kind": "text", "path": "x", "date": date}]}, "corpus"
        )


def test_a_date_of_yaml_is_one():
    import yaml

    config = parse_config(
        CorpusConfig,
        {"sources": yaml.safe_load("[{kind: text, path: x, date: 2024-05-01}]")},
        "corpus",
    )
    assert config.sources[0].date == "2024-05-01"


def test_later_stages_read_corpora_of_the_first_schema(tmp_path):
    """Shards without the columns that came later give the same vocabulary and the same dataset."""
    names = ("key", "id", "source", "title", "split", "sentences", "paragraphs")
    first = pa.schema([CORPUS.field(name) for name in names], metadata={"cloze.corpus": "1"})
    documents = made_documents()
    held = [documents[5][0]]
    corpora = [
        write_corpus(tmp_path / name, documents, 2, held, schema=kind)
        for name, kind in (("old", first), ("new", CORPUS))
    ]
    vocabularies = [make_vocab(path, f"{path}-vocab", size=300) for path in corpora]
    assert vocabularies[0].manifest.content_sha256 == vocabularies[1].manifest.content_sha256
    made = [datasets.make(path, vocabularies[0].artifact, f"{path}-dataset") for path in corpora]
    assert made[0].manifest.content_sha256 == made[1].manifest.content_sha256
