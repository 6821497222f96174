"""Dumps of other languages than English: namespaces, redirects, disambiguations, sections and prose
in their own words.
"""

from __future__ import annotations

import html

import pytest

from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.encyclopedia.dump import reader
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import (
    is_redirect,
    lists_meanings,
    names_meanings,
)
from cloze.pipeline.corpus.readers.prose import reads_as_prose
from cloze.pipeline.corpus.steps.sentences import split
from tests.pipeline.corpus.reading import options_of


def dump(language, namespaces, pages):
    names = "".join(
        f'<namespace key="{key}" case="first-letter">{name}</namespace>'
        for key, name in namespaces.items()
    )
    articles = "".join(
        f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>9{number}</"
        f"id><model>wikitext</model>"
        f'<text xml:space="preserve">{html.escape(text)}</text></revision></page>\n'
        for number, (title, text) in enumerate(pages, 1)
    )
    return (
        f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" '
        f'xml:lang="{language}">'
        f"<siteinfo><namespaces>{names}</namespaces></siteinfo>\n{articles}</mediawiki>\n"
    )


GERMAN = dump(
    "de",
    {6: "Datei", 14: "Kategorie"},
    [
        (
            "Turm",
            "[[Datei:Turm.jpg|mini|hochkant|Der [[Turm]] von [[Pisa]]]]\nDer '''Turm''' "
            "({{enS|tower}}) ist ein Bauwerk, das höher als breit ist."
            '<ref>Duden.</ref> Er steht in [[Pisa]].\n\n== Geschichte ==\nGoethe schrieb: {{"|Ein '
            "Turm ist schön.}}\n\n"
            "== Einzelnachweise ==\n<references />\n* Ein ganzer Satz steht hier im Verzeichnis.\n"
            "[[Kategorie:Bauwerk]][[Bild:x.png|mini|alt]]__KEININHALTSVERZEICHNIS__",
        ),
        ("Türme", "#WEITERLEITUNG [[Turm]]"),
        ("Bank", "'''Bank''' steht für:\n* Geld\n{{Begriffsklärung}}"),
    ],
)
FRENCH = dump(
    "fr",
    {6: "Fichier", 14: "Catégorie"},
    [
        (
            "Tour",
            "[[Fichier:Tour.jpg|vignette|La tour]]\nLa '''tour''' est un bâtiment du {{s|XIX}}, "
            "haute de {{unité|300|m}}. Elle est à [[Paris]].\n\n"
            "== Voir aussi ==\n* Une phrase qui est dans la liste.\n"
            "[[Catégorie:Bâtiment]][[en:Tower]]",
        ),
        ("Tours", "#REDIRECTION [[Tour]]"),
        ("Orange", "{{Homonymie}}\n* fruit"),
        ("Orange (homonymie)", "Une page sans modèle."),
    ],
)
JAPANESE = dump(
    "ja",
    {6: "ファイル", 14: "Category"},
    [
        (
            "東京",
            "[[ファイル:Tokyo.jpg|thumb|東京の[[塔]]]]\n'''{{読み仮名|東京|とうきょう}}'''は、[[日本]]の首都である。<ref>出典</"
            "ref>人口は約1400万人である。\n\n"
            "== 歴史 ==\n江戸時代には江戸と呼ばれていた。\n\n== 脚注 ==\n{{Reflist}}\n* この文は脚注の中にある文である。\n"
            "[[Category:都市]][[画像:x.png|thumb|alt]]",
        ),
        ("とうきょう", "#転送 [[東京]]"),
        ("大阪 (曖昧さ回避)", "大阪は次のものである。"),
        ("京", "{{aimai}}\n* 京都"),
    ],
)
ARABIC = dump(
    "ar",
    {6: "ملف", 14: "تصنيف"},
    [
        (
            "برج",
            "[[ملف:Tower.jpg|تصغير|برج]]\n'''البرج''' هو بناء مرتفع يستخدم في المدن الكبيرة. هل هو "
            "قديم جدا في [[تاريخ|التاريخ]]؟\n\n"
            "== مراجع ==\n* هذه جملة طويلة في قائمة المراجع.\n[[تصنيف:مباني]]",
        ),
        ("أبراج", "#تحويل [[برج]]"),
        ("عين", "{{توضيح}}\n* شيء"),
    ],
)
EXPECTED = {
    "de": (GERMAN,
    ("Der Turm (englisch tower) ist ein Bauwerk, das höher als breit ist. Er steht in Pisa.",
    "Goethe schrieb: „Ein Turm ist schön.“"), 1),
    "fr": (FRENCH, ("La tour est un bâtiment du XIXe siècle, haute de 300 m. Elle est à Paris.",),
    2),
    "ja": (JAPANESE, ("東京（とうきょう）は、日本の首都である。人口は約1400万人である。", "江戸時代には江戸と呼ばれていた。"), 2),
    "ar": (ARABIC, ("البرج هو بناء مرتفع يستخدم في المدن الكبيرة. هل هو قديم جدا في التاريخ؟",), 1),
}  # fmt: skip


