"""Template functions for numbers, measures, money and dates, in the notation of the page.

What only MediaWiki could compute (current prices, ages) leaves a placeholder.
"""

from __future__ import annotations

import html
import re
import unicodedata

from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import read_list, read_table

Arguments = list[str]
Keywords = dict[str, str]

_MONTHS = read_list("months en")
_MONTH_NAMES = {key.lower(): name for name in _MONTHS for key in (name[:3], name)}
_NUMBER = re.compile(
    r"[−–-]?\d[\d,]*(?:\.\d+)?(?:[+/⁄]{1,2}\d+)*(?:e[−+-]?\d+)?(?:[-–]\d[\d,.]*)?|[−-]?\.\d+"
)
_PLAIN = re.compile(r"([−–-]?)(\d+)(?:[.٫](\d+))?")
_POWER = re.compile(r"([−–-]?\d[\d,]*(?:\.\d+)?)e([−+-]?\d+)")
_ISO = re.compile(r"\d{4}-\d{1,2}(?:-\d{1,2})?")
_RANGES = {
    "to": "to", "to(-)": "to", "-": "–", "–": "–", "and": "and", "and(-)": "and", "or": "or",
    "x": "×", "xx": "×", "×": "×", "*": "×",
    "by": "by", "by(x)": "by", "+/-": "±", "±": "±", "+": "+", "&": "&", "to about": "to about",
    ",": ",", ", and": ", and", ", or": ", or",
    "and -": "and", "to -": "to",
}  # fmt: skip
_INSIDE = re.compile(r"(\d[\d,.]*) ?(x|×|by|to|and|or|±) ?(\d[\d,.]*)")
_UNITS = read_table("units")
_SYMBOLS = read_table("unit symbols")
_CURRENCIES = read_table("currencies")
_WORDED = re.compile(r"[^\W\d_]{3,}")
_POWERS = {3: "thousand", 6: "million", 9: "billion", 12: "trillion"}
_SEQUENCES = {unit: smaller.split() for unit, smaller in read_table("smaller units").items()}
_SEPARATORS = {
    **dict.fromkeys("de es it nl id tr da el ca ro sl hr sr vi".split(), "."),
    **dict.fromkeys("fr pt ru uk pl cs sk sv fi no nb nn hu bg et lv lt".split(), " "),
}

_EASTERN = re.compile("[٠-٩۰-۹]")  # Arabic and Persian digits have marks of their own
_INDIAN = frozenset("bn hi mr gu ta te kn ml pa or as sa".split())  # 12,34,567
_FOUR_GROUPED = frozenset(("fr", "pt"))  # and English: 1 930; other languages: 1930


def in_script(number: str, sample: str) -> str:
    """Return ASCII digits as digits of the script that the sample begins with: `10` as `১০`."""
    digit = next((one for one in sample if one.isdecimal()), "0")
    zero = ord(digit) - unicodedata.digit(digit)
    return "".join(chr(zero + int(one)) if one.isdecimal() else one for one in number)


def group_digits(number: str, language: str = "en") -> str:
    """Return `1234567.5` as `1,234,567.5`, or with the separators of the language or digits.

    Other text is returned unchanged, and digits stay in their script.
    """
    match = _PLAIN.fullmatch(number)
    if match is None or (len(match[2]) > 1 and match[2][0] == "0"):
        return number
    sign, digits, decimals = match.groups()
    separator, mark = _SEPARATORS.get(language, ","), "."
    if _EASTERN.match(digits):
        separator, mark = "٬", "٫"
    elif separator != ",":
        mark = ","
    if len(digits) > 4 or (len(digits) == 4 and (mark != "," or language in _FOUR_GROUPED)):
        rest, step = digits[:-3], 2 if language in _INDIAN else 3
        head = len(rest) % step
        groups = [rest[:head], *(rest[i : i + step] for i in range(head, len(rest), step))]
        digits = separator.join(filter(None, [*groups, digits[-3:]]))
    return f"{sign}{digits}{mark}{decimals}" if decimals else f"{sign}{digits}"


def format_number(arguments: Arguments, keywords: Keywords, language: str) -> str:
    """Render `{{formatnum:1234}}` as `1,234`, and `{{formatnum:1,234|R}}` as `1234`."""
    number, *options = [*arguments, ""]
    if {"R", "NOSEP"} & {*options}:
        return re.sub(r"(?<=\d)[,٬ \u00a0](?=\d{3})", "", number)
    return group_digits(number, language)


