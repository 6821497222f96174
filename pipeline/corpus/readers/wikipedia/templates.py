"""Wikitext templates whose words belong to the running text, and what they say.

A template that is not in this table is dropped: infoboxes, notes, navigation, references, maintenance. A function
gets the template's positional arguments and its named ones, all of them already plain text.
"""

from __future__ import annotations

import re

from pipeline.corpus.readers.wikipedia.templates_local import LOCAL_RULES, Arguments, Named, Rule, german_language

_MONTHS = "January February March April May June July August September October November December".split()
_NUMBER = re.compile(r"[−-]?[\d.,]+(?:[+/⁄][\d.]+)*(?:e[−-]?\d+)?")
_RANGES = {
    "to": "to",
    "-": "–",
    "–": "–",
    "to(-)": "to",
    "and": "and",
    "or": "or",
    "x": "×",
    "by": "by",
    "×": "×",
    "+/-": "±",
    "±": "±",
}
_UNITS = {
    "sqmi": "sq mi", "sqft": "sq ft", "sqyd": "sq yd", "km2": "km²", "m2": "m²", "cm2": "cm²", "mm2": "mm²", "m3": "m³", "km3": "km³",
    "cuft": "cu ft", "cumi": "cu mi", "c": "°C", "f": "°F", "usgal": "US gal", "impgal": "imp gal", "km/h": "km/h", "ha": "hectares",
    "oilbbl": "barrels", "koilbbl": "thousand barrels", "moilbbl": "million barrels", "goilbbl": "billion barrels",
    "mcuft": "million cu ft", "bcuft": "billion cu ft", "tcuft": "trillion cu ft", "e6acre": "million acres", "e6ha": "million hectares",
}  # fmt: skip


def _argument(number: int) -> Rule:
    def rule(arguments: Arguments, named: Named) -> str:
        return named.get(str(number + 1), arguments[number] if number < len(arguments) else "")

    return rule


def _constant(text: str) -> Rule:
    return lambda arguments, named: text


def _around(before: str, after: str = "") -> Rule:
    return lambda arguments, named: f"{before}{arguments[0]}{after}" if arguments and arguments[0] else ""


def _joined(separator: str) -> Rule:
    return lambda arguments, named: separator.join(argument for argument in arguments if argument)


def _last(arguments: Arguments, named: Named) -> str:
    return arguments[-1] if len(arguments) > 1 else ""


def _quotation(arguments: Arguments, named: Named) -> str:
    text = named.get("text") or named.get("quote") or named.get("1") or (arguments[0] if arguments else "")
    return f"\n\n{text}\n\n"


def _convert(arguments: Arguments, named: Named) -> str:
    """`{{convert|12|to|15|km|mi}}` says `12 to 15 km`: the value as the author gave it."""
    words: list[str] = []
    for position, argument in enumerate(arguments):
        if _NUMBER.fullmatch(argument):
            words.append(argument.replace("+", " "))
        elif argument.lower() in _RANGES and position + 1 < len(arguments) and _NUMBER.fullmatch(arguments[position + 1]):
            words.append(_RANGES[argument.lower()])
        else:
            words.append(_UNITS.get(argument.lower(), argument))
            if not (argument in ("ft", "lb", "st") and _NUMBER.fullmatch("".join(arguments[position + 1 : position + 2]))):
                break
    return re.sub(r" ?– ?", "–", " ".join(words))


def _as_of(arguments: Arguments, named: Named) -> str:
    text = named.get("alt") or f"As of {_date(arguments, named)}"
    return text[0].lower() + text[1:] if named.get("lc") else text


def _date(arguments: Arguments, named: Named) -> str:
    """Year, month, day: `5 May 2016`; what is no such list is left as it stands."""
    parts = [argument for argument in arguments[:3] if argument]
    if not parts or not all(part.isdigit() for part in parts) or (len(parts) > 1 and not 1 <= int(parts[1]) <= 12):
        return " ".join(parts)
    names = [parts[0]] if len(parts) == 1 else [_MONTHS[int(parts[1]) - 1], parts[0]]
    return " ".join(parts[2:] + names)


def _fraction(arguments: Arguments, named: Named) -> str:
    if len(arguments) == 3:
        return f"{arguments[0]} {arguments[1]}/{arguments[2]}"
    return "/".join(arguments) if len(arguments) == 2 else f"1/{arguments[0]}" if arguments else ""


def _value(arguments: Arguments, named: Named) -> str:
    exponent = f" × 10^{named['e']}" if named.get("e") else ""
    unit = named.get("u") or named.get("ul") or ""
    return f"{arguments[0]}{exponent} {unit}".strip() if arguments else ""


def _ordinal(arguments: Arguments, named: Named) -> str:
    if not arguments or not arguments[0].isdigit():
        return ""
    number = int(arguments[0])
    ending = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _ship(arguments: Arguments, named: Named) -> str:
    return " ".join(arguments[:2])


def _of_prefix(prefix: str) -> Rule:
    return lambda arguments, named: f"{prefix} {arguments[0]}" if arguments else prefix


FIRST, SECOND, DASH, QUOTE = _argument(0), _argument(1), _constant(" – "), _constant("'")