@pytest.mark.parametrize("language", EXPECTED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_dump_of_another_language(tmp_path, language, encoding):
    text, paragraphs, disambiguations = EXPECTED[language]
    path = tmp_path / "a.xml"
    path.write_bytes(text.encode(encoding))
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice)
    documents = list(reader.read(file_slice, options_of(reader), tally))  # whose `language` is en
    assert [document.paragraphs for document in documents] == [paragraphs]
    assert documents[0].language == language
    assert tally.counters["dropped/redirect"] == 1
    assert tally.counters["dropped/disambiguation"] == disambiguations
    assert tally.counters["dropped_lines/section"] >= (language != "xx")


def test_a_dump_in_another_encoding_is_refused(tmp_path):
    path = tmp_path / "a.xml"
    declaration = '<?xml version="1.0" encoding="klingon"?><mediawiki'
    path.write_bytes(GERMAN.replace("<mediawiki", declaration, 1).encode())
    file_slice = reader.slices(str(path))[0]
    tally = ReadCounters(slice=file_slice, stop=False)
    assert list(reader.read(file_slice, options_of(reader, stop=False), tally)) == []
    assert "klingon" in tally.unreadable[0].sentence


@pytest.mark.parametrize(
    "text",
    ["#REDIRECT [[A]]", "# redirect [[A]]", "#Redirect: [[A#b]] {{R from x}}", "#ПЕРЕНАПРАВЛЕНИЕ [[А]]", "#重定向 [[甲]]", "#넘겨주기 [[가]]", "#הפניה [[א]]",
     "#YÖNLENDİR [[A]]", "#OHJAUS [[A]]", "#BIRZUZENDU [[A]]", "#JEDNAKOUSKO [[A]]\n[[Kat:B]]\n{{c}}", "#تغییر_مسیر [[ا]]"],
)  # fmt: skip
def test_redirects(text):
    assert is_redirect(text)


@pytest.mark.parametrize(
    "text",
    [
        "# one\n# two",
        "#1 [[A]] was the first of them.",
        "It is #REDIRECT [[A]].",
        "",
        "# See [[A]] and [[B]] for more of it.",
    ],
)
def test_no_redirects(text):
    assert not is_redirect(text)


@pytest.mark.parametrize(
    "text",
    ["x {{disambig}}", "{{Disambiguation|geo}}", "{{human name disambiguation}}", "{{Vorlage:Begriffsklärung}}", "{{desambiguación}}", "{{Неоднозначность}}",
     "{{消歧义}}", "{{동음이의}}", "{{ disambigua }}", "{{Anlam ayrımı}}", "__DISAMBIG__", "{{surname}}", "{{township disambiguation}}"],
)  # fmt: skip
def test_disambiguations(text):
    assert lists_meanings(text)


def test_own_names_of_disambiguation_templates():
    assert not lists_meanings("{{Mehrdeutig|x}}")
    assert lists_meanings("{{Mehrdeutig|x}}", frozenset({"mehrdeutig"}))
    assert not lists_meanings("{{disambiguation needed|date=x}} and {{disambiguated}}")
    assert names_meanings("Merkur (Begriffsklärung)")
    assert not names_meanings("Mercury (planet)")


@pytest.mark.parametrize(
    "text",
    ["It is a sentence.", "東京は日本の首都である。", "北京是中华人民共和国的首都。", "서울은 대한민국의 수도이자 가장 큰 도시이다.", "هل هو قديم جدا في التاريخ؟",
     "यह एक बहुत अच्छा वाक्य है।", (
         "กรุงเทพมหานครเป็นเมืองหลวงและนครที่มีประชากรมากที่สุดของประเทศไทย"
     ), "Он сказал: «Это правда очень хорошо».", "「これは文の終わりである。」"],
)  # fmt: skip
def test_prose_in_any_script(text):
    assert reads_as_prose(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A list",
        "One two three",
        "東京都",
        "東京、大阪、京都、名古屋、福岡",
        "no end of the sentence here",
        "กรุงเทพ",
        "1. 2. 3.",
    ],
)
def test_no_prose_in_any_script(text):
    assert not reads_as_prose(text)


