"""Wikitext templates whose words belong to the running text, and what they say.

A function gets the template's positional arguments and its named ones, all of them already plain text. Of the templates that are
not in this table some are silent (pipeline/corpus/readers/wikipedia/templates_silent.py), and the others leave a hole: the text has
lost words there that nobody knows.
"""

from __future__ import annotations

import functools
import re

from pipeline.corpus.document import HOLE_TEMPLATE
from pipeline.corpus.readers.slots import PHONES, SLOT
from pipeline.corpus.readers.wikipedia.hidden import hide
from pipeline.corpus.readers.wikipedia.languages import NAMES
from pipeline.corpus.readers.wikipedia.templates_base import Arguments, Named, Rule
from pipeline.corpus.readers.wikipedia.templates_local import LOCAL_RULES, OWN_RULES, by_name
from pipeline.corpus.readers.wikipedia.templates_numbers import NUMBER_RULES, grouped
from pipeline.corpus.readers.wikipedia.templates_silent import PHONETIC, is_silent


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


def _harvard(arguments: Arguments, named: Named) -> tuple[str, str]:
    """The authors, and the year, of a citation that is part of the sentence."""
    if not arguments:
        return "", ""
    authors, year = arguments[:-1], arguments[-1]
    if not authors:
        return year, ""
    names = (
        ", ".join(authors[:-1]) + (" & " if len(authors) > 1 else "") + authors[-1]
        if len(authors) < 4
        else f"{authors[0]} et al."
    )
    return names, year


def _harvard_text(arguments: Arguments, named: Named) -> str:
    names, year = _harvard(arguments, named)
    return f"{names} ({year})" if year else names


def _harvard_bare(arguments: Arguments, named: Named) -> str:
    return " ".join(filter(None, _harvard(arguments, named)))


def _audio(arguments: Arguments, named: Named) -> str:
    """`{{Audio|x.ogg|Alabama}}` says its label; without one it is a button."""
    return "" if len(arguments) < 2 or arguments[1].lower() in ("listen", "help", "pronunciation", "audio") else arguments[1]


def _nihongo(arguments: Arguments, named: Named) -> str:
    """`{{nihongo|Aikido|合気道|aikidō}}` says `Aikido (合気道, aikidō)`."""
    first, *others = [*arguments, "", "", "", ""][:5]
    inside = ", ".join(filter(None, others[:3]))
    if not first:
        return inside
    return f"{first} ({inside})" if inside else first


def _chinese(arguments: Arguments, named: Named) -> str:
    """`{{zh|c=中文|p=Zhōngwén}}` says `Chinese: 中文; pinyin: Zhōngwén`."""
    found: list[str] = []
    for keys, label in _CHINESE:
        text = next((named[key] for key in keys if named.get(key)), "")
        if text:
            found.append(f"literally: '{text}'" if label == "literally" else f"{label}: {text}")
    return "; ".join(found)


_CHINESE = (
    (("c",), "Chinese"), (("s",), "simplified Chinese"), (("t",), "traditional Chinese"), (("p", "hp"), "pinyin"), (("w",), "Wade–Giles"),
    (("j",), "Jyutping"), (("cy",), "Cantonese Yale"), (("poj",), "Pe̍h-ōe-jī"), (("l", "lit"), "literally"),
)  # fmt: skip


def _tag(arguments: Arguments, named: Named) -> str:
    """`{{tag|exec}}` says `<exec>...</exec>`, with a second word only its opening, closing or single form."""
    if not arguments or not arguments[0]:
        return ""
    name, kind = arguments[0], (arguments[1] if len(arguments) > 1 else named.get("type", "pair")).lower()[:1]
    inside = " " + named["attribs"] if named.get("attribs") else ""
    forms = {"o": f"<{name}{inside}>", "c": f"</{name}>", "s": f"<{name}{inside} />", "e": f"<{name}{inside} />"}
    return hide(forms.get(kind, f"<{name}{inside}>{named.get('content', '...')}</{name}>"))


def _template_name(arguments: Arguments, named: Named) -> str:
    """`{{tl|convert}}` says `{{convert}}`."""
    return hide("{{" + "|".join(arguments) + "}}") if arguments else ""


