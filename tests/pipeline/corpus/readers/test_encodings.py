"""Encodings: what is sure is read and counted, the rest is refused with candidates and a remedy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.pipeline.corpus.readers.base import ReadCounters, Slice
from cloze.pipeline.corpus.readers.plain_text import decode
from tests.pipeline.corpus.script_texts import GERMAN, TEXTS

POLISH = (
    "Małe miasteczko leży nad brzegiem szerokiej rzeki, przez którą dawniej prowadził drewniany "
    "most. Każdego ranka kupcy otwierają swoje stragany na rynku i sprzedają jabłka, ser i świeży "
    "chleb. Uczniowie przechodzą obok ratusza, pozdrawiają piekarkę i z daleka słyszą dzwon szkoły."
)
CZECH = (
    "Malé město leží na břehu široké řeky, přes kterou dříve vedl dřevěný most. Každé ráno "
    "obchodníci otevírají své stánky na tržišti a prodávají jablka, sýr a čerstvý chléb. Žáci "
    "chodí kolem radnice, zdraví pekařku a už z dálky slyší školní zvon."
)
HUNGARIAN = (
    "A kis város egy széles folyó partján fekszik, amelyen régen fahíd vezetett át. Minden reggel "
    "a kereskedők kinyitják bódéikat a piactéren, és almát, sajtot meg friss kenyeret árulnak. Az "
    "iskolások elmennek a városháza előtt, üdvözlik a pékséget, és messziről hallják a csengőt."
)
TURKISH = (
    "Küçük kasaba geniş bir ırmağın kıyısında bulunur ve eskiden üzerinde ahşap bir köprü vardı. "
    "Her sabah satıcılar pazarda tezgâhlarını açar, elma, peynir ve taze ekmek satarlar."
)
LITHUANIAN = (
    "Mažas miestelis stovi ant plačios upės kranto, per kurią anksčiau vedė medinis tiltas. Kiekvieną "
    "rytą pirkliai atidaro savo prekystalius turgaus aikštėje ir parduoda obuolius, sūrį ir šviežią "
    "duoną. Mokiniai eina pro rotušę, sveikinasi su kepėja ir iš tolo girdi mokyklos varpą."
)
UKRAINIAN = (
    "Маленьке містечко лежить на березі широкої річки, через яку колись вів дерев'яний міст. "
    "Щоранку торговці відчиняють свої ятки на ринковій площі й продають яблука, сир і свіжий хліб."
)
FRENCH = (
    "La petite ville est située au bord d’une large rivière, que l’on traversait jadis par un pont. "
    "Chaque matin, les marchands ouvrent leurs étals et vendent du pain frais — même l’été."
)
CHINESE_TRADITIONAL = (
    "這座小城坐落在一條寬闊的河邊，從前河上有一座木橋。每天早晨，商人們在集市上擺開攤位，出售蘋果、"
    "乳酪和剛出爐的麵包。學生們走過市政廳，向麵包師問好，遠遠地就聽見學校的鐘聲。"
)
SURE = [
    ("cp1250", POLISH), ("iso8859-2", POLISH), ("cp1250", CZECH), ("iso8859-2", CZECH),
    ("cp1250", HUNGARIAN), ("cp1251", TEXTS["ru"]), ("koi8-r", TEXTS["ru"]), ("cp866", TEXTS["ru"]),
    ("iso8859-5", TEXTS["ru"]), ("koi8-u", UKRAINIAN), ("cp1251", UKRAINIAN),
    ("iso8859-7", TEXTS["el"]), ("cp1253", TEXTS["el"]), ("cp1254", TURKISH), ("cp1255", TEXTS["he"]),
    ("cp1256", TEXTS["ar"]), ("cp1257", LITHUANIAN), ("iso8859-13", LITHUANIAN), ("cp874", TEXTS["th"]),
    ("cp932", TEXTS["ja"]), ("euc_jp", TEXTS["ja"]), ("iso2022_jp", TEXTS["ja"]),
    ("gb18030", TEXTS["zh"]), ("hz", TEXTS["zh"]), ("big5", CHINESE_TRADITIONAL),
    ("euc_kr", TEXTS["ko"]), ("cp949", TEXTS["ko"]), ("cp1252", GERMAN), ("cp1252", FRENCH),
    ("cp850", GERMAN), ("utf-16", TEXTS["hi"]), ("utf-16-le", GERMAN),
    ("utf-32", TEXTS["ka"]),
]  # fmt: skip


def read(data: bytes) -> tuple[str | None, ReadCounters]:
    tally = ReadCounters(slice=Slice(kind="text", name="a.txt", path="a.txt", size=0), stop=False)
    return decode(data, tally), tally


@pytest.mark.parametrize(("encoding", "text"), SURE, ids=[f"{e}-{t[:6]}" for e, t in SURE])
def test_what_is_sure_is_read_and_counted(encoding: str, text: str) -> None:
    text = f"{text}\n{text}\n"
    decoded, tally = read(text.encode(encoding))
    assert decoded == text
    told = [name for name in tally.counters if name.startswith("encoding/")]
    assert len(told) == (not encoding.startswith("utf"))
    assert not tally.unreadable


OTHERS = [
    ("cp852", POLISH), ("cp852", CZECH), ("mac_latin2", POLISH), ("mac_roman", FRENCH),
    ("cp437", GERMAN), ("mac_roman", GERMAN), ("cp775", LITHUANIAN), ("iso8859-4", LITHUANIAN),
    ("cp737", TEXTS["el"]), ("cp857", TURKISH), ("iso8859-9", TURKISH), ("mac_cyrillic", TEXTS["ru"]),
    ("cp855", TEXTS["ru"]), ("iso8859-8", TEXTS["he"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("encoding", "text"), SURE + OTHERS, ids=[f"{e}-{t[:6]}" for e, t in SURE + OTHERS]
)
@settings(max_examples=6, deadline=None)
@given(size=st.integers(20, 240))
def test_never_another_text(encoding: str, text: str, size: int) -> None:
    """A text of any length is read as it is, or refused."""
    text = text[:size].encode(encoding, "ignore").decode(encoding)
    decoded, tally = read(text.encode(encoding))
    if decoded is None:
        assert tally.counters["quarantined/bad_encoding"] == 1
    else:
        assert decoded == text


def test_a_refusal_names_candidates_and_the_remedy() -> None:
    decoded, tally = read(LITHUANIAN[:60].encode("cp775"))
    assert decoded is None
    (entry,) = tally.unreadable
    assert "perhaps" in entry.sentence
    assert "iconv -f" in entry.sentence


@pytest.mark.parametrize("language", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be"])
def test_a_file_cut_inside_its_last_character_keeps_its_text(language: str, encoding: str) -> None:
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    text = TEXTS[language].rstrip(".!?")
    decoded, tally = read(mark + text.encode(encoding)[:-1])
    if not text[-1].isascii() or encoding != "utf-8":
        assert decoded == text[:-1]
        assert tally.counters["dropped_lines/cut_character"] == 1


@pytest.mark.parametrize(
    ("encoding", "language"),
    [("cp932", "ja"), ("euc_jp", "ja"), ("gb18030", "zh"), ("cp949", "ko")],
)
def test_so_does_one_of_two_bytes_a_character(encoding: str, language: str) -> None:
    text = TEXTS[language][:-1]
    decoded, tally = read(text.encode(encoding)[:-1])
    assert decoded == text[:-1]
    assert tally.counters["dropped_lines/cut_character"] == 1


@pytest.mark.parametrize("letter", ["é", "ü", "’", "—", "ñ"])
def test_single_bytes_of_windows_1252_in_utf8(letter: str) -> None:
    whole = f"{FRENCH} Voil{letter}là. {GERMAN}"
    data = f"{FRENCH} Voil".encode() + letter.encode("cp1252") + f"là. {GERMAN}".encode()
    decoded, tally = read(data)
    assert decoded == whole
    assert tally.counters["encoding/utf-8 with windows-1252"] == 1


def test_the_mark_that_ends_a_text_is_no_text() -> None:
    assert read(b"A line.\r\nAnother line.\r\n\x1a\x1a")[0] == "A line.\r\nAnother line.\r\n"


def test_a_letter_of_another_encoding_at_the_end_is_not_cut() -> None:
    decoded, tally = read("Ils vont au café".encode("cp1252"))
    assert decoded in (None, "Ils vont au café")
    assert not tally.counters["dropped_lines/cut_character"]
