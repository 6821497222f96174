"""The scorecard of the text counts what it says."""

from __future__ import annotations

import io
import json
import tarfile
from collections import defaultdict

from benchmarks import fidelity, fidelity_templates, sentences
from benchmarks.text_and_loss import articles, written
from benchmarks.text_measures import common_words, faults

PAGE = (
    (
        "The mill{{x}}stands [[here]].\n\n* The first item of this list is long enough\n* The "
        "second item of this list is long, too\n\n"
    )
    + (
        "It is {{convert|1200|m}} long and it has been so since the day on which it was built of "
        "stone by people of the town, "
    )
    * 3
    + (
        "\n== References ==\n* A book that nobody has to keep in the text of it\n* Another book "
        "that nobody has to keep"
    )
)


def test_faults_are_counted():
    good = [
        "The mill stands here.",
        "The first item of this list is long enough The second item of this list is long, too",
        "It is 1,200 m long.",
    ]
    found = faults(PAGE, good, good, set())
    assert (found.markup, found.glued, found.holes, found.lists, found.half_lists) == (
        0,
        0,
        0,
        1,
        0,
    )
    assert (found.numbers, found.lost_numbers, found.torn) == (3, 0, 1)
    bad = [
        "The millstands [[here]] of .",
        "The first item of this list is long enough",
        "it is long.",
    ]
    found = faults(PAGE, bad, bad, set())
    assert (
        found.markup,
        found.glued,
        found.lists,
        found.half_lists,
        found.lost_numbers,
        found.torn,
    ) == (2, 1, 1, 1, 3, 2)
    assert found.holes >= 1


def test_words_of_three_pages_are_common():
    assert common_words({"a": "one two", "b": "one two", "c": "one"}) == {"one"}


def test_fidelity_on_the_small_pairs():
    """The figures of the pages that lie beside the readers' tests, exactly: what a change of the
    rules does to them is seen here.
    """
    found, texts = fidelity.measure(fidelity.pairs_in(fidelity.SMALL), {})
    figures = {
        name: (
            one.words,
            one.words_kept,
            one.words_more,
            one.numbers,
            one.numbers_kept,
            one.numbers_more,
            one.lost_numbers,
        )
        for name, one in found.items()
    }
    assert figures == {
        "de/Mühle": (49, 49, 0, 6, 6, 0, []),
        "en/Mill": (69, 60, 0, 12, 10, 0, ["300", "46"]),
        "fr/Moulin": (55, 55, 0, 9, 9, 0, []),
        "ru/Мельница": (25, 25, 0, 4, 4, 0, []),
    }
    assert fidelity.row("all", fidelity.by_language(found)["all"])[1:4] == ("4", "198", "95.5 %")
    told = fidelity.worst(found, texts, 1)
    assert "lost numbers: 300, 46" in told
    assert "- It was sold for 300 guineas to the town." in told
    assert fidelity.by_language(found)["ru"].in_paragraphs == fidelity.by_language(found)["ru"].read


def test_fidelity_counts_bags():
    one = fidelity.compare(
        "In 1812 a mill, a mill of 12,500 sacks.",
        "In 1812 the mill of 12 500 sacks.",
        "a mill of gold",
    )
    assert (one.words, one.words_kept, one.words_more) == (7, 4, 1)
    assert (one.numbers, one.numbers_kept, one.numbers_more, one.lost_numbers) == (2, 2, 0, [])
    assert (one.in_paragraphs, one.read) == (4, 3)
    assert fidelity.words("東京 Tower") == {"東": 1, "京": 1, "tower": 1}
    assert fidelity.compare("A mill.", "").left_out == 1


