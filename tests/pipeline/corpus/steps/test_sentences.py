"""Sentences: nothing is lost between them, and the cases that mattered, by language."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.pipeline.corpus.document import PLACEHOLDER
from cloze.pipeline.corpus.steps.sentences import split, split_paragraph
from tests.growth import is_linear

LONG_SPEECH = (
    '"I am the one who did it, and I shall do it again one day. He is gone now. We are sad," she '
    "said. Then he left."
)


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        (
            "Mr. Smith met Dr. J. R. R. Tolkien. They spoke.",
            ["Mr. Smith met Dr. J. R. R. Tolkien.", "They spoke."],
        ),
        (
            "It cost 3.14 e.g. in Fig. 2. See eq. (3).",
            ["It cost 3.14 e.g. in Fig. 2.", "See eq. (3)."],
        ),
        ("Vol. 2 has approx. 5 km. Then it ends.", ["Vol. 2 has approx. 5 km.", "Then it ends."]),
        ("Use torch.nn.Linear here. It works.", ["Use torch.nn.Linear here.", "It works."]),
        (
            '"Are you sure?" he said. "Yes." She left.',
            ['"Are you sure?" he said.', '"Yes."', "She left."],
        ),
        (
            "They wouldn't go. Is it? I can't say. Don't.",
            ["They wouldn't go.", "Is it?", "I can't say.", "Don't."],
        ),
        (
            LONG_SPEECH,
            [LONG_SPEECH[:58], "He is gone now.", 'We are sad," she said.', "Then he left."],
        ),
        (
            "He waited ... and waited. The U.S. Army came.",
            ["He waited ... and waited.", "The U.S. Army came."],
        ),
        (
            "Gen. Lee met Col. Mustard at St. John. It rained.",
            ["Gen. Lee met Col. Mustard at St. John.", "It rained."],
        ),
        (
            "At 5 p.m. Tuesday he left. It was No. 5 of nine.",
            ["At 5 p.m. Tuesday he left.", "It was No. 5 of nine."],
        ),
        (
            "Visit www.example.com. Use Node.js today.",
            ["Visit www.example.com.", "Use Node.js today."],
        ),
    ],
)
def test_cases(paragraph, expected):
    assert split_paragraph(paragraph) == expected


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("1. Open the lid.", ["1. Open the lid."]),
        ("IV. The Return of the Miller", ["IV. The Return of the Miller"]),
        ("a) Take the key. b) Turn it.", ["a) Take the key.", "b) Turn it."]),
        ("1. First item. 2. Second item.", ["1. First item.", "2. Second item."]),
        ("(a) One is. (b) Two is.", ["(a) One is.", "(b) Two is."]),
        ("• Bullet one. • Bullet two.", ["• Bullet one.", "• Bullet two."]),
        ("The Beginning of the End", ["The Beginning of the End"]),
        ("WHAT IS TO BE DONE?", ["WHAT IS TO BE DONE?"]),
        ("It was 5. Then it was 6.", ["It was 5.", "Then it was 6."]),
    ],
)
def test_headings_and_lists(paragraph, expected):
    assert split_paragraph(paragraph) == expected


LANGUAGES = [
    ("de", ["Er kam am 3. Oktober 1990 nach Berlin.", "Dr. Müller, geb. 1950, wohnt in der Str. 5.",
    "Das ist z. B. wichtig, d. h. notwendig."]),
    ("de", ["„Wo bist du?“, fragte sie.", "„Ich bin hier.“", "Dann ging er."]),
    ("de", ["Das 19. Jahrhundert war lang.", "Im 2. Weltkrieg fiel er.", "Er war 19.",
    "Dann ging er."]),
    ("de", ["Friedrich II. starb 1250.", "Abb. 3 zeigt ca. 50 km.", "Es kostete 5 Mio. Euro."]),
    ("fr", ["M. Dupont est arrivé à 8 h.", "Il a vu Mme. Martin et le Dr. Petit.",
    "L'art. 5 dit non."]),
    ("fr", ["« Où es-tu ? » demanda-t-elle.", "« Je suis ici. »", "Puis il partit.", "Que faire ?",
    "Rien !"]),
    ("es", ["El Sr. García llegó a las 8.", "La Dra. López, EE. UU., lo vio.", "¿Dónde estás?",
    "¡Aquí estoy!"]),
    ("es", ["«¿Qué haces?», preguntó.", "«Nada.»", "Véase la pág. 5 y el vol. 2.",
    "Hay aprox. 50 km de camino."]),
    ("it", ["Il sig. Rossi arrivò alle 8.", "La dott.ssa Bianchi lo vide.", "Cfr. pag. 5.",
    "E poi?", "Niente."]),
    ("pt", ["O Sr. Silva chegou.", "A Dra. Lopes, av. Paulista, viu.", "E agora?", "Nada."]),
    ("nl", ["Dhr. Jansen kwam om acht uur.", "Dat is o.a. belangrijk, d.w.z. nodig.", "En nu?"]),
    ("pl", ["Ur. w 1990 r. w Warszawie.", "Prof. Kowalski m.in. pisał.", "Dr hab. Nowak był tam."]),
    ("ru", ["Он родился в 1990 г. в Москве.", "См. стр. 5.", "А. С. Пушкин писал.",
    "Ул. Ленина пуста."]),
    ("ru", ["«Где ты?» — спросила она.", "Он ушёл."]),
    ("ar", ["ذهب الولد إلى المدرسة.", "هل أكل؟", "نعم!", "قال: «أنا هنا.»", "ثم ذهب.",
    "ولد د. أحمد في القاهرة."]),
    ("hi", ["यह शहर है।", "वह वहाँ है।", "क्या?"]),
    ("el", ["Πού είσαι;", "Εδώ είμαι.", "Τέλος."]),
    ("ur", ["یہ شہر ہے۔", "وہ وہاں ہے۔"]),
    ("hy", ["Սա քաղաք է։", "Նա այնտեղ է։"]),
]  # fmt: skip


@pytest.mark.parametrize(("language", "sentences"), LANGUAGES)
def test_languages(language, sentences):
    assert split_paragraph(" ".join(sentences), language) == sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        (
            "ja",
            [
                "今日は天気がいい。",
                "明日は雨だろう！",
                "本当ですか？",
                "はい。",
                "「行くの？」と彼は聞いた。",
                "「うん。」",
                "彼は去った。",
            ],
        ),
        ("ja", ["彼は１９９０年（平成２年。）に生まれた。", "東京都出身。"]),
        (
            "zh",
            ["今天天气很好。", "明天会下雨吗？", "不会！", "他说：“我去。你呢？”", "她没有回答。"],
        ),
    ],
)
def test_no_blank_is_needed_in_chinese_and_japanese(language, sentences):
    assert split_paragraph("".join(sentences), language) == sentences


# Own sentences; the space between them is that of the script.
SCRIPTS = [
    ("hi", ["डॉ. शर्मा ने ५ कि.मी. की यात्रा की।", "वे ई.पू. ३०० के बारे में बोले।",
    "क्या वे आए?"]),
    ("bn", ["ড. রহমান ৫ কি.মি. হেঁটেছেন।", "তিনি ক্লান্ত।"]),
    ("mr", ["डॉ. जोशी पुण्यात राहतात.", "त्यांचे घर मोठे आहे.", "कि.मी. हे अंतराचे एकक आहे."]),
    ("ta", ["டாக்டர் எம்.ஜி. ராமன் கி.பி. 1950 இல் பிறந்தார்.", "அவர் ஆசிரியர்."]),
    ("te", ["డా. రావు క్రీ.శ. 1950 లో జన్మించారు.", "ఆయన రచయిత."]),
    ("ml", ["ഡോ. മേനോൻ കി.മീ. കണക്കിന് നടന്നു.", "അദ്ദേഹം ക്ഷീണിതനായി."]),
    ("km", ["ភ្នំពេញជារាជធានីនៃប្រទេសកម្ពុជា។", "ទីក្រុងនេះធំណាស់។", "តើអ្នកទៅទេ?"]),
    ("bo", ["ལྷ་ས་ནི་བོད་ཀྱི་རྒྱལ་ས་ཡིན།", "དེ་ནི་ཆེན་པོ་རེད།"]),
    ("my", ["ရန်ကုန်သည် မြို့ကြီးဖြစ်၍၊ လူများသည်။", "မန္တလေး၏ မြို့လည်း ကြီးသည်။"]),
    ("am", ["አዲስ አበባ ከተማ ናት።", "ዋና ከተማ ናት።"]),
    ("th", ["เขาเกิดใน ค.ศ. 1950 ที่ จ. เชียงใหม่ และ ดร. สมชาย เป็นครู"]),
    ("hy", ["Նա ծնվել է Մ․թ․ա․ 5-րդ դարում։", "Քաղաքը մեծ է։", "Ժամը 12։30 է։", "Ջուր...",
    "Եվ հաց:"]),
    ("ka", ["მდ. მტკვარი გადის ქალაქზე.", "ის დიდია!", "ძვ. წ. 300 წელს აშენდა.", "მერე დაინგრა."]),
    ("tr", ["Şehir M.Ö. Birinci yüzyılda kuruldu.", "Sonra M.S. 5. yüzyılda büyüdü.",
    "Prof. Yılmaz böyle dedi."]),
    ("he", ['מנכ"ל החברה גר בארה"ב ועובד בצה"ל.', 'חז"ל אמרו כך.', "המשפט הבא ארוך.",
    'יו"ר הכנסת דיבר.', 'ארה"ב גדולה.']),
    ("he", ["מנכ״ל החברה גר בארה״ב.", "חז״ל אמרו כך.",
    'הוא אמר: "אני בא לבקר אותך בבית שלך ביום ראשון בערב".', "היא חייכה."]),
    ("ru", ["Он сказал: ``Это правда, и все давно об этом знают.", "Никто не спорит''.",
    "Она ушла.", "В 1990 г. он уехал."]),
    ("fr", ["Il a dit : « Je ne viendrai pas demain, car je suis malade. »", "Puis il partit.",
    "« Chambre » est un mot.", "1990 fut long."]),
    ("de", ["Es war ``schön.", "Alle kamen.''", "1990 zog er um.", "7 Tage blieb er.",
    "Sie wohnt bzw. Er wohnt dort."]),
    ("nl", ["Het was laat.", ",,Ik ga naar huis, want het is al donker en ik ben moe.",
    "Tot morgen.''", "Hij ging."]),
    ("ro", ["Nu avea nici un sens.", "Un om veni.", "(a) Era seara."]),
    ("ur", ["یہ شہر ہے۔", "۵ لوگ آئے۔", "کیا وہ آیا؟"]),
    ("fa", ["این شهر بزرگ است.", "آیا او آمد؟", "بله."]),
    ("vi", ["TP. Hà Nội lớn.", "Tôi đến."]),
    ("el", ["Ο κ. Παπάς ήρθε.", "Πού είναι;", "Εδώ."]),
    ("cs", ["Přišel 3. května 1990.", "Dr. Novák odešel."]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("language", "sentences"), SCRIPTS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_scripts(language, sentences):
    assert split_paragraph(" ".join(sentences), language) == sentences


@pytest.mark.parametrize(
    ("language", "sentences"),
    [
        ("zh", ["他生于北京。", "1990年他去了上海。", "IBM公司成立于1911年。", "a 也是字母。"]),
        (
            "ja",
            [
                "彼は東京で生まれた。",
                "2011年に引っ越した。",
                "本当に楽しい!",
                "また行きたい?",
                "「けいおん!」の曲だ。",
                "終わり。",
            ],
        ),
        ("km", ["ភ្នំពេញជារាជធានី។", "ទីក្រុងនេះធំ។", "2011 ជាឆ្នាំ។"]),
        ("hi", ["यह शहर है।", "1950 में बना।"]),
    ],
)
def test_no_blank_is_needed_before_a_number(language, sentences):
    assert split_paragraph("".join(sentences), language) == sentences


@pytest.mark.parametrize("language", ["en", "de", "ru", "he", "hi", "xx"])
@pytest.mark.parametrize("mark", ['"', "“", "„", "«", "‘", "``", "''", "(", "<"])
def test_what_is_never_closed_swallows_no_sentences(language, mark):
    sentences = [f"{mark}He begins to speak of it.", "Then he is silent.", "Nobody answers him."]
    assert split_paragraph(" ".join(sentences), language) == sentences


@pytest.mark.parametrize(("words", "is_short"), [(6, True), (60, False)])
def test_no_sentence_ends_in_a_short_bracket(words, is_short):
    inner = "Es war spät! Sehr" + " sehr" * words
    found = split_paragraph(f"Er kam ({inner}) nach Hause. Dann schlief er.", "de")
    assert (found[0] == "Er kam (Es war spät!") == (not is_short)
    assert found[-1] == "Dann schlief er."


def test_letters_in_other_scripts_change_nothing():
    """Decomposed accents split as composed ones do."""
    text = "L’été était là. Où es-tu allé ? À l’école. Édouard est né. Cfr. p.ex. ça."
    decomposed = unicodedata.normalize("NFD", text)
    expected = split_paragraph(text, "fr")
    assert [
        unicodedata.normalize("NFC", one) for one in split_paragraph(decomposed, "fr")
    ] == expected
    assert len(expected) == 5


@pytest.mark.parametrize("language", ["xx", "tlh", "zxx", "auto", "pcm", "haw"])
def test_unknown_languages_are_split_all_the_same(language):
    assert split_paragraph("Foo bar. Baz qux? Yes! 这是。那是。", language) == [
        "Foo bar.",
        "Baz qux?",
        "Yes!",
        "这是。",
        "那是。",
    ]


@pytest.mark.parametrize(
    ("unit", "units", "language", "is_sentence"),
    [
        ("中。", 50_000, "zh", True),
        ("“Abc. ", 25_000, "en", None),
        ("x' 'y ", 25_000, "en", None),
        ("x", 500_000, "en", False),
        ("19. Abc ", 25_000, "de", None),
        ("He went away. ", 25_000, "en", True),
        ('. " ', 15_000, "fr", None),
        ("a. (", 15_000, "de", None),
        ('a" ', 15_000, "he", None),
        ("«A.» ", 10_000, "ru", None),
        ("क. ", 15_000, "hi", None),
    ],
)
def test_long_paragraphs_take_linear_time(unit, units, language, is_sentence):
    def work(count):
        text = unit * count
        sentences = split_paragraph(text, language)
        assert "".join("".join(sentences).split()) == "".join(text.split())
        assert is_sentence is None or len(sentences) == (count if is_sentence else 1)

    assert is_linear(work, units)


def test_thai_paragraphs_are_sentences():
    assert split_paragraph("นี่คือเมือง เขาอยู่ที่นั่น", "th") == ["นี่คือเมือง เขาอยู่ที่นั่น"]


def test_text_without_case_is_split_at_its_marks():
    assert split_paragraph("DAS IST GUT. DAS AUCH.", "de") == ["DAS IST GUT.", "DAS AUCH."]


TEXT = st.lists(
    st.sampled_from(
        [
            "a",
            "Bc",
            "e.g.",
            "3.5",
            "No.",
            "19.",
            "d.",
            "M.",
            '"',
            "'",
            "don't",
            ".",
            "?",
            "“",
            "”",
            "‘",
            "’",
            "(",
            ")",
            "\xa0",
            "é",
            "。",
            "」",
        ]
    )
)


@pytest.mark.parametrize("language", ["en", "de", "fr", "ja", "he", "hy", "el", "xx"])
@given(paragraph=TEXT.map(" ".join) | TEXT.map("".join) | st.text())
def test_only_white_space_is_lost(language, paragraph):
    sentences = split_paragraph(paragraph, language)
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)


def test_paragraphs_and_holes():
    found = split(
        [
            "One is. Two is.",
            f"Here {PLACEHOLDER} is a hole.",
            f"Whole. A {PLACEHOLDER} again.",
            "Last one.",
        ]
    )
    assert found.texts == ["One is.", "Two is.", "Whole.", "Last one."]
    assert found.paragraphs == [0, 2, 3]
    assert len(found.dropped) == 2
    assert found.dropped == [f"Here {PLACEHOLDER} is a hole.", f"A {PLACEHOLDER} again."]