def _keys(arguments: Arguments, named: Named) -> str:
    return "+".join(filter(None, arguments))


def _ticker(exchange: str) -> Rule:
    return lambda arguments, named: f"{exchange}: {arguments[0]}" if arguments and arguments[0] else ""


def _verse(arguments: Arguments, named: Named) -> str:
    """`{{bibleverse||Mark|3:25|KJV}}` says `Mark 3:25`."""
    words = [argument for argument in arguments if argument]
    if len(words) > 1 and words[0].isdigit() and not words[1][:1].isdigit():
        words[:2] = [f"{words[0]} {words[1]}"]
    return " ".join(words[:2])


def _music(arguments: Arguments, named: Named) -> str:
    signs = {"flat": "♭", "b": "♭", "sharp": "♯", "#": "♯", "natural": "♮", "doublesharp": "𝄪", "doubleflat": "𝄫"}
    return signs.get(arguments[0].lower(), arguments[0]) if arguments else ""


def _linked(arguments: Arguments, named: Named) -> str:
    """`{{ill|Quitzow (Perleberg)|de|lt=Quitzow}}` says `Quitzow`."""
    return named.get("lt") or FIRST(arguments, named)


def _spoken(arguments: Arguments, named: Named) -> str:
    """`{{IPA|/a/}}` is what the sentence speaks of, `{{IPA|de|ˈalbɛʁt|lang}}` how its subject is pronounced."""
    return PHONES if len(arguments) > 1 else FIRST(arguments, named)


def _foreign(arguments: Arguments, named: Named) -> str:
    """`{{langx|de|Neuland}}` says `German: Neuland`."""
    return _labelled(arguments[0].partition("-")[0])(arguments[1:], named) if arguments else ""


def _marriage(arguments: Arguments, named: Named) -> str:
    """`{{marriage|Mary Todd|1842|1865}}` says `Mary Todd (m. 1842–1865)`."""
    spouse, *rest = [*arguments, ""]
    years = [argument for argument in rest if "=" not in argument and any(map(str.isdigit, argument))]
    return f"{spouse} (m. {'–'.join(years[:2])})" if spouse and years else spouse


def _height(arguments: Arguments, named: Named) -> str:
    """`{{height|ft=6|in=6}}` says `6 ft 6 in`."""
    parts = [f"{named[unit]} {unit}" for unit in ("m", "cm", "ft", "in") if named.get(unit)]
    return " ".join(parts) or HOLE_TEMPLATE


def _edition(arguments: Arguments, named: Named) -> str:
    """`{{Escyr|2022||2022 contest}}` says `2022 contest`, `{{nfly|2019}}` `2019`."""
    return next((argument for argument in arguments[2:] if argument), FIRST(arguments, named))


def _ship(arguments: Arguments, named: Named) -> str:
    return " ".join(arguments[:2])


def _of_prefix(prefix: str) -> Rule:
    return lambda arguments, named: f"{prefix} {arguments[0]}" if arguments else prefix


FIRST, SECOND, DASH, QUOTE = _argument(0), _argument(1), _constant(" – "), _constant("'")

_FIRST = """
    nowrap nobr small smaller big larger large em strong bold italic italics sc smallcaps small_caps sup sub mono mvar math var tt kbd
    code codett samp underline u abbr tooltip h:title sic typo not_a_typo notatypo as_written linktext
    plainlist noitalic uc lc ucfirst lcfirst gloss flag flagu flagcountry visible_anchor vanchor block_indent color script unicode
    resize center poem langnf nobold nq nastaliq midsize vr xt xtn lj nihongo2 asiantitle zh-hans zh-hant polytonic
    red_link redlink no_break qi w ws stn serif sans-serif esccnty pie plural_form
    script/arabic script/hebrew script/hebrew_sbl script/tibetan ipaslink longitem
"""

