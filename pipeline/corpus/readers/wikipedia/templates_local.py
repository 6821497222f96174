"""Templates of other wikis than the English whose words belong to the running text.

Only what stands inside sentences: quotations, units, centuries, foreign words. Whatever is not named here or in
pipeline/corpus/readers/wikipedia/templates.py is dropped, as it is for English.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Arguments = list[str]
Named = dict[str, str]
Rule = Callable[[Arguments, Named], str]

_GERMAN_LANGUAGES = {
    "en": "englisch", "fr": "französisch", "la": "lateinisch", "it": "italienisch", "es": "spanisch", "ru": "russisch", "grc": "altgriechisch",
    "el": "griechisch", "ar": "arabisch", "ja": "japanisch", "zh": "chinesisch", "nl": "niederländisch", "pl": "polnisch", "pt": "portugiesisch",
    "sv": "schwedisch", "da": "dänisch", "no": "norwegisch", "fi": "finnisch", "hu": "ungarisch", "cs": "tschechisch", "tr": "türkisch",
    "he": "hebräisch", "hbo": "hebräisch", "fa": "persisch", "uk": "ukrainisch", "ro": "rumänisch", "sr": "serbisch", "hr": "kroatisch", "ga": "irisch",
}  # fmt: skip
_ROMAN = re.compile("[IVXLCDM]+")
_GERMAN_LANGUAGE = re.compile(r"([a-z]{2,3})s(?:-[a-z]+)?")


def _first(arguments: Arguments, named: Named) -> str:
    return next((argument for argument in arguments if argument), "")


def _second(arguments: Arguments, named: Named) -> str:
    return arguments[1] if len(arguments) > 1 else _first(arguments, named)


def _last(arguments: Arguments, named: Named) -> str:
    return arguments[-1] if arguments else ""


def _spaced(arguments: Arguments, named: Named) -> str:
    return " ".join(argument for argument in arguments if argument)


def _quoted(opening: str, closing: str) -> Rule:
    def rule(arguments: Arguments, named: Named) -> str:
        text = named.get("text") or named.get("texte") or named.get("texto") or named.get("testo") or _first(arguments, named)
        return f"{opening}{text}{closing}" if text else ""

    return rule


def _block(arguments: Arguments, named: Named) -> str:
    text = next(
        (named[name] for name in ("text", "texte", "texto", "testo", "citation") if named.get(name)), _first(arguments, named)
    )
    return f"\n\n{text}\n\n"


def _century(ending: str, word: str = "siècle") -> Rule:
    """`{{s|XIX}}` says `XIXe siècle`; the variants with a minus say it of the time before Christ, or without the word."""

    def rule(arguments: Arguments, named: Named) -> str:
        number = _first(arguments, named)
        if not _ROMAN.fullmatch(number):  # in Russian, the same name keeps words on one line
            return number
        return f"{number}{'er' if number == 'I' else 'e'} {word}{ending}".strip()

    return rule


def _unit(arguments: Arguments, named: Named) -> str:
    """`{{unité|10|km|2}}`: the number, then units, powers left out."""
    if not arguments:
        return ""
    words = [arguments[0], *(word for word in arguments[1:] if word and not re.fullmatch(r"-?\d+", word))]
    return " ".join(words)


def _french_date(arguments: Arguments, named: Named) -> str:
    return " ".join(argument for argument in arguments[:3] if argument)


def _reading(arguments: Arguments, named: Named) -> str:
    """`{{読み仮名|東京|とうきょう}}` says 東京（とうきょう）."""
    if not arguments:
        return ""
    readings = [argument for argument in arguments[1:2] if argument]
    return f"{arguments[0]}（{readings[0]}）" if readings else arguments[0]


def _spanish_century(arguments: Arguments, named: Named) -> str:
    number = _first(arguments, named)
    before = " a. C." if "a" in arguments[1:2] else ""
    return f"siglo {number}{before}" if number else ""


def _or_itself(name: str) -> Rule:
    """Superscript letters after a number: `XIX{{e}}`."""
    return lambda arguments, named: _first(arguments, named) or name


def _constant(text: str) -> Rule:
    return lambda arguments, named: text


_FIRST = """
    nobr|nowrap|nw|unteilbar|lien|petit|grand|refnec|référence nécessaire|référence souhaitée|terme défini|incise|
    esd|cita requerida|citarequerida|cr|esc|senza riferimento|chiarire|abbr|abréviation|fakt|dopracować|
    nobreak|нет ац|нп1|нп2|нп3|нп4|нп5|не переведено|не переведено 2|не переведено 3|не переведено 4|не переведено 5|comment|подсказка|num|число|
    仮リンク|ill2|日本語版にない記事リンク|le|link-en|要出典範囲|読み|ルビ|ruby|補助漢字フォント|拡張漢字|fontbold|
    رابط لغة بديل مصطلح|وصلة إنترويكي|بحاجة لمصدر|
    출처 필요|tsl|internal link helper|link-ja|link-fr|feit|tooltip|klein|groß|sperrschrift
