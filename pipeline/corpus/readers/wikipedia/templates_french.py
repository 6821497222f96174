"""Templates of the French Wikipedia whose words belong to the running text: centuries, ordinals, numbers with units, dates, languages.

What each says was held against MediaWiki's own rendering of whole articles (benchmarks/fidelity.py).
"""

from __future__ import annotations

import re

from pipeline.corpus.readers.slots import PHONES
from pipeline.corpus.readers.wikipedia.templates_base import Arguments, Named, Rule, block, constant, first, quoted

_ROMAN = re.compile("[IVXLCDM]+")
_PLAIN = re.compile(r"(?<![\d.,])\d{4,}(?![\d.,])|(?<![\d.,])(\d+)\.(\d+)(?![\d.,])")
_ORDINAL = re.compile(r"(\d+|[ivxlcdm]+)(er|ère|re|e|ème|nd|nde)(?:s)?")
_PLACE = re.compile(r"\d+(?:er|e) [^\W\d].*")
_MONTHS = "janvier février mars avril mai juin juillet août septembre octobre novembre décembre".split()
_ENDINGS = {"ère": "re", "ème": "e"}


def _ordinal(number: str) -> str:
    return f"{number}{'er' if number == 'I' else 'e'}"


def _century(ending: str = "", word: str = "siècle") -> Rule:
    """`{{s|XIX}}` and `{{s-|XIX|e}}` say `XIXe siècle`; the variants with a minus before the name say it of the time before Christ."""

    def rule(arguments: Arguments, named: Named) -> str:
        number = first(arguments, named)
        if not _ROMAN.fullmatch(number):  # in Russian, the same name keeps words on one line
            return number
        return f"{_ordinal(number)} {word}{ending}".strip()

    return rule


def _centuries(ending: str = "", joint: str = "et") -> Rule:
    """`{{s2|XIX|e|XX|e}}` says `XIXe et XXe siècles`, `{{sp|XVIII|-|XXI}}` `XVIIIe – XXIe siècle`."""

    def rule(arguments: Arguments, named: Named) -> str:
        numbers = [argument for argument in arguments if _ROMAN.fullmatch(argument)][:2]
        if len(numbers) < 2:
            return _century(ending)(arguments, named)
        if joint:
            return f"{_ordinal(numbers[0])} {joint} {_ordinal(numbers[1])} siècles{ending}"
        words = [
            argument for argument in arguments if argument and not _ROMAN.fullmatch(argument) and argument not in ("e", "er")
        ]
        between = "–" if not words or words[0] in ("-", "–") else words[0]
        return f"{_ordinal(numbers[0])} {between} {_ordinal(numbers[1])} siècle{ending}"

    return rule


def _number(text: str) -> str:
    """Numbers as the French write them: `10283.5` as `10 283,5`."""

    def written(match: re.Match[str]) -> str:
        whole, _, decimals = match[0].partition(".")
        grouped = f"{int(whole):,}".replace(",", " ") if whole[0] != "0" else whole
        return f"{grouped},{decimals}" if decimals else grouped

    return _PLAIN.sub(written, text)


def _unit(arguments: Arguments, named: Named) -> str:
    """`{{unité|1930|km|2}}`: the number, then units, powers left out."""
    if not arguments:
        return ""
    return " ".join([_number(arguments[0]), *(word for word in arguments[1:] if word and not re.fullmatch(r"-?\d+", word))])


def _date(arguments: Arguments, named: Named) -> str:
    """`{{date|14|juillet|1789|en France}}`; in `{{date|14 juillet 1789|en France}}` the first says all, and what it ends with a minus is hidden."""
    if not arguments:
        return ""
    if " " not in arguments[0].strip():
        parts = [argument for argument in arguments[:3] if argument]
        if len(parts) > 1 and parts[1].isdigit() and 1 <= int(parts[1]) <= 12:
            parts[1] = _MONTHS[int(parts[1]) - 1]
        return " ".join(part for part in parts if not part.endswith("-"))
    parts = [part for part in arguments[0].split() if not part.endswith("-")]
    if len(parts) == 3 and parts[1].isdigit() and 1 <= int(parts[1]) <= 12:
        parts[1] = _MONTHS[int(parts[1]) - 1]
    return " ".join(parts)


def _link(arguments: Arguments, named: Named) -> str:
    """`{{Lien|langue=en|trad=Todd May|fr=Todd May|texte=May}}` says `May`."""
    return named.get("texte") or first(arguments, named) or named.get("fr") or named.get("trad", "")


