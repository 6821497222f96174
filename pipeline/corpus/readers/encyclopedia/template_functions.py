"""Template functions of words; other templates are data (encyclopedia/templates.txt).

A rule `!NAME` of the data is function NAME here or in template_numbers.py. A function gets
positional and named arguments as plain text and, for some rules, a text from the data. The results
were compared with MediaWiki's rendering (benchmarks/fidelity_templates.py).
"""

from __future__ import annotations

import re

from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia.elements import GAP, PHONES, escape_literals
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import (
    ENGLISH_NAMES,
    GERMAN_NAMES,
    read_list,
    read_names,
    read_table,
)
from cloze.pipeline.corpus.readers.encyclopedia.template_numbers import Arguments, Keywords


def first(arguments: Arguments) -> str:
    """Return the first non-empty argument."""
    return next((argument for argument in arguments if argument), "")


def labelled(code: str, text: str, keywords: Keywords) -> str:
    """Render `{{lang-fr|île}}` as `French: île`."""
    label = ENGLISH_NAMES.get(code)
    is_labelled = text and label and keywords.get("label") not in ("no", "none")
    return f"{label}: {text}" if is_labelled else text


def _harvard(arguments: Arguments) -> tuple[str, str]:
    """Return the authors and the year of a citation that is part of the sentence."""
    if len(arguments) < 2:
        return first(arguments), ""
    authors, year = arguments[:-1], arguments[-1]
    if len(authors) > 3:
        return f"{authors[0]} et al.", year
    return ", ".join(authors[:-1]) + (" & " if len(authors) > 1 else "") + authors[-1], year


def harvard_text(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{harvtxt|Smith|Jones|1999}}` as `Smith & Jones (1999)`."""
    names, year = _harvard(arguments)
    return f"{names} ({year})" if year else names


def harvard_years(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{harvs|txt|last=Ax|first=J|year=1966|year2=1967}}` as `J Ax (1966, 1967)`.

    Without `txt` or `nb` it is a reference in brackets.
    """

    def numbered(key: str) -> list[str]:
        return [keywords.get(f"{key}{number}", "") for number in ("", "1", "2", "3", "4", "5")]

    lasts, firsts = numbered("last"), numbered("first")
    names = [f"{name} {last}".strip() for name, last in zip(firsts, lasts, strict=True) if last]
    place = keywords.get("loc") or (f"p. {keywords['p']}" if keywords.get("p") else "")
    years = ", ".join(filter(None, [*numbered("year"), place]))
    kinds = {*arguments, *(kind for kind in ("txt", "nb") if keywords.get(kind))}
    if not names or not years or not kinds & {"txt", "nb"}:
        return ""
    authors, _ = _harvard([*names, ""])
    return f"{authors} ({years})" if "txt" in kinds else f"{authors} {years}"


def cased(arguments: Arguments, keywords: Keywords, language: str, text: str) -> str:
    """Render `{{lc:ABC}}` as `abc`; `text` is lower or upper, or with `1` for the first letter."""
    whole = first(arguments)
    part, rest = (whole[:1], whole[1:]) if text.endswith("1") else (whole, "")
    lower = text.startswith("lower")
    if language in ("tr", "az"):
        part = part.replace("İ", "i").replace("I", "ı") if lower else part.replace("i", "İ")
    return (part.lower() if lower else part.upper()) + rest


def harvard_bare(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{harvnb|Smith|Jones|1999}}` as `Smith & Jones 1999`."""
    return " ".join(filter(None, _harvard(arguments)))


_BUTTONS = read_names("audio buttons")


def audio(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{Audio|x.ogg|Alabama}}` as its label; without one it is a button."""
    label = "".join(arguments[1:2])
    return "" if label.lower().strip("'[]() ") in _BUTTONS else label


def nihongo(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{nihongo|Aikido|合気道|aikidō}}` as `Aikido (合気道, aikidō)`."""
    name, *others = [*arguments, "", "", "", ""][:5]
    details = ", ".join(filter(None, others[:3]))
    return f"{name} ({details})" if name and details else name or details


_CHINESE = read_table("chinese labels")


def chinese(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{zh|c=中文|p=Zhōngwén}}` as `Chinese: 中文; pinyin: Zhōngwén`."""
    renderings: dict[str, str] = {}
    for key, label in _CHINESE.items():
        if text := keywords.get(key):
            quoted = f"'{text}'" if label == "literally" else text
            renderings.setdefault(label, f"{label}: {quoted}")
    return "; ".join(renderings.values())


