"""What templates say inside a sentence; those that nobody knows leave a hole, and those that say
nothing leave none.
"""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.document import HOLE_TEMPLATE as T
from cloze.pipeline.corpus.readers.encyclopedia.elements import without_quotes
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

MARKUP = WikitextParser({10: ["template"]})


def one(text, markup=MARKUP):
    (paragraph,) = markup.extract(f"Now {text} it is so.").paragraphs
    return paragraph.removeprefix("Now ").removesuffix(" it is so.")


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ((
            "hardware{{emdash}}still and (1984){{mdashb}}and 5{{endash}}6"
        ), "hardware—still and (1984)—and 5–6"),
        ((
            "{{currency|1000|GBP}}, {{currency|2.5e6}} and {{US$|1500}}"
        ), "£1,000, US$2.5 million and US$1,500"),
        ((
            "{{harvtxt|Boolos|Jeffrey|1974}} and {{harvnb|Boolos|1974|p=5}}"
        ), "Boolos & Jeffrey (1974) and Boolos 1974"),
        ("${{Format price|3160384}}", "$3,160,384"),
        ("the '''{{Audio|x.ogg|Yazoo}}''' river {{audio|x.ogg|listen}}", "the Yazoo river"),
        ("{{convert|4.5e6|km2|sqmi}}", "4.5 million km²"),
        ("{{convert|3|e6acre|km2}} and {{convert|2e3|km}}", "3 million acres and 2,000 km"),
        ("{{convert|10|xx|20|m}} or {{convert|10-15|km|mi}}", "10 × 20 m or 10–15 km"),
        ((
            "{{convert|10|to|1200|km|mi}} and {{convert|1|to(-)|2|ft}}"
        ), "10 to 1,200 km and 1 to 2 ft"),
        ("{{convert|2413|ft|0|abbr=on}} and {{convert|6|ft|2|in|cm|0}}", "2,413 ft and 6 ft 2 in"),
        ("{{convert|5+1/2|in|mm}} and {{convert|-40|F|C}}", "5 1/2 in and -40 °F"),
        ((
            "{{convert|5|by|10|m}} or {{convert|5|x|10|x|15.5|ft|m}}"
        ), "5 by 10 m or 5 × 10 × 15.5 ft"),
        ((
            "{{convert|5|,|10|and|1200|km}} or {{convert|5|, or|10|km}}"
        ), "5, 10 and 1,200 km or 5, or 10 km"),
        ((
            "{{convert|6|ft|2+1/2|in|to|6|ft|4|in|m}} and {{convert|3|st|7|lb|kg}}"
        ), "6 ft 2 1/2 in to 6 ft 4 in and 3 st 7 lb"),
        ("{{convert|-40|-|-20|C}} and {{convert|1|–|2|C-change}}", "-40 to -20 °C and 1–2 °C"),
        ("{{convert|5 x 10|m}} and {{convert|5 to 10|km}}", "5 × 10 m and 5 to 10 km"),
        ("{{convert|20|ST|t|0}} and {{convert|800|cuft/s}}", "20 short tons and 800 cu ft/s"),
        ("{{convert|10|no range|20|m}} or {{convert|12|km|mi|0}}", f"{T} or 12 km"),
        ((
            "{{formatnum:1234567.5}} and {{val|12345|0.5|e=6|u=m}}"
        ), "1,234,567.5 and 12,345 ± 0.5 × 10^6 m"),
        ((
            "{{as of|2012|June}} and {{as of|2012|6|5|lc=on}}"
        ), "As of June 2012 and as of 5 June 2012"),
        ("{{start date|2012|06|05|mf=yes}}", "June 5, 2012"),
        ("Ann Roe ({{née|Doe}}) of Acme ({{NYSE|ACM}})", "Ann Roe (née Doe) of Acme (NYSE: ACM)"),
        ((
            "{{lang|ja|日本}} and {{lang|ps|{{Nastaliq|ملي}}}} ({{lang-ru|мир}})"
        ), "日本 and ملي (Russian: мир)"),
        ((
            "'''{{nihongo|Ki|気|ki}}''' and X ({{zh|c=中|p=Zhōng}})"
        ), "Ki (気, ki) and X (Chinese: 中; pinyin: Zhōng)"),
        ("Arles ({{IPA-fr|aʁl}}, {{respell|ARL}}) {{IPAc-en|a|r|l}}", "Arles"),
        ((
            "the Unix {{tag|exec}} and {{tag|br|s}} of {{tl|convert}}"
        ), "the Unix <exec>...</exec> and <br /> of {{convert}}"),
        ("the <code>#include <stdio.h> <b>x</b></code> of C", "the #include <stdio.h> x of C"),
        ((
            "{{coord|30|12|N|74|7|W|name=x}} and{{coord|1|N|2|E|display=title}}"
        ), "30°12′N 74°7′W and"),
        ((
            "on {{RailGauge|1435mm}} track at {{pop density|1000|100|km2|sqmi}}"
        ), "on 1,435 mm track at 10/km²"),
        ((
            "2 × 10<sup>−7</sup> N, 5 km<sup>2</sup> and the 2<sup>nd</sup>"
        ), "2 × 10^−7 N, 5 km² and the 2nd"),
        ("press {{keypress|Ctrl|C}} in A{{Music|flat}}", "press Ctrl+C in A♭"),
    ],
)  # fmt: skip
def test_known_templates_say_their_words(wikitext, text):
    assert one(wikitext) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("a depth of {{depth of the lake}}, and", f"a depth of {T}, and"),
        ("${{Format price|{{inflation|US|5|2003}}}} of", f"${T} of"),
        ("for {{convert|x}} or", f"for {T} or"),
        ("use <source lang=c>x = 1</source> as", f"use {T} as"),
        ("in {{CURRENTYEAR}} as", f"in {T} as"),
    ],
)
def test_unknown_templates_leave_a_hole(wikitext, text):
    assert one(wikitext) == text


