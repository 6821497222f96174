"""Where a template may say something: at the start of a paragraph an unknown one is a box, inside a
sentence its argument stands apart from the words beside it, or the sentence goes.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import has_hole
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser
from tests.slices import few


def paragraphs(wikitext: str, language: str = "en") -> list[str]:
    """The paragraphs of a page that have no hole."""
    parser = WikitextParser({10: ["template"]}, language=language)
    return [text for text in parser.extract(wikitext).paragraphs if not has_hole(text)]


# (language, name of a hatnote, title, sentence)
HATNOTES = [
    ("it", "Vedi anche", "Storia di Roma", "La storia della città comincia con Romolo e Remo."),
    ("hy", "Հիմնական", "Բելառուսի պատմություն", "Բելառուսը պետություն է Արևելյան Եվրոպայում։"),
    ("vi", "Bài chi tiết", "Lịch sử Iraq", "Vùng đất màu mỡ nằm giữa hai con sông lớn."),
    ("bn", "মূল নিবন্ধ", "বঙ্গদেশের নামসমূহ", "বাংলাদেশ শব্দটি বাংলা সাহিত্যে খুঁজে পাওয়া যায়।"),
    ("el", "Κύριο", "Γεωγραφία της Αλβανίας", "Η Αλβανία έχει μεγάλη συνολική έκταση γης."),
    ("en", "details", "Medicine", "After Theophrastus the school failed to produce any work."),
    ("en", "further2", "[[Medicine]]", "After Theophrastus the school failed to produce any work."),
    ("en", "Dablink", "For the town see [[Eden]].", "Eden is a small town by the cold sea."),
    ("en", "Fix bunching", "beg", "France is a country in the west of Europe."),
    ("en", "wikisource", "The Iliad", "The Iliad is a long poem about a war."),
    ("de", "Hauptartikel", "Geschichte Roms", "Die Geschichte der Stadt beginnt mit Romulus."),
    ("fr", "Article détaillé", "Histoire de Rome", "L'histoire de la ville commence avec Romulus."),
    ("es", "AP", "Historia de Roma", "La historia de la ciudad comienza con Rómulo."),
    ("pt", "Artigo principal", "História de Roma", "A história da cidade começa com Rômulo."),
    ("ru", "Основная статья", "История Рима", "История города начинается с Ромула и Рема."),
    ("uk", "Див. також", "Історія Риму", "Історія міста починається з Ромула і Рема."),
    ("pl", "Osobny artykuł", "Historia Rzymu", "Historia miasta zaczyna się od Romulusa."),
    (
        "nl",
        "Hoofdartikel",
        "Geschiedenis van Rome",
        "De geschiedenis van de stad begint met Romulus.",
    ),
    ("sv", "Huvudartikel", "Roms historia", "Stadens historia börjar med Romulus och Remus."),
    ("ja", "See", "ローマの歴史", "この街の歴史はロムルスとともに始まる。"),
    ("zh", "主条目", "罗马历史", "这座城市的历史从罗慕路斯开始。"),
    ("ko", "본문", "로마의 역사", "이 도시의 역사는 로물루스로부터 시작된다."),
    ("ar", "مفصلة", "تاريخ روما", "يبدأ تاريخ المدينة مع رومولوس وريموس في القديم."),
    ("fa", "اصلی", "تاریخ رم", "تاریخ این شهر با رومولوس آغاز می‌شود و دراز است."),
    ("he", "הפניה לערך מורחב", "תולדות רומא", "תולדות העיר מתחילות ברומולוס וברמוס לפני שנים."),
    ("hi", "मुख्य", "रोम का इतिहास", "नगर का इतिहास रोमुलस और रेमुस से शुरू होता है।"),
    ("tr", "Ana madde", "Roma tarihi", "Kentin tarihi Romulus ve Remus ile başlar."),
    ("cs", "Podrobně", "Dějiny Říma", "Dějiny města začínají Romulem a Removým příběhem."),
    ("xx", "Made up name", "History of Rome", "The story of the town begins with two brothers."),
]


@pytest.mark.parametrize(
    ("language", "name", "title", "sentence"),
    few(HATNOTES, "en", "de", "ru", "zh", "ar", "hi", "xx"),
)
@pytest.mark.parametrize(
    "form",
    [
        "{box}\n{text}",
        "{box}{text}",
        "{box} {text}",
        "== A ==\n{box}\n{text}",
        "{box} {box}\n{box}{text}",
        "<br>{box}\n{text}",
        "[[File:a.jpg|thumb|A caption]]{box}\n{text}",
        "{{Infobox|a=b\n|c=d\n}}{box}{text}",
        ":{box}\n{text}",
        "{box}<ref>x</ref>\n{text}",
        ":''{box}''\n{text}",
        "{text}\n{box}\n\n{text}",
        "{text}\n\n\n{box}\n{text}",
        "{{|\n| {box}\n|}}\n{text}",
    ],
)
def test_a_hatnote_is_no_part_of_the_paragraph(language, name, title, sentence, form):
    page = form.replace("{{|", "{|").replace("|}}\n", "|}\n")
    page = page.replace("{box}", f"{{{{{name}|{title}}}}}").replace("{text}", sentence)
    texts = paragraphs(page, language)
    assert texts
    assert set(texts) == {sentence}


LETTERS = st.text("abcdefgh", min_size=2, max_size=8)


@given(st.lists(LETTERS, min_size=1, max_size=3), LETTERS, st.sampled_from(["", " ", "\n"]))
def test_an_unknown_template_never_opens_a_paragraph(values, name, gap):
    text = "Eden is a small town by the sea, and it is old."
    texts = paragraphs(f"{{{{zz{name}|{'|'.join(values)}}}}}{gap}{text}")
    assert texts == [text]


@pytest.mark.parametrize(
    ("wikitext", "texts"),
    [
        # a subject: the sentence would be false without it
        ("{{zzname|Anna}} is a singer from the north of Norway.", []),
        ("'''{{zzname|Anna}}''' is a singer from the north of Norway.", []),
        ("{{zzname|Anna}} (born 1950) is a singer from the north of Norway.", []),
        ("{{zzname|Anna}} – a singer – lives in the north of Norway.", []),
        ("''{{zzname|Anna}}''’s town is a place in the north of Norway.", []),
        ("{{zzname|5}} °C are cold enough for most of the people of Norway.", []),
        ("{{zzname|Anna}}, a singer, lives in the north of Norway.", []),
        # after a word
        ("She lives in {{zzname|Oslo}} and sings.", ["She lives in Oslo and sings."]),
        ("She lives there ({{zzname|Oslo}}) and sings.", ["She lives there (Oslo) and sings."]),
        # glued to a word on either side
        ("She lives in{{zzname|Oslo}} and sings.", []),
        ("She lives in {{zzname|Oslo}}and sings.", []),
        ("The town has 5{{zzname|24}} people in it.", []),
        ("The town has 5{{zzname}} people in it.", []),
        ("It is a [[town|{{zzname|Oslo}}]] in the north.", []),
        ("It is {{nowrap|{{zzname|Oslo}} town}} in the north.", []),
        ("It says {{urlencode:a b}} and {{ns:4}} in it.", []),
    ],
)
def test_an_unknown_template_stands_apart_or_its_sentence_goes(wikitext, texts):
    assert paragraphs(wikitext) == texts


def test_a_note_between_words_and_numbers_leaves_a_blank():
    assert paragraphs("এটি বড় জনসংখ্যা নিয়ে{{sfn|ref}}জ্যামাইকা একটি দেশ।", "bn") == [
        "এটি বড় জনসংখ্যা নিয়ে জ্যামাইকা একটি দেশ।"
    ]
    assert paragraphs("It was so in 1990{{sfn|x}}1991 and in 1992.") == [
        "It was so in 1990 1991 and in 1992."
    ]
    assert paragraphs("এটি বড় শহর নিয়ে {{zzname|ঢাকা}} একটি দেশ।", "bn") == [
        "এটি বড় শহর নিয়ে ঢাকা একটি দেশ।"
    ]


def test_a_bold_subject_is_missed_where_letters_have_no_case():
    assert paragraphs("'''{{zzname|ঢাকা}}''' বাংলাদেশের রাজধানী ও বৃহত্তম শহর।", "bn") == []


@pytest.mark.parametrize(
    ("language", "wikitext"),
    [
        ("bn", "সেখানে {{As of|2009}} অনেক মানুষ বাস করে।"),
        ("vi", "Dân số {{As of|2009|12}} là rất đông và tăng."),
        ("vi", "Người Ai Lao {{Zh|c=哀牢|p=Āiláo}} sống ở đây."),
        ("fr", "La ville {{as of|2009}} est grande et belle."),
        ("de", "Die Stadt {{langx|fr|île}} liegt am {{ordinal|3}} See."),
        ("es", "La ciudad {{birth date|1955|3|2}} es grande."),
        ("es", "La ciudad {{BC|300}} era grande, {{née|Roe}} y rica."),
        ("it", "La città {{convert|5|and|6|km|mi}} è grande e {{enS|Tower}} bella."),
        ("ru", "Город {{harvtxt|Smith|Jones|1999}} большой {{marriage|Ann|1990|1995}}."),
        ("pt", "A cidade tem {{convert|3|e6acre|km2}} de terra."),
    ],
)
def test_no_english_or_german_words_in_other_languages(language, wikitext):
    parser = WikitextParser({}, language=language)
    text = "\n".join(parser.extract(wikitext).paragraphs).lower()
    for word in ("as of", "chinese", "pinyin", "french", "3rd", "march", " bc", "née", " and ",
                 "englisch", "&", "m. ", "million", "e6acre", "december"):  # fmt: skip
        assert word not in text


@pytest.mark.parametrize(
    ("language", "wikitext", "text"),
    [
        ("en", "l{{'}}''[[Anhalter Bahnhof]]'' x", "l'Anhalter Bahnhof x"),
        ("en", "''Eagle''{{'}}s ascent and ''Eagle''{{'s}} stage", "Eagle's ascent and Eagle's stage"),
        ("fr", "l{{'}}''[[Gare|Anhalter Bahnhof]]'' et l{{'}}'''eau'''", "l'Anhalter Bahnhof et l'eau"),
        ("fr", "d{{apostrophe}}''Artagnan'' et {{`}}''Ali''", "d'Artagnan et 'Ali"),
        ("en", "photo{{wbr}}synthesis, photo{{shy}}synthesis, a{{zwj}}b, a{{ZWNJ}}b, a{{zwsp}}b", (
            "photosynthesis, photosynthesis, a\u200db, a\u200cb, ab")),
        ("en", "{{lc:ABC}} {{uc:abc}} {{ucfirst:abc}} {{lcfirst:ABC}}", "abc ABC Abc aBC"),
        ("de", "{{klein:ABC}} {{GROSS:abc}} {{initial gross:abc}}", "abc ABC Abc"),
        ("ru", "{{нижний регистр:АБВ}} {{нр:АБВ}} {{вр:абв}}", "абв абв АБВ"),
        ("tr", "{{lc:IŞIK}} {{uc:izmir}}", "ışık İZMİR"),
        ("en", "a{{nbsp}}b{{spaces|3}}c{{thin space}}d{{esd}}e{{0}}f", "a b c d ef"),
        ("es", "45{{esd}}km y 3{{esd}}m", "45 km y 3 m"),
        ("it", "45{{esd}}km", "45 km"),
        ("en", "{{nowrap|a{{=}}b}} and {{nowrap|a{{!}}b}} and x{{=}}y", "a=b and a|b and x=y"),
        ("en", "the '''town'''{{audio|x.ogg|listen}} of", "the town of"),
        ("mr", "हे '''सोलापूर'''{{audio|x.ogg|उच्चार}} शहर", "हे सोलापूर शहर"),
        ("arz", "مدينة '''كوتش'''{{audio|x.ogg|نطق}} جميلة", "مدينة كوتش جميلة"),
        ("ar", "مدينة '''كوتش'''{{ألمانية|Kotsch}} جميلة", "مدينة كوتش بالألمانية: Kotsch جميلة"),
        ("en", "{{harvs|txt|last=Moishezon|year=1966|year2=1967}} showed", "Moishezon (1966, 1967) showed"),
        ("en", "{{harvs|txt=yes|last1=Ax|first1=James|last2=Ko|year=1965|loc=p. 3}} and {{harvs|nb|last=Ax|year=1965}}", (
            "James Ax & Ko (1965, p. 3) and Ax 1965")),
        ("en", "so it is {{harvs|last=Ax|year=1965}} now", "so it is now"),
        ("en", "{{harvp|Ax|1965}} and {{harvcoltxt|Ax|1965}} and {{harvard citation text|Ax|1965}}", (
            "Ax (1965) and Ax (1965) and Ax (1965)")),
    ],
)  # fmt: skip
def test_what_small_templates_say(language, wikitext, text):
    parser = WikitextParser({}, language=language)
    (found,) = parser.extract(f"Now {wikitext} it is so.").paragraphs
    assert found.removeprefix("Now ").removesuffix(" it is so.").removesuffix("it is so.") == text