RULES: dict[str, Rule] = {
    **LOCAL_RULES,
    **NUMBER_RULES,
    **dict.fromkeys((name.replace("_", " ") for name in _FIRST.split()), FIRST),
    **dict.fromkeys(
        [
            "lang",
            "hebrew word",
            "wikt-lang",
            "colored",
            "fontcolor",
            "wiktionary inline",
            "sort",
            "native name",
            "native phrase",
            "langr",
            "raise",
            "lower",
        ],
        SECOND,
    ),
    **dict.fromkeys(["transl", "transliteration", "rtl-lang", "tlit"], _last),
    **dict.fromkeys(["quote", "quotation", "cquote", "blockquote", "bquote", "quote box2", "centered pull quote"], _quotation),
    **dict.fromkeys(["circa", "c.", "ca."], _around("c. ")),
    **dict.fromkeys(["floruit", "fl.", "fl"], _around("fl. ")),
    **dict.fromkeys(["reign", "r."], lambda arguments, named: "r. " + "–".join(arguments[:2])),
    **dict.fromkeys(["chem", "chem2", "ce", "simplenuclide", "nuclide"], _joined("")),
    **dict.fromkeys(["sortname"], _joined(" ")),
    **dict.fromkeys(["harvtxt", "harvcoltxt", "citet"], _harvard_text),
    **dict.fromkeys(["harvnb", "harvard citation no brackets"], _harvard_bare),
    **dict.fromkeys(["audio", "pronunciation audio"], _audio),
    **dict.fromkeys(["nihongo", "nihongo3"], _nihongo),
    **dict.fromkeys(["zh", "zh-cp", "zh-sp"], _chinese),
    **dict.fromkeys(["tag", "xtag"], _tag),
    **dict.fromkeys(["tl", "tlx", "tlc", "tlp", "template link"], _template_name),
    **dict.fromkeys(["keypress", "key press", "key", "key top"], _keys),
    **dict.fromkeys(["bibleverse", "bible verse", "bibleref", "bibleref2", "bible", "bibleverse-lb", "bv"], _verse),
    **dict.fromkeys(["music"], _music),
    **dict.fromkeys(["née", "nee"], _around("née ")),
    **dict.fromkeys(["né", "ne"], _around("né ")),
    **{
        name.lower(): _ticker(name) for name in "NYSE NASDAQ LSE TSE TSX AMEX BSE NSE SEHK HKEX SGX ASX JSE BMV SIX KRX".split()
    },
    **dict.fromkeys(["nyse was", "nasdaq was"], _ticker("formerly")),
    **dict.fromkeys(
        ["us patent", "uspatent"], lambda arguments, named: f"U.S. Patent {grouped(arguments[0])}" if arguments else ""
    ),
    **dict.fromkeys(["ill", "interlanguage link", "illm", "interlanguage link multi", "ill-wd"], _linked),
    **dict.fromkeys(["nfly", "nfl year", "nbay", "mlby", "nhly", "mlsy", "cfby", "escyr"], _edition),
    **dict.fromkeys(
        ["post-nominals", "postnominals", "post-nom"],
        lambda arguments, named: named.get("post-noms") or " ".join(filter(None, arguments)),
    ),
    **dict.fromkeys(["trans", "translation"], _around("transl. ")),
    **dict.fromkeys(["update after", "update-after"], lambda arguments, named: named.get("text", "")),
    **dict.fromkeys(["mp"], _joined("")),
    **dict.fromkeys(["ctrl"], lambda arguments, named: arguments[-1] if arguments else ""),
    **dict.fromkeys(["nbs"], _constant(" ")),
    **dict.fromkeys(["in lang"], _constant("")),
    **{
        name.lower(): _constant(name)
        for name in ("CO2", "H2O", "CH4", "NOx", "N2O", "SO2", "NH3", "H2", "N2", "O2", "O3", "H2SO4", "CaCO3")
    },
    "langx": _foreign,
    "marriage": _marriage,
    "height": _height,
    **{
        name: _constant(sign)
        for name, sign in (("carbon", "C"), ("hydrogen", "H"), ("oxygen", "O"), ("eqm", " ⇌ "), ("sup2", "²"), ("x", "×"))
    },
    **dict.fromkeys(
        ["hlist", "unbulleted list", "ubl", "ublist", "vunblist", "flatlist", "cslist", "comma separated entries"],
        _joined(", "),
    ),
    **dict.fromkeys(
        ["dash", "snd", "snds", "spnd", "sndash", "ndash", "spaced ndash", "spaced en dash", "spaced endash", "en dash space"],
        DASH,
    ),
    **dict.fromkeys(["mdash", "em dash", "emdash", "mdashb", "—", "emd", "long dash", "x-mdash"], _constant("—")),
    **dict.fromkeys(["endash", "en dash", "ndashb", "nbndash", "–"], _constant("–")),
    **dict.fromkeys(["spaced em dash", "spaced emdash", "smdash", "spcd mdash"], _constant(" — ")),
    **dict.fromkeys(["' \"", "' ”"], _constant("'\"")),
    **dict.fromkeys(["\" '", "“ '"], _constant("\"'")),
    **dict.fromkeys(['-"', "-'"], _constant("")),
    **dict.fromkeys(["'", "apostrophe", "`"], QUOTE),
    **dict.fromkeys(
        ["nbsp", "space", "spaces", "thinsp", "thin space", "·", "dot", "dot separator", "middot", "•", "bull", "clear"],
        _constant(" "),
    ),
    **dict.fromkeys(["angbr", "angle bracket", "grapheme"], _around("⟨", "⟩")),
    "ipa": _spoken,
    **dict.fromkeys(["ipalink", "ipa link", "ipablink", "ipa text"], FIRST),
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


_NAMED = re.compile(r"\s*[\w -]{1,30}\s*")
_LANGUAGE = re.compile(r"lang-([a-z]{2,3})(?:-[a-z-]+)?")


def render(content: str, language: str = "en") -> str:
    """What the template with this content (between the braces) adds to the text: words, a slot (pipeline/corpus/readers/slots.py) or a hole.

    Args:
        content: with the templates inside it already rendered.
        language: of the wiki.
    """
    head, *rest = content.split("|")
    name, behind, rule = (_looked_up if len(head) <= _LONGEST_HEAD else _look_up)(head, language)
    if behind is not None:
        rest.insert(0, behind)
    if name == "formatnum":
        number = rest[0].strip() if rest else ""
        return grouped(number, language) or SLOT
    if rule is None:
        said = by_name(name, head.strip(), rest[0].strip() if rest else "", language)
        if said is not None:
            return said
        spoken = _LANGUAGE.fullmatch(name)
        if spoken is None:
            return _unknown(name, rest, content)
        rule = _labelled(spoken[1]) if language == "en" else FIRST
    arguments: Arguments = []
    named: Named = {}
    for part in rest:
        key, equals, value = part.partition("=")
        if equals and _NAMED.fullmatch(key):
            named[key.strip().lower()] = value.strip()
        else:
            arguments.append(part.strip())
    for place in range(1, 4):  # `1=` names a positional argument, for values that hold an equals sign
        if str(place) in named and len(arguments) == place - 1:
            arguments.append(named[str(place)])
    return rule(arguments, named) or SLOT


def _look_up(head: str, language: str) -> tuple[str, str | None, Rule | None]:
    """Of what stands before a template's first bar: the name, what follows a colon behind it (as in formatnum:12), and its rule."""
    name = head.strip().lower().replace("_", " ")
    name, colon, _ = name.partition(":") if not name.startswith(("h:", "#")) else (name, "", "")
    return name, head.partition(":")[2] if colon else None, OWN_RULES.get(language, {}).get(name) or RULES.get(name)


_looked_up = functools.lru_cache(maxsize=1 << 13)(_look_up)  # a page has few names, and all pages have the same ones
_LONGEST_HEAD = 80  # characters that are remembered


def _labelled(code: str) -> Rule:
    """`{{lang-fr|île}}` says `French: île`."""

    def rule(arguments: Arguments, named: Named) -> str:
        text = FIRST(arguments, named)
        label = NAMES.get(code)
        return f"{label}: {text}" if text and label and named.get("label") not in ("no", "none") else text

    return rule


def _unknown(name: str, rest: list[str], content: str) -> str:
    if PHONETIC.fullmatch(name):
        return PHONES
    if is_silent(name, rest) or "\n" in content.strip():  # a box is written over several lines
        return SLOT
    return HOLE_TEMPLATE