@pytest.mark.parametrize(
    ("wikitext", "paragraphs"),
    [
        ((
            "{{Unknown box\n| a = b\n}}'''Eden''' is a town by the sea."
        ), ["Eden is a town by the sea."]),
        ("{{unknown note}} Eden is a town by the sea.", ["Eden is a town by the sea."]),
        ((
            "Eden is a town.{{unknown ref|5}} It lies by the sea.{{unknown ref|6}}"
        ), ["Eden is a town. It lies by the sea."]),
        ((
            "Some people{{who|date=May 2010}} say it {{cn}} is{{strange doubt|date=May 2010}} so."
        ), ["Some people say it is so."]),
        ((
            "Eden {{flagicon|X}} is ({{flagicon|Y}}; {{unknown}}) by the sea."
        ), ["Eden is by the sea."]),
        ((
            "Eden is a town by the sea.\n{{unknown chart|1|2}}\nIt is old and small."
        ), ["Eden is a town by the sea.", "It is old and small."]),
        ((
            "It ends.<ref>x</ref>The next one begins. \"So it is.\" <ref/> \"And so.\""
        ), ['It ends. The next one begins. "So it is." "And so."']),
    ],
)  # fmt: skip
def test_what_stands_beside_a_sentence_leaves_none(wikitext, paragraphs):
    assert MARKUP.extract(wikitext).paragraphs == paragraphs


@pytest.mark.parametrize(
    ("language", "text"), [("en", "1,234,567"), ("de", "1.234.567"), ("fr", "1 234 567")]
)
def test_thousands_are_separated_as_the_language_does(language, text):
    assert one("{{formatnum:1234567}}", WikitextParser({}, language=language)) == text


