"""Abbreviations before names and numbers, dates, ordinals and initials in many languages."""

from __future__ import annotations

import pytest

from cloze.pipeline.corpus.steps.sentences import split_paragraph

CASES = [
    ("ru", ["В 1950 г. Иванов уехал в Москву.", "Он родился в 1920 г.", "Потом он учился."]),
    ("ru", ["А. С. Пушкин родился в XVIII в.", "См. рис. 5 и т. д.", "В XIX в. Россия росла."]),
    ("ru", ["Цена 5 тыс. руб. за штуку.", "Это § 5."]),
    ("pl", ["W 1950 r. Kowalski wyjechał.", "Urodził się w 1920 r.", "Potem studiował."]),
    (
        "pl",
        ["Np. ul. Długa nr 5 jest pusta.", "W XIX w. Polska była podzielona.", "Zob. s. 5 itd."],
    ),
    (
        "cs",
        [
            "V roce 1950 n. l. přišel.",
            "Narozen 13. května 1920.",
            "Např. ing. Novák bydlí v ul. Dlouhá č. 5.",
            "Viz § 5 atd.",
        ],
    ),
    ("cs", ["Ve 20. století žil J. A. Komenský.", "Tj. v 19. stol. v Praze."]),
    (
        "sk",
        [
            "Napr. doc. Kováč býva na ul. Dlhá č. 5.",
            "V 20. storočí žil M. R. Štefánik.",
            "Pozri str. 7 a pod.",
        ],
    ),
    (
        "hu",
        [
            "Pl. dr. Kovács az 5. kerületben él.",
            "1950. május 13-án született.",
            "A 19. században élt.",
            "Lásd 5. §-t stb.",
        ],
    ),
    (
        "nl",
        [
            "Zie bijv. prof. Jansen op blz. 7 enz.",
            "Op 13 mei 1950 kwam mr. J. de Vries aan.",
            "Hij woont a.d. Rijn nr. 5.",
        ],
    ),
    (
        "sv",
        [
            "Se t.ex. prof. Berg på s. 7 m.m.",
            "Den 13. maj kom A. Lindgren.",
            "Bl.a. kung Karl XII dog.",
        ],
    ),
    (
        "da",
        [
            "Se f.eks. prof. Hansen på s. 7 osv.",
            "Den 13. maj kom H. C. Andersen.",
            "Bl.a. nr. 5 var rød.",
        ],
    ),
    (
        "no",
        [
            "Se f.eks. prof. Hansen på s. 7 osv.",
            "Den 13. mai kom H. Ibsen.",
            "Bl.a. nr. 5 var rød.",
        ],
    ),
    (
        "fi",
        [
            "Ks. esim. prof. Virtanen s. 7 jne.",
            "Hän syntyi 13. toukokuuta 1950.",
            "Mm. J. Sibelius asui siellä.",
        ],
    ),
    (
        "pt",
        [
            "Ver p. ex. o Dr. Silva na pág. 7 etc.",
            "Nasceu no séc. XIX em Lisboa.",
            "O art. 5 diz que não.",
            "No n.º 7 da Av. Central mora A. Costa.",
        ],
    ),
    (
        "es",
        [
            "Véase p. ej. el Dr. López en la pág. 7 etc.",
            "Nació en el s. XIX en Madrid.",
            "El art. 5 dice que no.",
            "En el núm. 7 vive J. L. Borges.",
            "EE. UU. ganó la guerra.",
        ],
    ),
    (
        "fr",
        [
            "Voir p. ex. le Dr. Petit à la p. 7, etc.",
            "Il naquit au XIXe s. à Paris.",
            "L'art. 5 dit non.",
            "J.-J. Rousseau et A. Dumas écrivaient.",
            "M. Dupont vint.",
        ],
    ),
    (
        "de",
        [
            "Er kam am 13. Mai 1950, z. B. mit Dr. Müller.",
            "D. h. Nr. 7 in § 5 Abs. 2 gilt usw.",
            "Das war im 19. Jahrhundert n. Chr. in Berlin.",
            "J. W. von Goethe schrieb.",
        ],
    ),
    (
        "el",
        [
            "Ο κ. Παπάς γεννήθηκε τον 19ο αι. μ.Χ. στην Αθήνα.",
            "Βλ. σελ. 7 κ.λπ.",
            "Π.χ. ο Δρ. Α. Νίκου ήρθε.",
        ],
    ),
    ("el", ["Το 480 π.Χ. Αθηναίοι νίκησαν."]),
    (
        "uk",
        [
            "У 1950 р. Іваненко поїхав.",
            "Народився в 1920 р.",
            "Потім він вчився.",
            "Див. рис. 5 і т. д.",
            "Т. Г. Шевченко писав.",
        ],
    ),
    (
        "bg",
        [
            "През 1950 г. Иванов замина.",
            "Роден е през 1920 г.",
            "После учи.",
            "Вж. стр. 5 и т. н.",
            "П. К. Яворов пише.",
        ],
    ),
    (
        "hr",
        [
            "Npr. dr. Horvat živi u ul. Duga br. 5.",
            "Rođen je 13. svibnja 1920. u Zagrebu.",
            "Vidi str. 7 itd.",
            "U 19. st. Hrvatska je rasla.",
        ],
    ),
    (
        "en",
        [
            "See No. 7 and Sec. 5 of the act.",
            "He met J. R. Smith, e.g. in vol. 3.",
            "It was in the 19th c. in Rome.",
        ],
    ),
    ("ca", ["Va néixer al s. XIX a Girona.", "El Sr. Puig va venir."]),
    (
        "ro",
        [
            "S-a născut în sec. XIX la Iași.",
            "Dl. Popescu a venit în 1950 d.Hr. la Roma.",
            "Vezi pag. 7 etc.",
        ],
    ),
    ("tr", ["M. Kemal 13 Mayıs'ta geldi.", "Prof. Dr. Yılmaz 5. katta oturuyor.", "Bkz. s. 7 vb."]),
    ("sr", ["Нпр. др. Петровић живи у ул. бр. 5.", "У 1950. г. Србија је расла."]),
    ("it", ["Visse nel sec. XIX a Roma.", "Nel sec. V Roma cresceva.", "G. Verdi scrisse opere."]),
]


