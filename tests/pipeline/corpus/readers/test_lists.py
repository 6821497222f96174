"""Lists are kept whole or dropped whole, with what leads to them; sentences are told by their
words.
"""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.document import PLACEHOLDER_PATTERN
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser
from cloze.pipeline.corpus.readers.prose import ends_as_sentence, reads_as_prose, reads_as_statement
from cloze.pipeline.corpus.steps.sentences import split, split_paragraph

MARKUP = WikitextParser({6: ["file"]})


def sentences(wikitext, markup=MARKUP):
    return split(markup.extract(wikitext).paragraphs).texts


CLAUSES = (
    "It grew. There were three causes:\n* the fall of the [[dollar]];\n* the rise of prices; and\n"
    "* bad harvests.\nIt ended."
)
NAMES = (
    "It grew. Its members were:\n* [[Ann Roe]]\n* [[John Doe]], a poet\n* He was the last of them "
    "to join.\nIt ended."
)
SENTENCES = (
    "It grew.\n* The first of them was built of stone.\n** It was rebuilt in brick.\n* The second "
    "one fell down.\nIt ended."
)
FORMULA = (
    "It grew. The area of it is\n:<math>\\frac{a}{b}</math>\nwhere a is the length of it. It is "
    "small."
)
TABLE = "It grew. The results were:\n{|\n! a !! b\n|-\n| 1 || 2\n|}\nIt ended."
TERMS = (
    "It grew.\n; Walls : These are the parts that carry the roof.\n; Roof\n: This is the part that "
    "keeps rain out.\nIt ended."
)
QUOTED = "He wrote in a letter:\n: I have seen the sea, and it is not as I thought.\nIt ended."
POEM = "The first lines read:\n: Sing, goddess, of the anger,\n: of Achilles\nIt ended."


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        (CLAUSES, ["It grew.", (
            "There were three causes: the fall of the dollar; the rise of prices; and bad harvests."
        ), "It ended."]),
        (NAMES, ["It grew.", "It ended."]),
        (
            SENTENCES,
            ["It grew.", "The first of them was built of stone.", "It was rebuilt in brick.", "The second one fell down.", "It ended."],
        ),
        (FORMULA, ["It grew.", "It is small."]),
        (TABLE, ["It grew.", "It ended."]),
        (
            TERMS,
            ["It grew.", (
                "Walls: These are the parts that carry the roof."
            ), "Roof: This is the part that keeps rain out.", "It ended."],
        ),
        (QUOTED, [(
            "He wrote in a letter: I have seen the sea, and it is not as I thought."
        ), "It ended."]),
        (POEM, ["It ended."]),
        ("It grew. See the following:\n== Later ==\nIt ended.", ["It grew.", "It ended."]),
        (";Early years\nHe lived in a town by the sea.", ["He lived in a town by the sea."]),
    ],
)  # fmt: skip
def test_a_list_is_whole_or_gone(wikitext, expected):
    assert sentences(wikitext) == expected


def test_what_goes_is_counted():
    found = MARKUP.extract(NAMES)
    assert found.dropped == {"list_item": 3}
    assert [PLACEHOLDER_PATTERN.sub("…", text) for text in found.paragraphs] == [
        "It grew. Its members were: …",
        "It ended.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "It was a library for .NET",
        "It was the record no. 35",
        "He wrote it in vol. 3",
        "One, two and three,",
    ],
)
def test_a_mark_inside_the_last_word_ends_nothing(text):
    assert not ends_as_sentence(text)


@pytest.mark.parametrize(
    "text",
    ["He left.", 'He said "I do."', "Er sagte: „So ist es.“", "It was so.) ", "それは本である。」"],
)
def test_ends(text):
    assert ends_as_sentence(text)


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        (
            "Who Goes There? (film) is a film. It won.",
            ["Who Goes There? (film) is a film.", "It won."],
        ),
        (
            "They made Oh No! (live) in May. It sold.",
            ["They made Oh No! (live) in May.", "It sold."],
        ),
        ("He asked why. (He was old.) She left.", ["He asked why.", "(He was old.)", "She left."]),
    ],
)
def test_a_bracket_behind_a_title_begins_no_sentence(paragraph, expected):
    assert split_paragraph(paragraph) == expected


@pytest.mark.parametrize(
    "text",
    [
        "Eden is a town in the north of the county",
        "The river flows into the sea at Eden",
        "In 1990 the mill was taken down by its owner",
    ],
)
def test_a_sentence_without_a_full_stop_is_kept(text):
    assert reads_as_statement(text)
    assert MARKUP.extract(text).paragraphs == [text]


@pytest.mark.parametrize(
    "text",
    [
        "List of the kings of Spain in the middle ages",
        "Towns and villages of the northern county",
        "eden is what they call the town by the sea",
        "It is the oldest town of the",
        "Works published after the death of the author",
    ],
)
def test_a_heading_or_a_torn_sentence_is_not(text):
    assert not reads_as_statement(text)


@pytest.mark.parametrize("text", ["He lost.", "She moved away.", "It rained."])
def test_short_sentences_are_prose(text):
    assert reads_as_prose(text)


def test_tables_are_dropped():
    table = (
        "{| class=x\n|+ People\n! Year !! style='a' | Number\n|-\n| 1990 || rowspan=2 | 5,000\n|-\n"
        "| 1991\n|}\nIt ended."
    )
    assert MARKUP.extract(table).paragraphs == ["It ended."]


def test_formulas_by_option():
    text = "Take <math>\\frac{1}{2} [x]</math> of it, [[as]] they say."
    assert WikitextParser({}, formulas="latex").extract(text).paragraphs == [
        "Take $\\frac{1}{2} [x]$ of it, as they say."
    ]