@pytest.mark.parametrize(
    ("language", "wikitext", "text"),
    [
        ("en", "{{langx|de|Neuland}} and {{lang-en|net}}", "German: Neuland and English: net"),
        ("en", "{{IPA|de|ˈalbɛʁt|lang}} x", "x"),
        ("en", "the vowel {{IPA|/a/}}", "the vowel /a/"),
        ("en", "{{ill|Quitzow (Perleberg)|de|lt=Quitzow}} and {{ill|Herz|de}}", "Quitzow and Herz"),
        ("en", "{{Escyr|2022||2022 contest}} of {{nfly|2019}}", "2022 contest of 2019"),
        ("en", (
            "{{us patent|1781541}}, {{CO2}}, {{height|ft=6|in=6}}, {{var|{{serif|I}}}}"
        ), "U.S. Patent 1,781,541, CO2, 6 ft 6 in, I"),
        ("en", (
            "{{as of|2012|July|18|df=US}}{{update after|2024|11|text= it is so}}"
        ), "As of July 18, 2012it is so"),
        ("en", (
            "{{post-nominals|country=GBR|FRS|JP}} {{qi|all is well}}{{nbs}}here"
        ), "FRS JP all is well here"),
        ("fr", (
            "au {{s-|XIX|e}}, au {{s mini-|I}}, au {{-s-|V}} et {{s2-|XIX|e|XX|e}}, "
            "{{sp-|XVIII|-|XXI}}"
        ), (
            "au XIXe siècle, au Ier, au Ve siècle av. J.-C. et XIXe et XXe siècles, XVIIIe – XXIe "
            "siècle"
        )),
        ("fr", (
            "{{unité|1930|km|2}}, {{nombre|100000|ans}}, {{nb|4.11 millions}}, {{unité|100 à "
            "1000|m}}"
        ), "1 930 km², 100 000 ans, 4,11 millions, 100 à 1 000 m"),
        ("fr", (
            "{{23e|place}}, {{1er|mai}}, {{1ère}}, {{XXe}}, {{18e arrondissement de Paris}}"
        ), "23e place, 1er mai, 1re, XXe, 18e arrondissement de Paris"),
        ("fr", (
            "{{date|12 mai 1812|en France}}, {{date|22 mai 1925-}}, {{date de naissance|17 11 "
            "1994}}, {{date|1|2|2003}}"
        ), "12 mai 1812, 22 mai, 17 novembre 1994, 1 février 2003"),
        ("fr", (
            "{{Lien|langue=en|trad=Todd May|fr=Todd May|texte=May}} et {{lien|Saul}}{{en}} "
            "{{numéro|3}}, {{p.|5}}"
        ), "May et Saul no 3, p. 5"),
        ("fr", (
            "{{heure|21|30}} à {{heure|9}}, {{grec ancien|ἄν-|án}} {{incise|vraiment}} "
            "{{langue|co|Calvi}}"
        ), "21 h 30 à 9 h, ἄν- / án — vraiment — Calvi"),
        ("fr", (
            "Il est là<ref>A</ref>{{,}}<ref>B</ref> et ici {{ouvrage|titre=X|année=2000}}."
        ), "Il est là et ici."),
        ("pt", (
            "{{fmtn|92090|km²}} no {{séc|XII}}, {{AC|5500|x}}, {{formatnum:4000}}"
        ), "92 090 km² no século XII, 5 500 a.C., 4 000"),
        ("es", (
            "el {{siglo|XIX||s}}, el siglo {{siglo|VII|a}}, {{formatnum:4000}}, {{unidad|5|km|2}}"
        ), "el siglo XIX, el siglo VII a. C., 4000, 5 km²"),
        ("de", (
            "{{Bruch|9|3|4}} von {{mtS|Malta}}, {{Person|Adolpho Ducke}}{{Zukunft|2029}}"
        ), "9 3/4 von maltesisch Malta, Adolpho Ducke"),
        ("es", "Grecia ({{AFI2|eˈlaða|x.ogg}}; n. 1830) es", "Grecia (n. 1830) es"),
        ("bg", "Той е тук.{{hrf|Гречко|1982|}} И там{{ref-en}}.", "Той е тук. И там."),
        ("it", "{{Calcio Napoli|N}} e {{Calcio Inter|N}}", "Napoli e Inter"),
        ("ru", (
            "{{нп5|Мельник|мельнику|en|Miller}}, {{нп1|Мельник}} и {{число|12500}}"
        ), "мельнику, Мельник и 12 500"),
    ],
)  # fmt: skip
def test_what_templates_say_in_their_wikis(language, wikitext, text):
    assert one(wikitext, WikitextParser({}, language=language)) == text