def spell_number(number: str, language: str = "en") -> str:
    """Return a number as it reads: `4.5e6` is `4.5 million`, `5+1/2` is `5 1/2`."""
    if "e" not in number.lower():
        number = number.replace("//", "/").replace("⁄", "/").replace("+", " ").strip()
        number = re.sub(r"(?<=\d)-(?=\d)", "–", number)
    match = _POWER.fullmatch(number.lower())
    if match is None:
        return group_digits(number, language)
    exponent = int(match[2].replace("−", "-"))
    if exponent in _POWERS and exponent > 3 and language == "en":
        return f"{match[1]} {_POWERS[exponent]}"
    mantissa = match[1].replace(",", "").replace("−", "-").replace("–", "-")
    integer, _, decimals = mantissa.partition(".")
    if 0 <= exponent <= 15 and len(decimals) <= exponent:
        zero = in_script("0", integer)
        digits = integer + decimals + zero * (exponent - len(decimals))
        return group_digits(digits.lstrip(zero) or zero, language)
    return f"{group_digits(match[1], language)} × {in_script(f'10^{exponent}', integer)}"


_EXPONENT = re.compile(r"[−–+-]?\d+")


def power(arguments: Arguments, keywords: Keywords, text: str = "") -> str:
    """Render `{{e|24}}` as `× 10^24` in the digits of the exponent; without number, `text`."""
    exponent = html.unescape(next(filter(None, arguments), ""))
    if _EXPONENT.fullmatch(exponent):
        return f" × {in_script('10', exponent)}^{exponent}"
    return (exponent or text) if text else HOLE_TEMPLATE


def ten_power(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{10^|6}}` as `10^6`."""
    return power(arguments, keywords).removeprefix(" × ")


def exponential(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{exp|1.5|7}}` as `1.5 × 10^7`, and `{{exp|2}}` as raised text."""
    if len(arguments) > 1:
        return arguments[0] + power(arguments[1:], keywords)
    return f"<sup>{''.join(arguments)}</sup>"


def gaps(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{gaps|1|234|567|u=m}}` as `1 234 567 m`."""
    return _measure(" ".join(arguments), keywords)


def _measure(number: str, keywords: Keywords) -> str:
    """Return a number with the power of ten, unit, prefix and suffix of `{{val}}`."""
    if exponent := keywords.get("e"):
        number += power([exponent], {})
    unit = keywords.get("u") or keywords.get("ul") or ""
    per = keywords.get("up") or keywords.get("upl")
    prefix, suffix = keywords.get("p") or "", keywords.get("s") or keywords.get("end") or ""
    return f"{prefix}{number}{suffix} {unit}{'/' + per if per else ''}".strip()


def unit(arguments: Arguments, keywords: Keywords, language: str) -> str:
    """Render `{{unidad|5|km|2}}` as `5 km²`, and `{{unité|1.5|e=3|kg}}` as `1,5 × 10^3 kg`."""
    if not arguments or any("=" in argument for argument in arguments):  # an unknown option
        return HOLE_TEMPLATE if arguments else ""
    pattern = r"(?<![\d.,٫])\d+(?:\.\d+)?(?![\d.,٫])"
    number = re.sub(pattern, lambda match: group_digits(match[0], language), arguments[0])
    if "e" in number.lower() and _POWER.fullmatch(number.lower()):
        number = spell_number(number, language)
    if exponent := keywords.get("e"):
        number += power([exponent], {})
    words = [number]
    for word in filter(None, map(html.unescape, arguments[1:])):
        if _EXPONENT.fullmatch(word):
            if len(words) == 1:
                return HOLE_TEMPLATE  # two numbers with an unknown relation
            words[-1] += {"2": "²", "3": "³", "1": ""}.get(word, f"^{word}")
        else:
            words.append(word)
    return " ".join(words)


def _unit(name: str, language: str = "en") -> str:
    if language != "en":  # the symbol; names of units are English
        return _SYMBOLS.get(name, HOLE_TEMPLATE if re.match(r"e\d", name) else name)
    match = re.fullmatch(r"e(3|6|9|12)(.+)", name)
    if match:
        return f"{_POWERS[int(match[1])]} {_unit(match[2])}"
    if name.endswith("/d"):
        return f"{_unit(name[:-2])} per day"
    return _UNITS.get(name) or _UNITS.get(name.lower(), name.replace("_", " "))