_FIRST = """
    nowrap nobr small smaller big larger large em strong bold italic italics sc smallcaps small_caps sup sub mono mvar math var tt kbd
    code codett samp underline u abbr tooltip h:title ill interlanguage_link illm sic typo not_a_typo notatypo as_written linktext
    plainlist noitalic uc lc ucfirst lcfirst nihongo gloss flag flagu flagcountry visible_anchor vanchor block_indent color script
    resize center poem langnf formatnum
"""

RULES: dict[str, Rule] = {
    **LOCAL_RULES,
    **dict.fromkeys((name.replace("_", " ") for name in _FIRST.split()), FIRST),
    **dict.fromkeys(["lang", "hebrew word", "wikt-lang", "colored", "fontcolor", "wiktionary inline"], SECOND),
    **dict.fromkeys(["transl", "transliteration", "rtl-lang", "tlit"], _last),
    **dict.fromkeys(["convert", "cvt", "conv"], _convert),
    **dict.fromkeys(["quote", "quotation", "cquote", "blockquote", "bquote", "quote box2", "centered pull quote"], _quotation),
    **dict.fromkeys(["as of", "asof"], _as_of),
    **dict.fromkeys(
        [
            "start date",
            "end date",
            "birth date",
            "death date",
            "birth date and age",
            "film date",
            "start date and age",
            "date",
            "dts",
        ],
        _date,
    ),
    **dict.fromkeys(["circa", "c.", "ca."], _around("c. ")),
    **dict.fromkeys(["floruit", "fl.", "fl"], _around("fl. ")),
    **dict.fromkeys(["reign", "r."], lambda arguments, named: "r. " + "–".join(arguments[:2])),
    **dict.fromkeys(["frac", "fraction", "sfrac", "half"], _fraction),
    **dict.fromkeys(["val", "number"], _value),
    **dict.fromkeys(["ordinal", "ord"], _ordinal),
    **dict.fromkeys(["chem", "chem2", "ce", "simplenuclide", "nuclide"], _joined("")),
    **dict.fromkeys(["sortname", "hs", "nts"], _joined(" ")),
    **dict.fromkeys(["hlist", "unbulleted list", "flatlist", "cslist", "comma separated entries"], _joined(", ")),
    **dict.fromkeys(["dash", "snd", "snds", "spnd", "sndash", "ndash", "spaced ndash", "spaced en dash", "en dash"], DASH),
    **dict.fromkeys(["mdash", "em dash", "—", "spaced em dash"], _constant("—")),
    **dict.fromkeys(["'", "apostrophe", "`"], QUOTE),
    **dict.fromkeys(
        ["nbsp", "space", "spaces", "thinsp", "thin space", "·", "dot", "dot separator", "middot", "•", "bull", "clear"],
        _constant(" "),
    ),
    **dict.fromkeys(["us$", "usd", "us dollar"], _around("US$")),
    **dict.fromkeys(["£", "gbp", "pound"], _around("£")),
    **dict.fromkeys(["€", "eur", "euro"], _around("€")),
    **dict.fromkeys(["a$", "aud"], _around("A$")),
    **dict.fromkeys(["inr", "indian rupee", "₹"], _around("₹")),
    **dict.fromkeys(["angbr", "angle bracket", "grapheme"], _around("⟨", "⟩")),
    **dict.fromkeys(["ipa", "ipalink", "ipa link", "ipablink", "ipa text"], FIRST),
    **{name: _around("", f" {name.upper()}") for name in ("bc", "bce", "ce")},
    "ad": _around("AD "),
    "'s": _constant("'s"),
    "'\"": _constant("'\""),
    "\"'": _constant("\"'"),
    "-": _constant("-"),
    "!": _constant("|"),
    "=": _constant("="),
    "pi": _constant("π"),
    "okina": _constant("ʻ"),
    "oldstyledate": lambda arguments, named: " ".join(arguments[:2]),
    "oldstyledatedy": lambda arguments, named: " ".join(arguments[:2]),
    "ship": _ship,
    "sclass": lambda arguments, named: f"{arguments[0]}-class {arguments[1]}" if len(arguments) > 1 else "",
    **{name.lower(): _of_prefix(name) for name in "HMS USS SS RMS HMAS HMCS MV SMS USNS USAT RRS".split()},
}


def render(content: str) -> str:
    """What the template with this content (between the braces) adds to the text."""
    name, *rest = content.split("|")
    name = name.strip().lower().replace("_", " ")
    name, colon, first = name.partition(":") if not name.startswith("h:") else (name, "", "")
    if colon:  # a parser function such as formatnum:12
        rest.insert(0, first)
    rule = RULES.get(name)
    if rule is None:
        german = german_language(name, rest[0].strip() if rest else "")
        if german is not None:
            return german
        if not re.fullmatch(r"lang-[a-z-]+", name):
            return ""
        rule = FIRST
    arguments: Arguments = []
    named: Named = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if equals and re.fullmatch(r"\s*[\w -]{1,30}\s*", key):
            named[key.strip().lower()] = value.strip()
        else:
            arguments.append(part.strip())
    for number in range(1, 4):  # `1=` names a positional argument, for values that hold an equals sign
        if str(number) in named and len(arguments) == number - 1:
            arguments.append(named[str(number)])
    return rule(arguments, named)