# Running text whose lines end in no mark, with blanks between clauses, and what stands behind it: a
# list, a table, a template.
UNMARKED = {
    "th": (
        "'''เชียงใหม่'''เป็น[[จังหวัด]]ทางภาคเหนือ ก่อตั้งใน พ.ศ. 1839 มีประชากร 1.7 ล้านคน "
        "และมีวัดเก่าแก่มากมายในเขตเมือง",
        "เมืองนี้ตั้งอยู่ริมแม่น้ำปิง ห่างจากกรุงเทพฯ 700 กิโลเมตร",
    ),
    "lo": (
        "'''ວຽງຈັນ'''ແມ່ນນະຄອນຫຼວງຂອງປະເທດລາວ ຕັ້ງຢູ່ແຄມແມ່ນ້ຳຂອງ ມີປະຊາກອນ 800 ພັນຄົນ ແລະ ມີວັດເກົ່າແກ່ຫຼາຍແຫ່ງ",
        "ນະຄອນນີ້ເປັນສູນກາງເສດຖະກິດ ແລະ ວັດທະນະທຳຂອງປະເທດ",
    ),
    "km": (
        "'''ភ្នំពេញ'''ជារាជធានីនៃប្រទេសកម្ពុជា ស្ថិតនៅតាមដងទន្លេមេគង្គ មានប្រជាជន 2 លាននាក់ និងមានវត្តចាស់ៗជាច្រើន",
        "ទីក្រុងនេះជាមជ្ឈមណ្ឌលសេដ្ឋកិច្ច និងវប្បធម៌នៃប្រទេស",
    ),
    "my": (
        "'''ရန်ကုန်'''သည် မြန်မာနိုင်ငံ၏ အကြီးဆုံးမြို့ ဖြစ်သည်။ လူဦးရေ ၅ သန်းခန့် ရှိသည်။",
        "မြို့သည် မြစ်ဝတွင် တည်ရှိပြီး ဆိပ်ကမ်းကြီး ရှိသည်။",
    ),
    "bo": (
        "'''ལྷ་ས་'''ནི་བོད་ཀྱི་རྒྱལ་ས་ཡིན། དེ་ནི་གྲོང་ཁྱེར་ཆེན་པོ་ཞིག་རེད། མི་གྲངས་ 500 སྟོང་ཡོད།",
        "གྲོང་ཁྱེར་འདི་གཙང་པོའི་འགྲམ་དུ་ཡོད། དགོན་པ་མང་པོ་ཡོད།",
    ),
}


@pytest.mark.parametrize("language", UNMARKED)
def test_scripts_that_leave_ends_of_sentences_unmarked_keep_their_paragraphs(tmp_path, language):
    first, second = UNMARKED[language]
    text = (
        f"{first}\n\n* ก\n* ข\n\n== {first[3:9]} ==\n{second}\n{{| class=wikitable\n| 1 || 2\n|}}\n"
        f"\n{second}{{{{unknown}}}}\n\n{second[:8]}\n"
    )
    path = tmp_path / "a.xml"
    path.write_text(dump(language, {}, [("A", text)]), encoding="utf-8")
    file_slice = reader.slices(str(path))[0]
    document = next(
        iter(reader.read(file_slice, options_of(reader), ReadCounters(slice=file_slice)))
    )
    kept = split(document.paragraphs, language)
    bare = first.replace("'''", "").replace("[[", "").replace("]]", "")
    assert " ".join(kept.texts) == " ".join([bare, second, second])
    assert kept.dropped == []


def test_sections_by_name(tmp_path):
    text = dump(
        "en",
        {},
        [
            (
                "A",
                "Lead text is here.\n== Life ==\nHe lived a life.\n=== Youth ===\nHe was young "
                "once.\n== Work ==\nHe worked a lot.\n== Notes ==\nA note is here.",
            )
        ],
    )
    path = tmp_path / "a.xml"
    path.write_text(text)
    file_slice = reader.slices(str(path))[0]

    def kept(**settings):
        return next(
            iter(
                reader.read(
                    file_slice, options_of(reader, **settings), ReadCounters(slice=file_slice)
                )
            )
        ).paragraphs

    assert kept(dropped_sections=frozenset({"notes", "life"})) == (
        "Lead text is here.",
        "He worked a lot.",
    )
    assert kept(kept_sections=frozenset({"life"})) == ("He lived a life.", "He was young once.")
    assert kept(kept_sections=frozenset({"", "youth"})) == (
        "Lead text is here.",
        "He was young once.",
    )
    assert kept(kept_sections=frozenset({"life"}), dropped_sections=frozenset({"youth"})) == (
        "He lived a life.",
    )


def test_variants_of_chinese():
    from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

    assert WikitextParser({}).extract(
        "这是一种-{zh-hans:软件; zh-hant:軟體;}-，它-{很}-有用，大家都用。"
    ).paragraphs == ["这是一种软件，它很有用，大家都用。"]
