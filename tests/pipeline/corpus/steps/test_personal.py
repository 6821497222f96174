"""Personal data: what is masked, and above all what is not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.chain import TextConfig, build_steps, run_steps
from cloze.pipeline.corpus.steps.personal_data import mask_personal_data, mask_text
from tests.growth import is_linear

TOKENS = {"email": "<email>", "iban": "<iban>", "card": "<card>", "ip": "<ip>", "phone": "<phone>"}


def masked(text: str, language: str = "en") -> str:
    return mask_text(text, TOKENS, language)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to jane.doe+list@mail.example.co.uk.", "Write to <email>."),
        ("(a_b@example.com)", "(<email>)"),
        ("jörg@müller.de, x@y.org;", "<email>, <email>;"),
        ("लिखें: सीता.शर्मा@विद्यालय.भारत।", "लिखें: <email>।"),
        ("Connect to 192.168.10.12:8080 now.", "Connect to <ip>:8080 now."),
        ("The DNS server 8.8.8.8 answered.", "The DNS server <ip> answered."),
        ("from 2001:db8:85a3::8a2e:370:7334 to fe80::1", "from <ip> to <ip>"),
        ("from 2001:db8:85a3::8a2e:370:7334 to 192.168.110.20.", "from <ip> to <ip>."),
        ("Call (415) 555-2671 today.", "Call <phone> today."),
        ("Reach us on +1 650 253 0000.", "Reach us on <phone>."),
        ("650-253-0000", "<phone>"),
        ("Tel: 2125550123", "Tel: <phone>"),
        ("Pittsburgh (+1 412 471-0666).", "Pittsburgh (<phone>)."),
        ("London 020 7946 0958.", "London <phone>."),
        ("+49 30 901820 und +33 1 42 68 53 00", "<phone> und <phone>"),
        ("Pay with 4111 1111 1111 1111, please.", "Pay with <card>, please."),
        ("Card number: 5555-5555-5555-4444.", "Card number: <card>."),
        ("amex 3782 822463 10005 or 6011111111111117", "amex <card> or <card>"),
        ("IBAN DE89 3704 0044 0532 0130 00, BIC COBADEFF", "IBAN <iban>, BIC COBADEFF"),
        ("GB29NWBK60161331926819 and FR14 2004 1010 0505 0001 3M02 606", "<iban> and <iban>"),
        ("NO93 8601 1117 947 BANK OF NORWAY", "<iban> BANK OF NORWAY"),
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
    ("language", "text", "expected"),
    [
        ("zh", "请发邮件到zhang@example.com联系我们", "请发邮件到<email>联系我们"),
        ("zh", "王@例子.中国", "<email>"),
        ("zh", "服务器地址是192.168.100.125的机器", "服务器地址是<ip>的机器"),
        ("zh", "地址2001:db8:85a3::8a2e:370:7334的机器", "地址<ip>的机器"),
        ("zh", "请致电010-62781234联系", "请致电<phone>联系"),
        ("zh", "卡号4111111111111111的用户", "卡号<card>的用户"),
        ("zh", "账户GB29NWBK60161331926819的", "账户<iban>的"),
        ("ja", "電話は03-1234-5678です", "電話は<phone>です"),
        ("ko", "전화02-2133-5678로, kim@example.com으로", "전화<phone>로, <email>으로"),
        ("th", "ที่info@example.comครับ", "ที่<email>ครับ"),
        ("th", "โทร. 02-123-4567 ครับ", "โทร. <phone> ครับ"),
        ("vi", "Điện thoại: 028 3822 3456.", "Điện thoại: <phone>."),
        ("lt", "Tel. 8 5 212 3456", "Tel. <phone>"),
        ("zh", "日期2020-10-15发布，版本1.2.3.4，1990-1995年", None),
        ("ja", "郵便番号100-0001東京都、人口12345678人", None),
    ],
)
def test_letters_of_scripts_without_spaces_end_an_address(language, text, expected):
    assert masked(text, language) == (expected or text)


@pytest.mark.parametrize(
    "text",
    [
        "Version 1.2.3.4 of the program, v10.20.30.40, release 10.11.12.13.",
        "“Abide With Me” (10.10.10.10) and 11.10.11.10",
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
        "4111 1111 1111 1112 and 1234 5678 9012 3456 and 9999 9999 9999 9995",
        "4111 1111 11111111, order 4111111111111111, id=4111111111111111, 4111 1111 1111 1111 1",
        "EAN 4006381333931, ISBN 4006381333931, barcode 4006381333931, tweet/4111111111111111",
        "DE89 3704 0044 0532 0130 01, DE89370400440532013000X, XX89 3704 0044 0532 0130 00, DE89 "
        "3704",
        "GB29 NWBK and THE FR14 2004 road; AB12 CDEF 3456 GHIJ 7890",
        "0.4111111111111111 and 4111111111111111.5 and 20190305123456 and 1552000000000",
        "Lat 40.7127837, long -74.0059413; 12h30; 4-4-2; 100-200-300",
    ],
)
def test_left_alone(text):
    assert masked(text) == text


@given(st.text(alphabet="0123456789 .:-/()+@abAB,", max_size=60))
def test_only_what_is_found_changes(text):
    replaced, kinds = mask_text(text, dict.fromkeys(TOKENS, ""))
    assert (replaced == text) == (not kinds)
    remaining = iter(text)
    assert all(
        character in remaining for character in replaced
    )  # a subsequence: nothing is invented or moved


def test_what_was_masked_is_counted_and_not_told():
    config = TextConfig(
        minimum_characters=0,
        minimum_words=0,
        minimum_letters=0,
        mask_personal_data=("email", "phone"),
    )
    document = Document(
        id="a",
        source="s",
        title="",
        paragraphs=("Ask ann@example.com or 650-253-0000 at 10.20.30.40.",),
    )
    result = run_steps(document, build_steps(config))
    assert result.document is not None
    assert result.document.paragraphs == ("Ask <email> or <phone> at 10.20.30.40.",)
    assert sorted(removed.reason for removed in result.removed) == ["masked_email", "masked_phone"]
    assert not any("ann" in removed.text or "650" in removed.text for removed in result.removed)


def _documents_of(allowed: int | None) -> tuple[Document, TextConfig]:
    kinds = ("email", "phone", "card")
    config = TextConfig(
        minimum_characters=0,
        minimum_words=0,
        minimum_letters=0,
        mask_personal_data=kinds,
        personal_data_allowed=allowed,
    )
    text = "Ask ann@example.com or bob@example.com; pay with 4111 1111 1111 1111."
    return Document(id="a", source="s", title="Of ann@example.com", paragraphs=(text,)), config


def test_a_document_with_too_many_is_dropped_and_they_are_counted_by_kind():
    document, config = _documents_of(3)
    result = run_steps(document, build_steps(config))
    assert (result.document, result.reason) == (None, "personal_data")
    assert sorted(removed.reason for removed in result.removed) == [
        "dropped_card",
        *["dropped_email"] * 3,
    ]
    document, config = _documents_of(4)
    result = run_steps(document, build_steps(config))
    assert result.document is not None
    assert result.document.title == "Of <email>"
    assert result.document.paragraphs == ("Ask <email> or <email>; pay with <card>.",)


def test_how_many_are_allowed_of_nothing():
    with pytest.raises(ValueError, match="needs mask_personal_data"):
        TextConfig(personal_data_allowed=1)


def test_off_by_default():
    document = Document(
        id="a",
        source="s",
        title="",
        paragraphs=("Ask ann@example.com. " + "More words follow here. " * 12,),
    )
    result = run_steps(document, build_steps(TextConfig()))
    assert result.document is not None
    assert "ann@example.com" in result.document.text


def test_long_hostile_lines_take_linear_time():
    for line in (
        ("", "4111 ", ""),
        ("", "DE89 ", ""),
        ("", "4", ""),
        ("", "DE89", ""),
        ("", "a.", "@"),
        ("", "1-", ""),
        ("", "a:", ""),
        ("", "1.", ""),
        ("", "@", ""),
        ("a@", "b-", ""),
    ):

        def work(size: int, line: tuple[str, str, str] = line) -> None:
            begin, unit, end = line
            mask_text(begin + unit * (size // len(unit)) + end, TOKENS)

        assert is_linear(work, 50_000), line


def test_nothing_of_it_stands_in_the_artifact_and_the_card_counts_it(tmp_path):
    """Neither in the shards nor in the examples of what was dropped, for whatever reason."""
    from tests.pipeline.corpus.corpora import make, prose, write_jsonl

    some, many = (
        "Ask ann@example.com.",
        "Ask bob@example.com or 650-253-0000, or pay 4111 1111 1111 1111.",
    )
    source = write_jsonl(
        tmp_path / "a.jsonl",
        f"{prose(1)} {some}",
        f"{prose(2)} {many}",
        "Short: carl@example.com.",
        prose(3),
    )
    result = make(
        tmp_path / "out",
        f"jsonl={source}",
        mask_personal_data=("email", "phone", "card"),
        personal_data_allowed=2,
        keep_dropped=True,
        minimum_letters=0.0,
    )
    everything = b"".join(
        path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
    assert b"<email>" in everything
    for told in (b"ann@", b"bob@", b"carl@", b"650-253", b"4111 1111"):
        assert told not in everything
    card = json.loads((tmp_path / "out" / "card.json").read_text())["personal_data"]
    assert card == {
        "kinds": ["email", "phone", "card"],
        "allowed": 2,
        "documents": 1,
        "masked": {"email": 1, "phone": 0, "card": 0},
        "dropped": {"email": 1, "phone": 1, "card": 1},
    }
    counters = result.manifest.counters
    assert counters["dropped/personal_data"] == 1
    assert counters["dropped_lines/masked_email"] == 1
    assert "Personal data" in (tmp_path / "out" / "card.html").read_text()


def test_neither_address_nor_id_tells_who_it_was(tmp_path):
    """Two records whose ids are e-mail addresses stay two, and neither column, example nor dropped
    row holds an address.
    """
    from tests.pipeline.corpus.corpora import make, prose, rows

    people = [(name, prose(number)) for number, name in enumerate(("jane.doe", "john.roe"))] + [
        ("max.poe", "Too short.")
    ]
    records = (
        {
            "id": f"{name}@example.org",
            "url": f"https://x.org/list?u={name}{at}example.org&p=1",
            "text": text,
        }
        for (name, text), at in zip(people, ("@", "%40", "@"), strict=True)
    )
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    result = make(
        tmp_path / "out",
        f"jsonl={tmp_path}/a.jsonl",
        mask_personal_data=("email",),
        keep_dropped=True,
    )
    found = rows(result)
    assert [row["url"] for row in found] == ["https://x.org/list?u=<email>&p=1"] * 2
    assert len({row["id"] for row in found}) == 2
    assert all(row["id"].startswith("jsonl/a.jsonl/<email>#") for row in found)
    assert result.manifest.counters["dropped_lines/masked_email"] == 2
    written = b"".join(
        path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()
    )
    assert not [name for name, _ in people if name.encode() in written]


def test_what_names_no_person_is_left_as_it_is():
    document = Document(
        id="jsonl/a/192.168.10.20",
        source="jsonl",
        title="",
        url="https://x.org/a%20b?id=4111111111111111",
        paragraphs=("None.",),
    )
    assert mask_personal_data(document, TOKENS).document is document


def test_many_finds_in_one_paragraph_take_linear_time():
    """Not so where the text is copied for each of them."""

    def work(count):
        text, kinds = mask_text("a@b.org and more " * count, {"email": "<email>"})
        assert (len(kinds), text.count("<email>")) == (count, count)

    assert is_linear(work, 60_000)
