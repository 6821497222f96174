"""Sentences: nothing is lost between them, and the cases that mattered, by language."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.corpus.document import HOLE
from pipeline.corpus.steps.sentences import split, split_paragraph

LONG_SPEECH = '"I am the one who did it, and I shall do it again one day. He is gone now. We are sad," she said. Then he left.'


@pytest.mark.parametrize(
    ("paragraph", "expected"),
    [
        ("Mr. Smith met Dr. J. R. R. Tolkien. They spoke.", ["Mr. Smith met Dr. J. R. R. Tolkien.", "They spoke."]),
        ("It cost 3.14 e.g. in Fig. 2. See eq. (3).", ["It cost 3.14 e.g. in Fig. 2.", "See eq. (3)."]),
        ("Vol. 2 has approx. 5 km. Then it ends.", ["Vol. 2 has approx. 5 km.", "Then it ends."]),
        ("Use torch.nn.Linear here. It works.", ["Use torch.nn.Linear here.", "It works."]),
        ('"Are you sure?" he said. "Yes." She left.', ['"Are you sure?" he said.', '"Yes."', "She left."]),
        ("They wouldn't go. Is it? I can't say. Don't.", ["They wouldn't go.", "Is it?", "I can't say.", "Don't."]),
        (LONG_SPEECH, [LONG_SPEECH[:58], "He is gone now.", 'We are sad," she said.', "Then he left."]),
        ("He waited ... and waited. The U.S. Army came.", ["He waited ... and waited.", "The U.S. Army came."]),
        ("Gen. Lee met Col. Mustard at St. John. It rained.", ["Gen. Lee met Col. Mustard at St. John.", "It rained."]),
        ("At 5 p.m. Tuesday he left. It was No. 5 of nine.", ["At 5 p.m. Tuesday he left.", "It was No. 5 of nine."]),
        ("Visit www.example.com. Use Node.js today.", ["Visit www.example.com.", "Use Node.js today."]),
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
    ("de", ["Er kam am 3. Oktober 1990 nach Berlin.", "Dr. Müller, geb. 1950, wohnt in der Str. 5.", "Das ist z. B. wichtig, d. h. notwendig."]),
    ("de", ["„Wo bist du?“, fragte sie.", "„Ich bin hier.“", "Dann ging er."]),
    ("de", ["Das 19. Jahrhundert war lang.", "Im 2. Weltkrieg fiel er.", "Er war 19.", "Dann ging er."]),
    ("de", ["Friedrich II. starb 1250.", "Abb. 3 zeigt ca. 50 km.", "Es kostete 5 Mio. Euro."]),
    ("fr", ["M. Dupont est arrivé à 8 h.", "Il a vu Mme. Martin et le Dr. Petit.", "L'art. 5 dit non."]),
    ("fr", ["« Où es-tu ? » demanda-t-elle.", "« Je suis ici. »", "Puis il partit.", "Que faire ?", "Rien !"]),
    ("es", ["El Sr. García llegó a las 8.", "La Dra. López, EE. UU., lo vio.", "¿Dónde estás?", "¡Aquí estoy!"]),
    ("es", ["«¿Qué haces?», preguntó.", "«Nada.»", "Véase la pág. 5 y el vol. 2.", "Hay aprox. 50 km de camino."]),
    ("it", ["Il sig. Rossi arrivò alle 8.", "La dott.ssa Bianchi lo vide.", "Cfr. pag. 5.", "E poi?", "Niente."]),
    ("pt", ["O Sr. Silva chegou.", "A Dra. Lopes, av. Paulista, viu.", "E agora?", "Nada."]),
    ("nl", ["Dhr. Jansen kwam om acht uur.", "Dat is o.a. belangrijk, d.w.z. nodig.", "En nu?"]),
    ("pl", ["Ur. w 1990 r. w Warszawie.", "Prof. Kowalski m.in. pisał.", "Dr hab. Nowak był tam."]),
    ("ru", ["Он родился в 1990 г. в Москве.", "См. стр. 5.", "А. С. Пушкин писал.", "Ул. Ленина пуста."]),
    ("ru", ["«Где ты?» — спросила она.", "Он ушёл."]),
    ("ar", ["ذهب الولد إلى المدرسة.", "هل أكل؟", "نعم!", "قال: «أنا هنا.»", "ثم ذهب.", "ولد د. أحمد في القاهرة."]),
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
        ("zh", ["今天天气很好。", "明天会下雨吗？", "不会！", "他说：“我去。你呢？”", "她没有回答。"]),
    ],
)
def test_no_blank_is_needed_in_chinese_and_japanese(language, sentences):
    assert split_paragraph("".join(sentences), language) == sentences


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
    ("text", "language", "count"),
    [
        ("中。" * 100_000, "zh", 100_000),
        ("“Abc. " * 50_000, "en", None),
        ("x' 'y " * 50_000, "en", None),
        ("x" * 1_000_000, "en", 1),
        ("19. Abc " * 50_000, "de", None),
        ("He went away. " * 50_000, "en", 50_000),
    ],
)
def test_long_paragraphs_take_linear_time(text, language, count):
    begun = time.process_time()
    sentences = split_paragraph(text, language)
    assert time.process_time() - begun < 10  # a quadratic splitter takes minutes
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert count is None or len(sentences) == count


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


@pytest.mark.parametrize("language", ["en", "de", "fr", "ja", "xx"])
@given(paragraph=TEXT.map(" ".join) | TEXT.map("".join) | st.text())
def test_only_white_space_is_lost(language, paragraph):
    sentences = split_paragraph(paragraph, language)
    assert "".join("".join(sentences).split()) == "".join(paragraph.split())
    assert all(sentence == sentence.strip() and sentence for sentence in sentences)


def test_paragraphs_and_holes():
    found = split(["One is. Two is.", f"Here {HOLE} is a hole.", f"Whole. A {HOLE} again.", "Last one."])
    assert found.texts == ["One is.", "Two is.", "Whole.", "Last one."]
    assert found.paragraphs == [0, 2, 3]
    assert len(found.dropped) == 2
    assert found.dropped == [f"Here {HOLE} is a hole.", f"A {HOLE} again."]
