"""Short books in the forms of publishers, whose kept words are compared one by one."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.readers.base import ReadCounters, Slice
from cloze.pipeline.corpus.readers.books import book_text
from cloze.pipeline.corpus.readers.books.gutenberg import count_lines
from tests.pipeline.corpus.readers.test_books_scripts import dropped
from tests.pipeline.corpus.script_texts import TEXTS


def read(text: str) -> tuple[list[str], ReadCounters]:
    tally = ReadCounters(slice=Slice(kind="books", name="a.txt", path="a.txt", size=0), stop=False)
    book = book_text.read(text, tally)
    return [paragraph for _, paragraphs in book.sections for paragraph in paragraphs], tally


AOZORA = """河童
芥川龍之介

-------------------------------------------------------
【テキスト中に現れる記号について】

《》：ルビ
（例）河童《かっぱ》

｜：ルビの付く文字列の始まりを特定する記号
（例）或｜精神病院《せいしんびょういん》

［＃］：入力者注　主に外字の説明や、傍点の位置の指定
（例）※［＃「木＋吶のつくり」、第3水準1-85-54］
-------------------------------------------------------

［＃７字下げ］序［＃「序」は大見出し］

　これは或｜精神病院《せいしんびょういん》の患者、――第二十三号が誰にでもしゃべる話である。
　彼はもう三十を越しているであろう。が、一見した所は如何にも若々しい狂人である。
「出て行け！　この悪党めが！」と、Ｓ博士は言った。

［＃７字下げ］一［＃「一」は中見出し］

　※［＃「木＋吶のつくり」、第3水準1-85-54］《ほぞ》と※［＃「口＋世」、U+546D、12-3］と※［＃「謎の字」、34-5］を見た。［＃「見た」に傍点］
　三年前《まえ》の夏のことです。［＃地付き］（昭和二年二月）

底本：「芥川龍之介全集」筑摩書房
　　　1987（昭和62）年1月27日第1刷発行
入力：某
校正：某
このファイルは、インターネットの図書館、青空文庫（http://www.aozora.gr.jp/）で作られました。
"""


def test_aozora() -> None:
    kept, tally = read(AOZORA)
    assert kept == [
        "これは或精神病院の患者、――第二十三号が誰にでもしゃべる話である。",
        "彼はもう三十を越しているであろう。が、一見した所は如何にも若々しい狂人である。",
        "「出て行け！ この悪党めが！」と、Ｓ博士は言った。",
        "枘と呭と〓を見た。",
        "三年前の夏のことです。（昭和二年二月）",
    ]
    counts = {name.partition("/")[2]: count for name, count in tally.counters.items()}
    assert counts == {
        "note": 15, "colophon": 5, "reading": 3, "missing_character": 1, "front_matter": 2,
        "heading": 2,
    }  # fmt: skip


def test_titles_in_chinese_brackets_stay() -> None:
    text = "第一回\n\n　　他读过《红楼梦》和《水浒传》｜两本书。\n　　后来他又读《西游记》。\n"
    assert read(text)[0] == ["他读过《红楼梦》和《水浒传》｜两本书。", "后来他又读《西游记》。"]


FRENCH = [
    "La petite ville est située au bord d’une large rivière, que traversait jadis un pont de bois.",
    "«Viens ici!» dit la boulangère.",
    "Chaque matin les marchands ouvrent leurs étals sur la place et vendent du pain frais.",
]
DIALOGUE = (
    "    Marie.  «Je suis Marie.\n\n    Jean.   --Et je suis Jean.\n\n    M.      --Il est papa."
)
GITENBERG = f"""Project Gutenberg's Entre Nous, by A. Vos

Title: Entre Nous

*** START OF THIS PROJECT GUTENBERG EBOOK ENTRE NOUS ***

Produced by A. Nobody and the Online Distributed Proofreading Team

  Au lecteur.

    Le texte en italiques dans l’original est indiqué ici comme
    _italiques_, le texte en gras comme =gras=.

    On trouvera d’autres précisions à la fin du texte.




                              ENTRE NOUS.

                     LECTURES FRANÇAISES À L’USAGE
                         DES ÉCOLES PRIMAIRES.




INDEX.


     Chap.                                  Page.

        I. Deux Parents et Deux Enfants         7
       II. Papa se fâche                        8




I.


[Illustration: DEUX PARENTS ET DEUX ENFANTS.]

{DIALOGUE}




II. Papa se fâche.

{FRENCH[0]}

{FRENCH[1]}

{FRENCH[2]}



  Au lecteur.

    Page 9: «niet» mis en italiques.