"""
LOCAL_RULES: dict[str, Rule] = {
    **dict.fromkeys((name.strip() for name in _FIRST.replace("\n", "").split("|")), _first),
    # German
    '"': _quoted("„", "“"),
    **dict.fromkeys(["zitat", "zitat-de", "zitat-en", "zitat-fr", "zitat-la", "zitat-it"], _block),
    **dict.fromkeys(["höhe"], lambda arguments, named: f"{arguments[0]} m" if arguments else ""),
    **dict.fromkeys(["bibel"], lambda arguments, named: f"{arguments[0]} {','.join(arguments[1:3])}" if arguments else ""),
    # French
    **dict.fromkeys(["s", "siècle", "s mini"], _century("")),
    **dict.fromkeys(["-s"], _century(" av. J.-C.")),
    **dict.fromkeys(["s-", "s2"], _century("", "")),
    **dict.fromkeys(["-s-"], _century(" av. J.-C.", "")),
    **dict.fromkeys(["citation", "citation étrangère", "guillemets", "cita"], _quoted("« ", " »")),
    **dict.fromkeys(["citation bloc", "bloc citation", "cita larga", "citazione", "quote box", "cytat", "citaat"], _block),
    **dict.fromkeys(["unité", "unite", "nb", "nombre", "unidad"], _unit),
    **dict.fromkeys(["date", "date-", "date de naissance", "date de naissance-", "date de décès", "date de décès-"], _french_date),
    **dict.fromkeys(["1er", "ier"], _constant("1er")),
    **dict.fromkeys(["ire", "1re"], _constant("1re")),
    **dict.fromkeys(["exp", "ind", "indice"], _first),
    **{name: _or_itself(name) for name in ("e", "er", "re", "ème")},
    **dict.fromkeys(["n°", "numéro"], _constant("no ")),
    **dict.fromkeys(["av jc", "av. j.-c.", "avjc", "jc"], _constant("av. J.-C.")),
    **dict.fromkeys(["ap jc", "ap. j.-c."], _constant("apr. J.-C.")),
    "mme": _constant("Mme"), "mlle": _constant("Mlle"), "mgr": _constant("Mgr"),
    # Spanish, Italian, Portuguese
    **dict.fromkeys(["siglo"], _spanish_century),
    **dict.fromkeys(["fecha", "data", "dni"], _spaced),
    **dict.fromkeys(["dic"], _first),
    # Russian, Polish, Dutch
    **dict.fromkeys(["iw", "j", "jęz", "язык"], _last),
    **dict.fromkeys(["кавычки", "цитата"], _quoted("«", "»")),
    # Japanese, Chinese, Korean
    **dict.fromkeys(["読み仮名", "読み仮名 ruby不使用", "ruby-ja", "ふりがな"], _reading),
    **dict.fromkeys(["kor", "zy"], _second),
    **dict.fromkeys(["small2", "large2"], _second),
}  # fmt: skip


def german_language(name: str, text: str) -> str | None:
    """`{{enS|Tower}}` says `englisch Tower`; None for a template that is none of these."""
    found = _GERMAN_LANGUAGE.fullmatch(name)
    language = _GERMAN_LANGUAGES.get(found[1]) if found else None
    return None if language is None else f"{language} {text}".strip()
