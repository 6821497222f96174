"""Personal data: what is masked, and above all what is not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.document import Document
from pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps
from pipeline.corpus.steps.personal_data import mask_text

TOKENS = {"email": "<email>", "ip": "<ip>", "phone": "<phone>"}


def masked(text: str, language: str = "en") -> str:
    return mask_text(text, TOKENS, language)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to jane.doe+list@mail.example.co.uk.", "Write to <email>."),
        ("(a_b@example.com)", "(<email>)"),
        ("jörg@müller.de, x@y.org;", "<email>, <email>;"),
        ("Connect to 192.168.10.12:8080 now.", "Connect to <ip>:8080 now."),
        ("The DNS server 8.8.8.8 answered.", "The DNS server <ip> answered."),
        ("from 2001:db8:85a3::8a2e:370:7334 to fe80::1", "from <ip> to <ip>"),
        ("Call (415) 555-2671 today.", "Call <phone> today."),
        ("Reach us on +1 650 253 0000.", "Reach us on <phone>."),
        ("650-253-0000", "<phone>"),
        ("Tel: 2125550123", "Tel: <phone>"),
        ("Pittsburgh (+1 412 471-0666).", "Pittsburgh (<phone>)."),
        ("London 020 7946 0958.", "London <phone>."),
        ("+49 30 901820 und +33 1 42 68 53 00", "<phone> und <phone>"),
    ],
)
def test_masked(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Tel. 030 901820 in Berlin", "Tel. <phone> in Berlin"),
        ("Erreichbar unter 030/901820.", "Erreichbar unter <phone>."),
    ],
)
def test_numbers_of_the_languages_country(text, expected):
    assert masked(text, "de") == expected


@pytest.mark.parametrize(
    "text",
    [
        "Version 1.2.3.4 of the program, v10.20.30.40, release 10.11.12.13.",
        "See section 1.2.3.4 and 4.3.2.1.",
        "Chrome/118.0.5993.70 and Firefox 115.10.0.0",
        "1.2.3.4.5.6.7 and 256.300.1.1 and 1.2.3",
        "On 2001-09-11, 11.09.2001, 12/31/1999 10:20:30 and 10.12.1990.",
        "From 1914-1918 and 1939-1945; 1990–1995; 2005 2006 2007.",
        "ISBN 978-0-306-40615-7, ISBN 0-306-40615-2, ISBN-13: 978-3-16-148410-0, ISSN 1234-5678.",
        "The population was 2,345,678,901 or 2 345 678 901 or 2345678901.",
        "It cost $1,234,567.89 and €212-555-0123.",
        "pi is 3.14159265358979 and a year 1226.9040008 days",
        "Medieval Encounters 13(3):385-412. 2007 and Arabica 34:251-266. 1987",
        "std::vector, a::b::c, Foo::bar, 10:20:30, 00:1a:2b:3c:4d:5e",
        "user@localhost, @name, a@b, foo@bar@baz, price @ 5.00, @mhoye@mastodon.social",
        "doi:10.1000/182, order no. 650-253-0000, arXiv 2112.11446, 1234567890123456",
        "Lat 40.7127837, long -74.0059413; 12h30; 4-4-2; 100-200-300",
    ],
)
def test_left_alone(text):
    assert masked(text) == text


@given(st.text(alphabet="0123456789 .:-/()+@abAB,", max_size=60))
def test_only_what_is_found_changes(text):
    replaced, kinds = mask_text(text, {"email": "", "ip": "", "phone": ""})
    assert (replaced == text) == (not kinds)
    remaining = iter(text)
    assert all(character in remaining for character in replaced)  # a subsequence: nothing is invented or moved


def test_what_was_masked_is_counted_and_not_told():
    config = TextConfig(
        minimum_characters=0, minimum_words=0, minimum_letters=0, mask_personal_data=("email", "phone"), email_token="[MAIL]"
    )
    document = Document(id="a", source="s", title="", paragraphs=("Ask ann@example.com or 650-253-0000 at 10.20.30.40.",))
    result = run_steps(document, build_steps(config))
    assert result.document is not None
    assert result.document.paragraphs == ("Ask [MAIL] or <phone> at 10.20.30.40.",)
    assert sorted(removed.reason for removed in result.removed) == ["masked_email", "masked_phone"]
    assert not any("ann" in removed.text or "650" in removed.text for removed in result.removed)


def test_off_by_default():
    document = Document(id="a", source="s", title="", paragraphs=("Ask ann@example.com. " + "More words follow here. " * 12,))
    result = run_steps(document, build_steps(TextConfig()))
    assert result.document is not None
    assert "ann@example.com" in result.document.text


def test_long_hostile_lines_take_linear_time():
    for text in ("a." * 50_000 + "@", "1-" * 50_000, "a:" * 50_000, "1." * 50_000, "@" * 100_000, "a@" + "b-" * 50_000):
        mask_text(text, TOKENS)