def _before(sign: str) -> Rule:
    return lambda arguments, named: f"{sign} {first(arguments, named)}".strip()


def _aside(arguments: Arguments, named: Named) -> str:
    """`{{incise|tout juste âgée}}` says `— tout juste âgée —`, at the end of a sentence without the second dash."""
    text = first(arguments, named)
    return (f"— {text}" if "stop" in arguments[1:] or "fin" in arguments[1:] else f"— {text} —") if text else ""


def _time(arguments: Arguments, named: Named) -> str:
    words = [f"{number} {unit}" for number, unit in zip(arguments, ("h", "", "s"), strict=False) if number]
    return " ".join(words).strip()


def _linked_page(arguments: Arguments, named: Named) -> str:
    return arguments[-1] if arguments else ""


def _slash(arguments: Arguments, named: Named) -> str:
    return " / ".join(argument for argument in arguments if argument)


def _foreign(arguments: Arguments, named: Named) -> str:
    return named.get("texte") or (arguments[1] if len(arguments) > 1 else "")


def _ruler(arguments: Arguments, named: Named) -> str:
    """`{{souverain2|Guillaume IV (roi du Royaume-Uni)}}` says `Guillaume IV`."""
    return re.sub(r"\s*\(.*\)$", "", first(arguments, named))


_BEFORE_CHRIST = " av. J.-C."
FRENCH_RULES: dict[str, Rule] = {
    **dict.fromkeys(["s", "siècle", "s-"], _century()),
    **dict.fromkeys(["-s", "-s-"], _century(_BEFORE_CHRIST)),
    **dict.fromkeys(["s mini", "s mini-"], _century("", "")),
    **dict.fromkeys(["s2", "s2-"], _centuries()),
    **dict.fromkeys(["-s2", "-s2-"], _centuries(_BEFORE_CHRIST)),
    **dict.fromkeys(["sp", "sp-"], _centuries(joint="")),
    **dict.fromkeys(["-sp", "-sp-"], _centuries(_BEFORE_CHRIST, joint="")),
    **dict.fromkeys(["citation", "citation étrangère", "guillemets", "cita"], quoted("« ", " »")),
    **dict.fromkeys(["citation bloc", "bloc citation"], block),
    **dict.fromkeys(["unité", "unite", "nb", "nombre"], _unit),
    **dict.fromkeys(["date", "date-", "date de naissance", "date de naissance-", "date de décès", "date de décès-"], _date),
    **dict.fromkeys(["lien", "lien interwiki"], _link),
    **dict.fromkeys(["n°", "numéro"], _before("no")),
    **dict.fromkeys(["p.", "pp."], _before("p.")),
    **dict.fromkeys(["av jc", "av. j.-c.", "avjc", "jc"], constant("av. J.-C.")),
    **dict.fromkeys(["ap jc", "ap. j.-c."], constant("apr. J.-C.")),
    **dict.fromkeys(["exp", "ind", "indice", "refsou", "secsou", "par qui", "quoi", "refnec", "page h", "abréviation discrète"], first),
    **dict.fromkeys(["page h'", "fchim"], lambda arguments, named: "".join(arguments[1:] if len(arguments) > 1 and not arguments[1].isdigit() else arguments)),
    **dict.fromkeys(["grec ancien", "grec moderne"], _slash),
    **dict.fromkeys(["api", "msapi", "phon"], constant(PHONES)),
    **dict.fromkeys(["...", "…"], constant("…")),
    **dict.fromkeys(["coll."], quoted("coll. « ", " »")),
    **dict.fromkeys(["langue", "lang"], _foreign),
    **dict.fromkeys(["aud", "prononciation", "lire en ligne", "écouter en ligne", "voir en ligne"], constant("")),
    "incise": _aside,
    "heure": _time,
    "souverain2": _ruler,
    "vve": constant("Vve"), "mme": constant("Mme"), "mlle": constant("Mlle"), "mgr": constant("Mgr"),
}  # fmt: skip


def ordinal(name: str, shown: str, text: str) -> str | None:
    """`{{23e|place}}` says `23e place`, `{{18e arrondissement de Paris}}` its own name; None for a template that is none of these.

    Args:
        name: in lower case.
        shown: the name as it was typed.
        text: its first argument.
    """
    found = _ORDINAL.fullmatch(name)
    if found:
        number = found[1] if found[1].isdigit() else found[1].upper()
        return f"{number}{_ENDINGS.get(found[2], found[2])} {text}".strip()
    return shown if _PLACE.fullmatch(name) and not text else None