def convert(arguments: Arguments, keywords: Keywords, language: str = "en") -> str:
    """Render `{{convert|12|to|15|km|mi}}` as `12 to 15 km`.

    `{{convert|6|ft|2|in|m}}` is `6 ft 2 in`. Values are those of the author. Between two numbers
    there must be a range word, or a unit with its smaller unit; else the result is a placeholder.
    In languages other than English a non-ASCII word between two numbers is a range, and units are
    symbols.
    """
    suffix = next((one for one in arguments if one[:1] == "-" and one[1:2].isalpha()), "")
    tokens = [token for argument in arguments for token in _split_range(argument)]
    words: list[str] = []
    while tokens and _NUMBER.fullmatch(tokens[0]):
        number, unit_or_range, *tokens = [*tokens, ""]
        words.append(spell_number(number, language))
        number_follows = bool(tokens) and _NUMBER.fullmatch(tokens[0]) is not None
        is_foreign_word = (
            language != "en" and not unit_or_range.isascii() and unit_or_range.isalpha()
        )
        if number_follows and (unit_or_range.lower() in _RANGES or is_foreign_word):
            separator = _RANGES.get(unit_or_range.lower(), unit_or_range)
            if language != "en":
                is_english = separator.isascii() and any(map(str.isalpha, separator))
                words.append("–" if separator == "to" else HOLE_TEMPLATE * is_english or separator)
            else:
                words.append("to" if unit_or_range in "-–" and tokens[0][0] in "-−–" else separator)
            continue
        words.append(_unit(unit_or_range, language))
        smaller_unit = tokens[1].lower() if len(tokens) > 1 else ""
        if smaller_unit in _SEQUENCES.get(unit_or_range.lower(), ()) and number_follows:
            continue
        if len(tokens) > 1 and tokens[0].lower() in _RANGES and _NUMBER.fullmatch(tokens[1]):
            separator = _RANGES[tokens.pop(0).lower()]  # 5 ft 6 in to 5 ft 8 in
            words.append(separator if language == "en" or not separator.isalpha() else "–")
        elif number_follows and smaller_unit:
            return HOLE_TEMPLATE  # two values with an unknown relation
        else:
            break
    if not words or not words[-1]:
        return words[0] if len(words) == 2 else HOLE_TEMPLATE
    text = re.sub(r" (?=,)", "", re.sub(r" ?– ?", "–", " ".join(words)))
    return text + (suffix if keywords.get("adj") == "mid" else "")


def _split_range(argument: str) -> list[str]:
    """Split `5 x 10` or `5 to 10` in one argument into three parts."""
    match = _INSIDE.fullmatch(argument)
    return [argument] if match is None else list(match.groups())


def _month(text: str) -> str:
    """Return `6`, `06`, `June` or `Jun` as `June`; empty if no month."""
    if text.isdigit():
        return _MONTHS[int(text) - 1] if 1 <= int(text) <= 12 else ""
    return _MONTH_NAMES.get(text.lower(), "")


def date(arguments: Arguments, keywords: Keywords, language: str = "en") -> str:
    """Render year, month and day as `5 May 2016`; other arguments are joined unchanged.

    In other languages numbers that need the name of a month leave a placeholder.
    """
    values = [one for one in arguments[:3] if one and one.lower() not in ("dmy", "mdy", "ymd")]
    if len(values) == 1 and _ISO.fullmatch(values[0]):
        values = values[0].split("-")
    if language != "en":
        in_words = len(values) == 1 or any(map(_WORDED.search, values))
        between = " de " if language in ("es", "pt", "gl") else " "
        return between.join(values) if in_words or not values else HOLE_TEMPLATE
    if (
        not values
        or not values[0].isdigit()
        or (len(values) > 1 and not _month(values[1]))
        or (len(values) > 2 and not values[2].isdigit())
    ):
        return " ".join(values)
    if len(values) == 1:
        return values[0]
    day = [str(int(values[2]))] if len(values) > 2 else []
    if day and keywords.get("mf", "").lower().startswith("y"):
        return f"{_month(values[1])} {day[0]}, {values[0]}"
    return " ".join([*day, _month(values[1]), values[0]])