def tag(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{tag|exec}}` as `<exec>...</exec>`, or as opening, closing or single tag."""
    if not arguments or not arguments[0]:
        return ""
    name = arguments[0]
    kind = (arguments[1] if len(arguments) > 1 else keywords.get("type", "pair")).lower()[:1]
    attributes = f" {keywords['attribs']}" if keywords.get("attribs") else ""
    opening = f"<{name}{attributes}>"
    pair = f"{opening}{keywords.get('content', '...')}</{name}>"
    single = f"<{name}{attributes} />"
    renderings = {"o": opening, "c": f"</{name}>", "s": single, "e": single}
    return escape_literals(renderings.get(kind, pair))


def template_name(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{tl|convert}}` as `{{convert}}`."""
    return escape_literals("{{" + "|".join(arguments) + "}}") if arguments else ""


def verse(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{bibleverse||Mark|3:25|KJV}}` as `Mark 3:25`."""
    words = [argument for argument in arguments if argument]
    if len(words) > 1 and words[0].isdigit() and not words[1][:1].isdigit():
        words[:2] = [f"{words[0]} {words[1]}"]
    return " ".join(words[:2])


_SIGNS = read_table("music signs")


def music(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{music|sharp}}` as `♯`."""
    return _SIGNS.get(arguments[0].lower(), arguments[0]) if arguments else ""


def spoken(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{IPA|/a/}}` as text, and `{{IPA|de|ˈalbɛʁt|lang}}` as a removable pronunciation."""
    return PHONES if len(arguments) > 1 else first(arguments)


def foreign(arguments: Arguments, keywords: Keywords, language: str) -> str:
    """Render `{{langx|de|Neuland}}` as `German: Neuland`; in other wikis the text alone."""
    code, text, *_ = [*arguments, "", ""]
    return text if language != "en" else labelled(code.partition("-")[0], text, keywords)


def marriage(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{marriage|Mary Todd|1842|1865}}` as `Mary Todd (m. 1842–1865)`."""
    spouse, *other_arguments = [*arguments, ""]
    years = [word for word in other_arguments if "=" not in word and any(map(str.isdigit, word))]
    return f"{spouse} (m. {'–'.join(years[:2])})" if spouse and years else spouse


def height(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{height|ft=6|in=6}}` as `6 ft 6 in`."""
    measures = (
        f"{keywords[unit]} {unit}" for unit in ("m", "cm", "ft", "in") if keywords.get(unit)
    )
    return " ".join(measures) or HOLE_TEMPLATE


ROMAN = re.compile("[IVXLCDM]+")
_MONTHS_FR, _MONTHS_UK = read_list("months fr"), read_list("months uk")
_ENDINGS = {"ère": "re", "ème": "e"}


def _nth(number: str) -> str:
    return f"{number}{'er' if number == 'I' else 'e'}"


def century(arguments: Arguments, keywords: Keywords, text: str = "") -> str:
    """Render `{{s|XIX}}` and `{{s-|XIX|e}}` as `XIXe siècle`.

    In Russian, the template of this name keeps words on one line.
    """
    number = first(arguments)
    return f"{_nth(number)} {text}".strip() if ROMAN.fullmatch(number) else number


def _two_centuries(arguments: Arguments) -> list[str]:
    return [_nth(argument) for argument in arguments if ROMAN.fullmatch(argument)][:2]


def centuries(arguments: Arguments, keywords: Keywords, text: str = "") -> str:
    """Render `{{s2|XIX|e|XX|e}}` as `XIXe et XXe siècles`."""
    centuries = _two_centuries(arguments)
    if len(centuries) < 2:
        return century(arguments, keywords, text.replace("siècles", "siècle"))
    return f"{centuries[0]} et {centuries[1]} {text}"


def period(arguments: Arguments, keywords: Keywords, text: str = "") -> str:
    """Render `{{sp|XVIII|-|XXI}}` as `XVIIIe – XXIe siècle`."""
    centuries = _two_centuries(arguments)
    if len(centuries) < 2:
        return century(arguments, keywords, text)
    words = [one for one in arguments if one not in ("", "e", "er") and not ROMAN.fullmatch(one)]
    separator = "–" if first(words) in ("", "-", "–") else words[0]
    return f"{centuries[0]} {separator} {centuries[1]} {text}"


def century_es(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{siglo|XIX||s}}` as `siglo XIX`, `{{siglo|VII|a}}` as `VII a. C.`."""
    number = first(arguments)
    prefix = {"s": "siglo ", "S": "Siglo "}.get("".join(arguments[2:3])[:1], "")
    return f"{prefix}{number}{' a. C.' if 'a' in arguments[1:2] else ''}" if number else ""


def century_ca(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{segle|XIII|s}}` as `segle XIII`, `{{segle|IV|-}}` as `segle IV aC`."""
    return _century("segle", arguments, "aC", "-")