*** END OF THIS PROJECT GUTENBERG EBOOK ENTRE NOUS ***
"""


def test_a_dialogue_after_the_index_is_no_list_of_contents() -> None:
    kept, tally = read(GITENBERG)
    assert kept[:3] == [
        "Marie. «Je suis Marie.", "Jean. --Et je suis Jean.", "M. --Il est papa.",
    ]  # fmt: skip
    assert kept[-3:] == FRENCH
    assert tally.counters["dropped_lines/contents"] == 4
    assert tally.counters["dropped_lines/transcriber_note"] == 6
    assert tally.counters["dropped_lines/apparatus"] == 1
    assert dropped(tally) + sum(len(paragraph) > 0 for paragraph in kept) == count_lines(GITENBERG)


GERMAN = [
    "Die kleine Stadt liegt am Ufer eines breiten Flusses, über den früher eine Brücke führte.",
    "Jeden Morgen öffnen die Händler ihre Stände auf dem Markt und verkaufen frisches Brot.",
] * 12
CATALOGUES = {
    "de": "Verlag von A. Nobody in Leipzig\n\nDie Mühle. Roman. Preis 2 Mark.\n\nDer Fluß. Preis 3 Mark.\n\n"
    "Das Brot. Gebunden Preis 1 Mark.\n\nDer Käse. Preis 2,50 Mark.",
    "en": "WORKS BY THE SAME AUTHOR\n\nTHE MILL. 178 pages. Price $1.50\n\nTHE RIVER. Cloth, 6s.\n\n"
    "THE BREAD. 8vo, cloth, 3s. 6d.\n\nTHE CHEESE. 207 pages. Price $2.00",
    "fr": "DU MÊME AUTEUR\n\nLe Moulin. Un vol. Prix 3 fr. 50\n\nLa Rivière. Prix 3 fr.\n\n"
    "Le Pain. Prix 2 fr. 50\n\nLe Fromage. Prix 3 fr. 50",
}


@pytest.mark.parametrize("language", CATALOGUES)
def test_a_list_of_prices_at_the_end_goes(language: str) -> None:
    text = "\n\n".join(["Die Stadt", "", *GERMAN, "", CATALOGUES[language]])
    kept, tally = read(text)
    assert kept == GERMAN
    assert tally.counters["dropped_lines/catalogue"] == 5


def test_prices_in_a_story_stay() -> None:
    story = [f"The bread cost {number}s. and the cheese cost ${number}." for number in range(9)]
    kept, tally = read("\n\n".join([*GERMAN, *story]))
    assert kept == [*GERMAN, *story]
    assert dropped(tally) == 0


def test_an_export_of_wikisource() -> None:
    text = "\n\n".join(
        [
            "Die Stadt", "A. Nobody", "1890", "Exportiert aus Wikisource am 29. November 2026",
            "Erstes Kapitel", *GERMAN, "Über diese digitale Ausgabe",
            "Dieses E-Book stammt aus der Online-Bibliothek Wikisource.", "A. Nobody, B. Nobody",
        ]
    )  # fmt: skip
    kept, tally = read(text)
    assert kept == GERMAN
    assert tally.counters["dropped_lines/licence"] == 3


CTEXT = "《學而》\n\n1\t學而:\t子曰：「學而時習之，不亦說乎？有朋自遠方來，不亦樂乎？」\n2\t學而:\t有子曰：「其為人也孝弟，而好犯上者，鮮矣。」\n"


def test_a_classic_of_ctext() -> None:
    kept, tally = read(CTEXT)
    assert kept == [
        "1 學而: 子曰：「學而時習之，不亦說乎？有朋自遠方來，不亦樂乎？」",
        "2 學而: 有子曰：「其為人也孝弟，而好犯上者，鮮矣。」",
    ]
    assert dropped(tally) == 1


def test_runeberg() -> None:
    """Hard wrapped pages, indented, without blank lines, and numbers of pages between them."""
    text = (
        "FÖRSTA KAPITLET.\n\n"
        "   Den lilla staden ligger vid stranden av en bred flod, över vilken\n"
        "det förr gick en bro av trä.\n"
        "   Varje morgon öppnar handlarna sina stånd på torget och säljer\n"
        "äpplen, ost och nybakat bröd.\n\n"
        "- 12 -\n\n"
        "   Eleverna går förbi rådhuset, hälsar på bagaren och hör på långt\n"
        "håll skolans klocka.\n"
    ) * 3
    kept, tally = read(text)
    assert (
        kept
        == [
            "Den lilla staden ligger vid stranden av en bred flod, över vilken det förr gick en bro av trä.",
            "Varje morgon öppnar handlarna sina stånd på torget och säljer äpplen, ost och nybakat bröd.",
            "Eleverna går förbi rådhuset, hälsar på bagaren och hör på långt håll skolans klocka.",
        ]
        * 3
    )
    assert dropped(tally) == 6


@pytest.mark.parametrize("line_end", ["\r\n", "\r", "\u2028", "\x85", "\n"])
@pytest.mark.parametrize("language", ["zh", "ar", "de"])
def test_ends_of_lines(language: str, line_end: str) -> None:
    paragraphs = [f"{TEXTS[language]} {number}." for number in range(5)]
    assert read((line_end * 2).join(paragraphs))[0] == paragraphs
