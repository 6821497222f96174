"""Templates of other wikis than the English whose words belong to the running text.

Only what stands inside sentences: quotations, units, centuries, foreign words. Whatever is not named here or in
pipeline/corpus/readers/wikipedia/templates.py is dropped, as it is for English.
"""

from __future__ import annotations

import re

from pipeline.corpus.readers.slots import SLOT
from pipeline.corpus.readers.wikipedia.languages import NAMES
from pipeline.corpus.readers.wikipedia.templates_base import (
    Arguments,
    Named,
    Rule,
    block,
    constant,
    first,
    last,
    lines,
    quoted,
    second,
    spaced,
)
from pipeline.corpus.readers.wikipedia.templates_french import FRENCH_RULES, ordinal
from pipeline.corpus.readers.wikipedia.templates_numbers import fraction, grouped

_GERMAN_LANGUAGES = {
    "en": "englisch", "fr": "französisch", "la": "lateinisch", "it": "italienisch", "es": "spanisch", "ru": "russisch", "grc": "altgriechisch",
    "el": "griechisch", "ar": "arabisch", "ja": "japanisch", "zh": "chinesisch", "nl": "niederländisch", "pl": "polnisch", "pt": "portugiesisch",
    "sv": "schwedisch", "da": "dänisch", "no": "norwegisch", "fi": "finnisch", "hu": "ungarisch", "cs": "tschechisch", "tr": "türkisch",
    "he": "hebräisch", "hbo": "hebräisch", "fa": "persisch", "uk": "ukrainisch", "ro": "rumänisch", "sr": "serbisch", "hr": "kroatisch", "ga": "irisch",
    "mt": "maltesisch", "sq": "albanisch", "bg": "bulgarisch", "mk": "mazedonisch", "sl": "slowenisch", "sk": "slowakisch", "is": "isländisch",
    "et": "estnisch", "lv": "lettisch", "lt": "litauisch", "be": "belarussisch", "ka": "georgisch", "hy": "armenisch", "az": "aserbaidschanisch",
    "hi": "Hindi", "ko": "koreanisch", "vi": "vietnamesisch", "th": "thailändisch", "id": "indonesisch", "ca": "katalanisch", "eu": "baskisch",
    "gl": "galicisch", "cy": "walisisch", "gd": "schottisch-gälisch", "rm": "rätoromanisch", "lb": "luxemburgisch", "af": "Afrikaans", "sa": "Sanskrit",
}  # fmt: skip
_EXPONENT = re.compile(r"-?\d+")
_INDICATED = frozenset(NAMES) | {"mul", "en"}  # {{en}} behind a French work: in which language it is
_GERMAN_LANGUAGE = re.compile(r"([a-z]{2,3})s(?:-[a-z]+)?")


def _reading(arguments: Arguments, named: Named) -> str:
    """`{{読み仮名|東京|とうきょう}}` says 東京（とうきょう）."""
    if not arguments:
        return ""
    readings = [argument for argument in arguments[1:2] if argument]
    return f"{arguments[0]}（{readings[0]}）" if readings else arguments[0]


def _spanish_century(arguments: Arguments, named: Named) -> str:
    """`{{siglo|XIX||s}}` says `siglo XIX`, `{{siglo|VII|a}}` `VII a. C.`: the word is asked for."""
    number = first(arguments, named)
    word = arguments[2] if len(arguments) > 2 else ""
    before = {"s": "siglo ", "S": "Siglo "}.get(word[:1], "")
    return f"{before}{number}{' a. C.' if 'a' in arguments[1:2] else ''}" if number else ""


def _portuguese_century(arguments: Arguments, named: Named) -> str:
    number = first(arguments, named)
    return f"século {number}{' a.C.' if 'a.C.' in arguments[1:] or 'AC' in arguments[1:] else ''}" if number else ""


def _portuguese_number(arguments: Arguments, named: Named) -> str:
    """`{{fmtn|92090|km²}}` says `92 090 km²`."""
    return " ".join([grouped(arguments[0], "pt"), *filter(None, arguments[1:2])]) if arguments else ""


def _not_translated(arguments: Arguments, named: Named) -> str:
    """`{{нп5|Мельник|мельнику|en|Miller}}` says `мельнику`."""
    return first(arguments[1:2], named) or first(arguments, named)


def _era(sign: str) -> Rule:
    return lambda arguments, named: f"{grouped(arguments[0], 'pt')} {sign}" if arguments else sign