@pytest.mark.parametrize(("language", "sentences"), CASES)
def test_abbreviations_end_no_sentence(language: str, sentences: list[str]) -> None:
    assert split_paragraph(" ".join(sentences), language) == sentences


@pytest.mark.parametrize(
    ("language", "paragraph"),
    [
        ("te", "ఆయన క. రాముడు పుట్టారు."), ("kn", "ಅವರು ಕ. ರಾಮ ಹುಟ್ಟಿದರು."),
        ("ml", "അവൻ ക. രാമൻ ജനിച്ചു."), ("si", "ඔහු ක. රාම උපන්නේය."), ("gu", "તેઓ ક. રામ જન્મ્યા."),
        ("pa", "ਉਹ ਕ. ਰਾਮ ਜੰਮਿਆ।"), ("or", "ସେ କ. ରାମ ଜନ୍ମିଲେ।"), ("hi", "वह क. राम थे।"),
        ("bn", "তিনি ক. রাম ছিলেন।"), ("ta", "அவர் க. ராமன் பிறந்தார்."), ("he", "הוא א. כהן נולד."),
        ("am", "እሱ ከ. ራማ ነው።"), ("ka", "ის კ. რამა იყო."), ("ar", "هو أ. محمد ولد هنا."),
        ("ru", "Это А. Пушкин пришёл."), ("el", "Ο Κ. Καβάφης ήρθε."), ("hy", "Նա Ա. Բակունցն էր։"),
    ],
)  # fmt: skip
def test_an_initial_of_each_script_ends_no_sentence(language: str, paragraph: str) -> None:
    assert split_paragraph(paragraph, language) == [paragraph]