def test_pairs_are_found_in_dumps(tmp_path):
    record = {
        "name": "Mill",
        "identifier": 1,
        "article_body": {"html": "<p>It is.</p>", "wikitext": "It is."},
        "in_language": {"identifier": "en"},
    }
    bare = {**record, "name": "Bare", "article_body": {"html": "<p>It is.</p>"}}
    (tmp_path / "a.ndjson").write_text(f"{json.dumps(record)}\n{json.dumps(bare)}\n{{\n")
    (tmp_path / "b.json").write_text(json.dumps(record | {"name": "Wheel"}, indent=2))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        data = json.dumps(record | {"name": "Dam"}).encode()
        entry = tarfile.TarInfo("x.ndjson")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    (tmp_path / "c.tar.gz").write_bytes(packed.getvalue())
    assert [pair.name for pair in fidelity.pairs_in(tmp_path)] == ["en/Mill", "en/Wheel", "en/Dam"]


def test_templates_are_held_against_what_is_shown():
    def shown(name, argument, text):
        data = json.dumps(
            {
                "parts": [
                    {
                        "template": {
                            "target": {"wt": name},
                            "params": {"1": {"wt": argument}},
                            "i": 0,
                        }
                    }
                ]
            }
        )
        return f"<span about='#{name}' typeof='mw:Transclusion' data-mw='{data}'>{text}</span>"

    known, other, unknown = (
        shown("nowrap", "3 km", "3 km"),
        shown("fraction", "4", "a fourth"),
        shown("price", "300", "300 guineas"),
    )
    html = (
        f"<html lang='en'><body><p>It is {known} long, {other} of it {unknown} dear.</"
        f"p><table><tr><td><p>{unknown}</p></td></tr></table></body></html>"
    )
    found = defaultdict(fidelity_templates.Uses)
    fidelity_templates.compare(html, found)
    assert {name: (one.count, one.differ) for (_, name), one in found.items()} == {
        "nowrap": (1, 0),
        "fraction": (1, 1),
        "price": (1, 1),
    }
    assert fidelity_templates.table_of(found).split("\n") == [
        "en  fraction  1 of 1",
        "      {{fraction|4}}  →  1/4  |  a fourth",
        "en  price  1 of 1",
        "      {{price|300}}  →  …  |  300 guineas",
    ]


def test_text_of_wikitext_is_written_as_one_writes():
    text = (
        'It \'s a two @-@ part " word " ( of 1 @,@ 200 ) , they say . He saw <unk> there . The '
        "dogs ' house ; it did n't fall ."
    )
    assert (
        written(text)
        == "It's a two-part \"word\" (of 1,200), they say. The dogs' house; it didn't fall."
    )


def test_articles_of_wikitext():
    lines = [
        " \n",
        " = Mill = \n",
        " \n",
        " It is a mill . \n",
        " = = Wheels = = \n",
        " It has four . \n",
        " = Corn = \n",
        " It grows . \n",
    ]
    assert [one for one in articles(iter(lines)) if one[1]] == [
        ("Mill", "It is a mill.\n\nIt has four."),
        ("Corn", "It grows."),
    ]


def test_sentences_are_scored_by_their_borders(tmp_path):
    """Borders count, not pieces: a wrong one costs precision, a missed one recall; blanks are the
    treebank's.
    """
    path = tmp_path / "de_own-ud-test.conllu"
    token = "1\tx\t_\t_\t_\t_\t_\t_\t_\t"
    texts = [
        ("Dr. Maier kam.", "_"),
        ("Er ging.", "SpaceAfter=No"),
        ("Sie blieb.", "_"),
        ("Ende.", "_"),
    ]
    path.write_text(
        "".join(f"# text = {text}\n{token}{gap}\n\n" for text, gap in texts), encoding="utf-8"
    )
    assert list(sentences.paragraphs(path, 9)) == [
        ("Dr. Maier kam. Er ging.Sie blieb. Ende.", {12, 19, 28})
    ]
    precision, recall, f1 = sentences.score([path], sentences.ours("de"), 9)
    assert (precision, round(recall, 3), round(f1, 3)) == (1.0, 0.667, 0.8)
    precision, recall, _ = sentences.score([path], sentences.naive("de"), 9)
    assert (round(precision, 3), round(recall, 3)) == (0.667, 0.667)