def as_of(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{as of|2012|June}}` as `As of June 2012`."""
    date_options = {"mf": "y" if keywords.get("df", "").lower() == "us" else "", **keywords}
    opening = "Since" if keywords.get("since") else "As of"
    text = (
        keywords.get("alt")
        or f"{opening} {date(arguments, date_options)}{keywords.get('post', '')}"
    )
    lower_case = keywords.get("lc") or keywords.get("lc_text") or "no"
    return text if lower_case.lower() in ("n", "no", "off") else text[0].lower() + text[1:]


def fraction(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{frac|3|1|2}}` as `3 1/2`, `{{frac|8}}` as `1/8`."""
    if len(arguments) == 3:
        return f"{arguments[0]} {arguments[1]}/{arguments[2]}"
    if len(arguments) == 2:
        return "/".join(arguments)
    return f"1/{arguments[0]}" if arguments else ""


def value(arguments: Arguments, keywords: Keywords, language: str = "en") -> str:
    """Render `{{val|4.5|0.2|e=6|u=m}}` as `4.5 ± 0.2 × 10^6 m`, two errors as `+0.1 −0.2`."""
    if not arguments:
        return ""
    number, *others = [spell_number(one, language) for one in arguments]
    signs = [one[:1] for one in others]
    if len(others) == 2 and arguments[1].lower() in _RANGES:
        separator = _RANGES[arguments[1].lower()]
        number += "–" + others[1] if separator in "-–" else f" {separator} {others[1]}"
        number = number if language == "en" or not separator.isalpha() else HOLE_TEMPLATE
    elif len(others) == 1 and signs[0] == "(":
        number += others[0]
    elif others and all(map(_NUMBER.fullmatch, others)) and len(others) < 3:
        upper, lower = [one.lstrip("−–-") for one in [*others, ""][:2]]
        number += f" +{upper} −{lower}" if lower else f" ± {upper}"
    elif any(others):
        return HOLE_TEMPLATE
    return _measure(number, keywords)


def ordinal(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{ordinal|22}}` as `22nd`."""
    if not arguments or not arguments[0].isdigit():
        return ""
    number = int(arguments[0])
    if 10 <= number % 100 <= 20:
        return f"{number}th"
    return f"{number}" + {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


_SIGN_FIRST = frozenset("en zh yue wuu ja ko hi bn mr ta te ur ne si th ms ga cy".split())
_SCALES = {
    **dict.fromkeys(("m", "mn", "million"), " million"),
    **dict.fromkeys(("b", "bn", "billion"), " billion"),
}


def money(arguments: Arguments, keywords: Keywords, language: str, text: str) -> str:
    """Render `{{US$|1500}}` as `US$1,500`, and `{{euro|1500}}` of most languages as `1500 €`."""
    amount = spell_number(arguments[0], language) if arguments else ""
    scale = _SCALES.get(arguments[1].lower(), "") if len(arguments) > 1 else ""
    if scale and language != "en":
        return HOLE_TEMPLATE
    is_first = not amount or language in _SIGN_FIRST
    return f"{text}{amount}{scale}" if is_first else f"{amount} {text}"


def currency(arguments: Arguments, keywords: Keywords, language: str) -> str:
    """Render `{{currency|1000|GBP}}` as `£1,000`."""
    named = keywords.get("type") or keywords.get("currency") or "usd"
    code = arguments[1] if len(arguments) > 1 else named
    amount = keywords.get("amount") or "".join(arguments[:1])
    symbol = _CURRENCIES.get(code.lower(), f"{code.upper()} ")
    return money([amount], {}, language, symbol) if amount else HOLE_TEMPLATE


def coordinates(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{coord|30|12|N|74|7|W}}` as `30°12′N 74°7′W`; title-only coordinates as ""."""
    display = keywords.get("display", "inline").lower()
    if "inline" not in display and "i" not in display.split(","):
        return ""
    coordinates: list[str] = []
    numbers: list[str] = []
    for argument in arguments:
        if argument.upper() in ("N", "S", "E", "W"):
            angles = zip(numbers, "°′″", strict=False)
            coordinates.append("".join(map("".join, angles)) + argument.upper())
            numbers = []
        elif _NUMBER.fullmatch(argument) and len(numbers) < 3:
            numbers.append(argument)
        else:
            break
    if len(coordinates) == 2:
        return " ".join(coordinates)
    return f"{numbers[0]}, {numbers[1]}" if not coordinates and len(numbers) == 2 else ""


def gauge(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{RailGauge|1435mm}}` and `{{track gauge}}` as `1,435 mm`."""
    text = arguments[0] if arguments else ""
    metric = re.fullmatch(r"(\d+) ?mm", text)
    feet = re.fullmatch(r"(\d+)ft(?:([\d.]+)in)?", text)
    if metric:
        return f"{group_digits(metric[1])} mm"
    if feet:
        return f"{feet[1]} ft" + (f" {feet[2]} in" if feet[2] else "")
    return "standard" if text == "sg" else HOLE_TEMPLATE


def density(arguments: Arguments, keywords: Keywords) -> str:
    """Render `{{pop density|3645257|640081.87|km2|sqmi|prec=1}}` as `5.7/km²`."""
    try:
        people, area = (float(argument.replace(",", "")) for argument in arguments[:2])
        density = f"{people / area:.{int(keywords.get('prec', '0'))}f}"
    except (ValueError, ZeroDivisionError):
        return HOLE_TEMPLATE
    return f"{group_digits(density)}/{_unit(arguments[2])}" if len(arguments) > 2 else HOLE_TEMPLATE