def century_pt(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{séc|XIX}}` as `século XIX`, `{{séc|I|AC}}` as `século I a.C.`."""
    return _century("século", arguments, "a.C.", "a.C.", "AC")


def _century(word: str, arguments: Arguments, era: str, *marks: str) -> str:
    """Return a century, with its era if one of the marks follows its number."""
    number = first(arguments)
    is_before = not set(marks).isdisjoint(arguments[1:])
    return f"{word} {number}{f' {era}' * is_before}" if number else ""


def date_fr(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{date|14|juillet|1789|en France}}` or `{{date|14 juillet 1789|…}}`.

    Parts that end with a minus are hidden.
    """
    if not arguments:
        return ""
    is_single_text = " " in arguments[0]
    words = arguments[0].split() if is_single_text else list(filter(None, arguments[:3]))
    has_month = len(words) == 3 or (len(words) == 2 and not is_single_text)
    if has_month and words[1].isdigit() and 1 <= int(words[1]) <= 12:
        words[1] = _MONTHS_FR[int(words[1]) - 1]
    return " ".join(word for word in words if not word.endswith("-"))


def date_uk(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{ДН|27|1|1839}}` as `27 січня 1839`.

    `{{ДН|27|1|1839|15}}` is `15 (27) січня 1839`.
    """
    if len(arguments) < 3 or not (arguments[1].isdigit() and 1 <= int(arguments[1]) <= 12):
        return HOLE_TEMPLATE if arguments else ""
    day, month, year = arguments[:3]
    if len(arguments) == 4 and arguments[3]:
        day = f"{arguments[3]} ({day})"
    return f"{day} {_MONTHS_UK[int(month) - 1]} {year}"


_ORDINAL = re.compile(r"(\d+|[ivxlcdm]+)(er|ère|re|e|ème|nd|nde)(?:s)?")
_NAMED_BY_NUMBER = re.compile(r"(?:\d+|[ivxl]+)(?:er|e) [^\W\d].*")


def aside(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{incise|tout juste âgée}}` as `— tout juste âgée —`.

    With `stop` or `fin`, at the end of a sentence, the second dash is omitted.
    """
    text = first(arguments)
    if not text:
        return ""
    is_last = "stop" in arguments[1:] or "fin" in arguments[1:]
    return f"— {text}" if is_last else f"— {text} —"


def ruler(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{souverain2|Guillaume IV (roi du Royaume-Uni)}}` as `Guillaume IV`."""
    return re.sub(r"\s*\(.*\)$", "", first(arguments))


def chemical(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{chem|SO|4|2-}}` with lowered numbers and raised charges."""
    return "".join(
        f"<sub>{word}</sub>" if word.isdigit() else _CHARGE.sub(r"<sup>\g<0></sup>", word)
        for word in arguments
    )


_CHARGE = re.compile(r"^\d*[−+-]$")


def formula(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{fchim|H|2|O}}` as `H2O`."""
    is_labelled = len(arguments) > 1 and not arguments[1].isdigit()
    return "".join(arguments[1:] if is_labelled else arguments)


_INDICATED = frozenset(ENGLISH_NAMES) | {"mul", "en"}  # {{en}} after a French work: its language
_GERMAN_LANGUAGE = re.compile(r"([a-z]{2,3})s(?:-[a-z]+)?")


def by_name(name: str, shown: str, text: str, language: str) -> str | None:
    """Return the text of a template that its name determines; else None.

    `{{23e|place}}` is `23e place`, `{{18e arrondissement de Paris}}` and `{{XXe siècle}}` their own
    names, `{{Calcio Napoli}}` `Napoli`, `{{enS|Tower}}` `englisch Tower`.

    Args:
        name: lower-case name.
        shown: name as typed.
    """
    if language == "fr":
        if not text and name in _INDICATED:
            return GAP
        if ordinal := _ORDINAL.fullmatch(name):
            number, ending = ordinal[1].upper(), ordinal[2]
            return f"{number}{_ENDINGS.get(ending, ending)} {text}".strip()
        return shown if _NAMED_BY_NUMBER.fullmatch(name) and not text else None
    if language == "it" and name.startswith("calcio "):
        return shown[len("calcio ") :]
    match = _GERMAN_LANGUAGE.fullmatch(name) if language == "de" else None
    if match and match[1] in GERMAN_NAMES:
        return f"{GERMAN_NAMES[match[1]]} {text}".strip()
    return None
