"""`--explain` on pages of wikitext: what becomes of each kind of markup that once spoiled a
sentence, through the whole chain of steps.
"""

from __future__ import annotations

import html

import pytest

from cloze.core.config import parse_config
from cloze.core.errors import UsageError
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.explain import explain
from tests.pipeline.corpus.readers.made import page

PAGES = {
    # title: (wikitext, sentences, dropped sentences with their reasons)
    "Dash": (
        "The mill ran on commodity hardware{{emdash}}still in use. It was built in "
        "(1984){{mdashb}}and sold.",
        ["The mill ran on commodity hardware—still in use.", "It was built in (1984)—and sold."],
        [],
    ),
    "Unknown": (
        "The lake has a depth of {{lake depth|Eden|2}}. It lies in the north.{{odd note|5}} It is "
        "old.",
        ["It lies in the north.", "It is old."],
        [("template", "The lake has a depth of […].")],
    ),
    "Formula": (
        "The area is\n:<math>\\frac{a}{b}</math>\nwhere a is its length. It is small.",
        ["It is small."],
        [("formula", "The area is […] where a is its length.")],
    ),
    "Words": (
        "A mound (or, more precisely, a hill) lies here. Eden ({{IPAc-en|i|d|n}}; {{flagicon|X}} "
        "born 1935) was there.",
        ["A mound (or, more precisely, a hill) lies here.", "Eden (born 1935) was there."],
        [],
    ),
    "Ends": (
        "It is a library for .NET\n\nThere is the record no. 35\n\n''Who Goes There?'' (film) is "
        "a film. It won.",
        ["It is a library for .NET", "There is the record no. 35",
            "Who Goes There? (film) is a film.", "It won."],
        [],
    ),
    "Lists": (
        "It grew. Its members were:\n* [[Ann Roe]]\n* He was the last to join.\nIt had causes:\n* "
        "the fall of it;\n* bad harvests.",
        ["It grew.", "It had causes: the fall of it; bad harvests."],
        [("lead_in", "Its members were: […]")],
    ),
    "Sound": (
        "The '''{{Audio|x.ogg|Yazoo}}''' is a river. The call {{tag|exec}} is made by <code><run "
        "now></code> in it.",
        ["The Yazoo is a river.", "The call <exec>...</exec> is made by <run now> in it."],
        [],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    path = tmp_path_factory.mktemp("explain") / "dump.xml"
    pages = "".join(
        page(title, html.escape(wikitext), number=number)
        for number, (title, (wikitext, *_)) in enumerate(PAGES.items())
    )
    path.write_text(
        f'<mediawiki xml:lang="en"><siteinfo><dbname>enwiki</dbname></siteinfo>{pages}</mediawiki>'
    )
    return path


def config(path, **values):
    small = {"minimum_characters": 0, "minimum_words": 0, "minimum_letters": 0, "dedup": "none"}
    return parse_config(
        CorpusConfig,
        {"sources": [{"kind": "wikipedia", "path": str(path)}], **small, **values},
        "corpus",
    )


@pytest.mark.parametrize("title", PAGES)
def test_each_kind_is_explained(dump, title):
    _, sentences, dropped = PAGES[title]
    found = explain(config(dump), title)
    assert found.sentences == sentences
    assert found.dropped_sentences == dropped


def test_the_dumps_language_wins(tmp_path):
    path = tmp_path / "dump.xml"
    text = (
        "Er kam am 3. Oktober 1990. Das war gut.\n\n== Einzelnachweise ==\nDas ist ein Satz im "
        "Verzeichnis."
    )
    path.write_text(
        f'<mediawiki xml:lang="de"><siteinfo></siteinfo>{page("Tag", text)}</mediawiki>'
    )
    assert explain(config(path), "Tag").sentences == ["Er kam am 3. Oktober 1990.", "Das war gut."]


@pytest.mark.parametrize(
    "site",
    [
        "<dbname>enwiktionary</dbname>",
        "<base>https://en.wiktionary.org/wiki/Main_Page</base>",
        "<dbname>wikidatawiki</dbname>",
    ],
)
def test_a_dump_without_running_text_is_refused(tmp_path, site):
    path = tmp_path / "dump.xml"
    path.write_text(
        f'<mediawiki xml:lang="en"><siteinfo>{site}</'
        f"siteinfo>{page('Mill', 'It is a mill that runs.')}</mediawiki>"
    )
    with pytest.raises(
        UsageError, match=r"is a dump of Wik(tionary|idata) .*; .*corpus\.namespaces"
    ):
        explain(config(path), "Mill")
    assert explain(config(path, namespaces=["0"]), "Mill").sentences == ["It is a mill that runs."]


def test_options_reach_the_reader(tmp_path):
    path = tmp_path / "dump.xml"
    text = (
        "{|\n! Year !! Number\n|-\n| 1990 || 5,000\n|}\nTake &lt;math&gt;\\frac{1}{2}&lt;/math&gt; "
        "of it all."
    )
    path.write_text(
        f'<mediawiki xml:lang="en"><siteinfo></siteinfo>{page("Mill", text)}</mediawiki>'
    )
    found = explain(config(path, math="latex"), "Mill")
    assert found.sentences == ["Take $\\frac{1}{2}$ of it all."]
    assert explain(config(path), "Mill").outcome == "too_short"