def _or_itself(name: str) -> Rule:
    """Superscript letters after a number: `XIX{{e}}`."""
    return lambda arguments, named: first(arguments, named) or name


_FIRST = """
    nobr|nowrap|nw|unteilbar|petit|grand|référence nécessaire|référence souhaitée|terme défini|
    person|esd|cita requerida|citarequerida|cr|esc|senza riferimento|chiarire|abbr|abréviation|fakt|dopracować|
    nobreak|нет ац|comment|подсказка|
    仮リンク|ill2|日本語版にない記事リンク|le|link-en|要出典範囲|読み|ルビ|ruby|補助漢字フォント|拡張漢字|fontbold|
    رابط لغة بديل مصطلح|وصلة إنترويكي|بحاجة لمصدر|
    출처 필요|tsl|internal link helper|link-ja|link-fr|feit|tooltip|klein|groß|sperrschrift
"""
LOCAL_RULES: dict[str, Rule] = {
    **dict.fromkeys((name.strip() for name in _FIRST.replace("\n", "").split("|")), first),
    # German
    '"': quoted("„", "“"),
    **dict.fromkeys(["zitat", "zitat-de", "zitat-en", "zitat-fr", "zitat-la", "zitat-it"], block),
    **dict.fromkeys(["bruch"], fraction),
    **dict.fromkeys(["anker", "zukunft"], constant("")),
    **dict.fromkeys(["höhe"], lambda arguments, named: f"{arguments[0]} m" if arguments else ""),
    **dict.fromkeys(["bibel"], lambda arguments, named: f"{arguments[0]} {','.join(arguments[1:3])}" if arguments else ""),
    # French
    **FRENCH_RULES,
    **{name: _or_itself(name) for name in ("e", "er", "re", "ème")},
    # In all of them
    **dict.fromkeys(
        ["colonnes", "colonne", "columns-list", "columns list", "col-list", "col list", "mehrspaltige liste", "columnas", "lista de colunas"],
        lines,
    ),
    # Spanish, Italian, Portuguese
    **dict.fromkeys(["siglo"], _spanish_century),
    **dict.fromkeys(["cita larga", "citazione", "quote box", "cytat", "citaat"], block),
    **dict.fromkeys(["fmtn", "formatar número"], _portuguese_number),
    **dict.fromkeys(["séc", "séculos"], _portuguese_century),
    "unidad": lambda arguments, named: " ".join(word for place, word in enumerate(arguments) if word and (not place or not _EXPONENT.fullmatch(word))),
    **dict.fromkeys(["fecha", "data", "dni"], spaced),
    **dict.fromkeys(["dic"], first),
    # Russian, Polish, Dutch
    **dict.fromkeys(["iw", "j", "jęz", "язык"], last),
    **dict.fromkeys(["кавычки", "цитата"], quoted("«", "»")),
    **dict.fromkeys(["нп", *(f"нп{number}" for number in "12345"), "не переведено", *(f"не переведено {number}" for number in "2345")], _not_translated),
    **dict.fromkeys(["num", "число"], lambda arguments, named: " ".join([grouped(arguments[0], "ru"), *filter(None, arguments[1:2])]) if arguments else ""),
    # Japanese, Chinese, Korean
    **dict.fromkeys(["読み仮名", "読み仮名 ruby不使用", "ruby-ja", "ふりがな"], _reading),
    **dict.fromkeys(["kor", "zy"], second),
    **dict.fromkeys(["small2", "large2"], second),
}  # fmt: skip


OWN_RULES: dict[str, dict[str, Rule]] = {"fr": FRENCH_RULES, "pt": {"ac": _era("a.C."), "dc": _era("d.C.")}}
"""Of a language's own wiki, before all others: names that mean something else there."""


def by_name(name: str, shown: str, text: str, language: str) -> str | None:
    """What a template says by its name alone; None for one that does not.

    Args:
        name: in lower case.
        shown: as it was typed.
        text: its first argument.
        language: of the wiki.
    """
    if language == "fr":
        return SLOT if not text and name in _INDICATED else ordinal(name, shown, text)
    if language == "it" and name.startswith("calcio "):  # a club
        return shown[len("calcio ") :]
    found = _GERMAN_LANGUAGE.fullmatch(name)
    spoken = _GERMAN_LANGUAGES.get(found[1]) if found else None
    return None if spoken is None else f"{spoken} {text}".strip()  # {{enS|Tower}} says `englisch Tower`