@pytest.mark.parametrize(
    ("language", "wikitext", "text"),
    [
        ("bn", "এটি {{রূপান্তর|200|mm|in|0|abbr=on}} লম্বা", "এটি 200 mm লম্বা"),
        (
            "ro",
            "între {{conversie|22|–|25|C|F}} și {{conversie|10|ha|acre}}",
            "între 22–25 °C și 10 ha",
        ),
        ("vi", "từ {{convert|25|đến|30|C|F}}", "từ 25 đến 30 °C"),
        ("ar", "({{ألمانية|Berlin}})", "(بالألمانية: Berlin)"),
        ("ca", "al {{segle|XIII|s}}", "al segle XIII"),
        ("it", "di {{TA|158 221}} o {{M|4|k|B}}{{citazione necessaria}}", "di 158 221 o 4 kB"),
        ("ja", "数学（{{en|computation}}、{{lang|en|maths}}）", "数学（computation、maths）"),
        ("ja", "{{仮リンク|国民戦線|en|National Front}}{{要出典|date=2020年1月}}が", "国民戦線が"),
        (
            "uk",
            "{{lang-grc2|γεια}}, {{нп|Опера|опері||Opera}}, {{ДН|27|1|1839|15}}{{коли}}",
            "γεια, опері, 15 (27) січня 1839",
        ),
        ("ru", "он{{нет АИ|1|2|2020}} и {{iw|Мельник|мельнику|en|Miller}}", "он и мельнику"),
        ("zh", "{{tsl|en|George|喬治}}和{{link-en|甲|A}}{{来源请求}}", "喬治和甲"),
        ("th", "{{flagicon|Turkey}} ตุรกี{{ต้องการอ้างอิง}}", "ตุรกี"),
        ("mr", "हे{{संदर्भ हवा}} {{ध्वजचिन्ह|भारत}} आहे", "हे आहे"),
        ("fr", "de {{nombre|63|milliards}} à {{tmp|2|°C}}", "de 63 milliards à 2 °C"),
        ("fi", "oli{{lähde}} {{IPA|ˈfi}} tässä", "oli ˈfi tässä"),
    ],
)
def test_templates_of_many_languages(language, wikitext, text):
    assert one(wikitext, WikitextParser({}, language=language)) == text


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("the {{strange emphasis|very old}} town", "the very old town"),
        (
            "the {{quux|el|μαθηματικὴ}} and {{xyzzy|Mariscal|en|Marshal}}",
            "the μαθηματικὴ and Mariscal",
        ),
        (
            "on {{some day|17|January|1709}} with {{some unit|4|km}} and {{price|300}}",
            f"on 17 January 1709 with 4 km and {T}",
        ),
        ("a word{{strange note}} and {{§§}} more", "a word and more"),
        (
            "about {{population of|Eden}} and {{some file|x.ogg}} or {{strange|a|b}}",
            f"about {T} and {T} or {T}",
        ),
        ("won by {{GER}} in", f"won by {T} in"),
    ],
)
def test_the_shape_of_unknown_templates_decides(wikitext, text):
    assert one(wikitext) == text


def test_no_name_has_two_rules():
    from cloze.pipeline.corpus.readers.encyclopedia import templates

    section, names, seen = "", [], set()
    for line in templates._DATA.read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            section = line
        elif line and not line.startswith("#"):
            listed, arrow, pattern = line.partition(" => ")
            names += [name.strip() for name in listed.split(" | ")]
            if arrow:
                assert all(name == name.lower() and "_" not in name for name in names)
                assert seen.isdisjoint((section, name) for name in names), names
                assert len(set(names)) == len(names), names
                seen |= {(section, name) for name in names}
                templates._compile(pattern, "en")
                names = []
    assert not names
    assert len(seen) > 1000


def test_lists_in_columns_are_lists():
    wikitext = (
        "La ville est distante de :\n{{colonnes|nombre=4|1=\n* {{unité|13|km}} de Calenzana ;\n* "
        "{{unité|24|km}} de L'Île.\n}}"
    )
    assert WikitextParser({}, language="fr").extract(wikitext).paragraphs == [
        "La ville est distante de: 13 km de Calenzana; 24 km de L'Île."
    ]


def test_a_quotation_brings_its_translation():
    wikitext = (
        "{{Zitat-en|Text=The mill stands still.|Sprache=en|Übersetzung=Die Mühle steht still.}}"
    )
    assert WikitextParser({}, language="de").extract(wikitext).paragraphs == [
        "The mill stands still.",
        "Die Mühle steht still.",
    ]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("dans l'''Encyclopédie'' et ''Avenir''", "dans l'Encyclopédie et Avenir"),
        ("''Eagle'''s mate", "Eagle's mate"),
        ("'''Eagle'''s mate, '''Hawk''' and ''owl''", "Eagles mate, Hawk and owl"),
        ("'''''both''''' and ''''quoted''''", "both and 'quoted'"),
        ("''one'' '''two", "one two"),
    ],
)
def test_apostrophes_stay_and_marks_of_italics_go(wikitext, text):
    assert without_quotes(wikitext) == text
