"""Rendering of templates inside sentences.

Most templates are data (templates.txt), some are functions (template_functions.py). Others are
rendered by their form. A single argument is shown, as are the text of `{{x|en|text}}` and the
components of a date or measure. A template without arguments directly after a word is a note
(`word{{when}}`). All others leave a placeholder, because unknown words are missing; sentences with
a placeholder are dropped.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cloze.core.words import UNSPACED_LETTER
from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia import template_functions, template_numbers
from cloze.pipeline.corpus.readers.encyclopedia.elements import GAP, PHONES
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import ENGLISH_NAMES
from cloze.pipeline.corpus.readers.encyclopedia.template_functions import by_name, first, labelled
from cloze.pipeline.corpus.readers.encyclopedia.template_numbers import (
    Arguments,
    Keywords,
    convert,
    group_digits,
)

Rule = Callable[..., str]

_DATA = Path(__file__).with_name("templates.txt")
_SECTION = re.compile(r"\[([a-z-]+|\*)\]")
_SILENT, _PRONUNCIATION = "!silent", "!phones"

# Families of names, in any language, whose removal loses no words.
_BEGINNINGS = re.compile(
    r"(?:cite|citation|vcite|sfn|harv(?!txt|nb|coltxt)|efn|refn|notelist|reflist|refbegin|refend|"
    r"ref |infobox|taxobox|navbox|pp-|use |"
    r"main(?:$| )|see also|authority|#tag:ref|flagicon|flagdeco|subst:|defaultsort|displaytitle|"
    r"webarchive|"
    r"citar? |cytuj|cituj|ref-[a-z]{2,3}$|portal |refimprove|inflation[-/]fn|audio[- ]icon)"
)
_ENDINGS = re.compile(
    r".* (?:needed|inline|icon|source\??|span|required|begin|end|stub|box)|.*(?:-inline|-stub|"
    r"[?？؟])|.*(?:verification|verify|citation|footnote|disputed).*"
)
_DATED = re.compile(r"\s*(?:date|datum|fecha|дата|تاريخ|data)\s*=")
PHONETIC = re.compile(r"ipac?-.*|(?:ipa|lfe|xpa)-.*")

_NAMED = re.compile(r"\s*[\w -]{1,30}\s*")
_LANGUAGE = re.compile(r"lang-([a-z]{2,3})(?:-[a-z-]+)?\d?")
_FOREIGN_CODE = re.compile(r"[a-z]{2,3}")
_COMPUTED = re.compile(
    r"#|population|metadata|metadaten|einwohner|data |inflation|age|alter|wikidata|current|local|"
    r"page|site|number"
)
_PLAIN_WORD = re.compile(r"[^\W\d_]{2,}")
_NO_WORDS = re.compile(
    r"\.(?:ogg|oga|wav|mp3|jpe?g|png|gif|svg|webm|pdf)\b|https?:|www\.|[=<>{}\[\]]", re.IGNORECASE
)
_FIGURE = re.compile(r"[−–+-]?\d[\d.,\u00a0  ]*(?:[-–]\d[\d.,]*)?")
_UNIT = re.compile(
    r"(?:[kKMGTmcµμdh]?(?:m|g|l|L|W|Wh|Hz|B|b|N|J|Pa|V|A|s|mol|eV)[23²³]?|km/h|m/s|ha|%|‰|°[CF]?|"
    r"[CFK]|mi|ft|in|yd|lb|oz|t|h|min)"
)
_LONGEST_WORDING = 200  # characters
_ENDS = frozenset('.!?。！？।…"”’»)」』')


def render(content: str, language: str = "en", before: str = "") -> str:
    """Return the text for a template: words, a gap (encyclopedia/elements.py) or a placeholder.

    Args:
        content: text between the braces, with inner templates rendered.
        language: language of the wiki.
        before: preceding character; empty at the beginning.
    """
    head, *parameters = content.split("|")
    look_up = _look_up_cached if len(head) <= _LONGEST_HEAD else _look_up
    name, after_colon, rule = look_up(head, language)
    if after_colon is not None:
        parameters.insert(0, after_colon)
    if name == "formatnum":
        number = parameters[0].strip() if parameters else ""
        return group_digits(number, language) or GAP
    if isinstance(rule, str):
        return rule
    if rule is None:
        text = by_name(name, head.strip(), parameters[0].strip() if parameters else "", language)
        if text is not None:
            return text
    arguments: Arguments = []
    keywords: Keywords = {}
    for argument in parameters:
        key, equals, value = argument.partition("=")
        if equals and _NAMED.fullmatch(key):
            keywords[key.strip().lower()] = value.strip()
        else:
            arguments.append(argument.strip())
    for key in ("1", "2", "3"):  # positional arguments whose values contain an equals sign
        if key in keywords and len(arguments) == int(key) - 1:
            arguments.append(keywords[key])
    if rule is not None:
        return rule(arguments, keywords) or GAP
    if match := _LANGUAGE.fullmatch(name):
        text = first(arguments[:1])
        return (labelled(match[1], text, keywords) if language == "en" else text) or GAP
    if is_silent(name, parameters) or "\n" in content.strip():  # a box spans several lines
        return GAP
    return _by_shape(name, head.strip(), arguments, keywords, before)


def _by_shape(name: str, shown: str, arguments: Arguments, keywords: Keywords, before: str) -> str:
    """Return the text for an unknown template, as far as its arguments tell."""
    follows_word = before in (",", ";") or (before.isalnum() and not UNSPACED_LETTER.match(before))
    if before in _ENDS or before == GAP:
        return HOLE_TEMPLATE  # after a sentence, where placeholders are removed
    if not arguments and not keywords:
        if not _PLAIN_WORD.search(name) and not any(map(str.isdigit, name)):
            return GAP  # a mark
        return GAP if follows_word and not shown.isupper() else HOLE_TEMPLATE
    if _COMPUTED.match(name) or not all(map(_is_wording, arguments)):
        return HOLE_TEMPLATE
    texts = list(filter(None, arguments))
    if not texts:
        return HOLE_TEMPLATE
    first_text, second_text = texts[0], "".join(texts[1:2])
    is_word = _PLAIN_WORD.search(first_text) is not None
    if len(texts) == 1 and not is_word:
        return GAP if follows_word else HOLE_TEMPLATE  # number of a note, or without a unit
    if len(texts) == 1 and not (keywords and follows_word):
        return first_text
    if len(texts) == 2 and _is_language(first_text):
        return second_text
    if len(texts) > 2 and is_word and _is_language(second_text):
        return first_text  # a link to another wiki
    if _FIGURE.fullmatch(first_text):
        is_day = len(texts) == 3 and len(first_text) < 3 and texts[2].isdigit()
        if is_day and _PLAIN_WORD.fullmatch(second_text):
            return " ".join(texts)  # a date
        if _UNIT.fullmatch(second_text):
            return f"{first_text} {second_text}"
    return HOLE_TEMPLATE


def _is_wording(argument: str) -> bool:
    """Return True if an argument may be a part of a sentence: no file, link or markup."""
    return (
        len(argument) <= _LONGEST_WORDING
        and HOLE_TEMPLATE not in argument
        and _NO_WORDS.search(argument) is None
    )


def _is_language(code: str) -> bool:
    return code in ENGLISH_NAMES and _FOREIGN_CODE.fullmatch(code) is not None


def is_silent(name: str, rest: Sequence[str]) -> bool:
    """Return True if a template shows nothing that a sentence needs, judging by its name.

    Args:
        name: lower-case name, with blanks for underscores.
        rest: unparsed arguments. A date argument is typical of requests by editors.
    """
    return (
        _BEGINNINGS.match(name) is not None
        or _ENDINGS.fullmatch(name) is not None
        or any(_DATED.match(argument) for argument in rest)
    )


def is_pronunciation(name: str) -> bool:
    """Return True if a template of this lower-case name shows a pronunciation."""
    return PHONETIC.fullmatch(name) is not None or _pattern(name, "en") == _PRONUNCIATION


def _look_up(head: str, language: str) -> tuple[str, str | None, Rule | str | None]:
    """Return the name of a template, the text after a colon (formatnum:12), and its rule."""
    name = head.strip().lower().replace("_", " ")
    name, colon, _ = name.partition(":") if not name.startswith(("h:", "#")) else (name, "", "")
    pattern = _pattern(name, language)
    rule: Rule | str | None = None if pattern is None else _compile(pattern, language)
    if rule is None and PHONETIC.fullmatch(name):
        rule = PHONES
    return name, head.partition(":")[2] if colon else None, rule


# A page has few names, and most pages have the same ones.
_look_up_cached = functools.lru_cache(maxsize=1 << 13)(_look_up)
_LONGEST_HEAD = 80  # characters; longer heads are not cached


# Template data

_SHORTEST_BORROWED = 4  # letters


def _pattern(name: str, language: str) -> str | None:
    sections, borrowed = _tables()
    return sections.get(language, {}).get(name) or sections["*"].get(name) or borrowed.get(name)


@functools.cache
def _tables() -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the patterns by section and name, and those usable in all languages, by name."""
    sections: dict[str, dict[str, str]] = {"*": {}}
    current = sections["*"]
    names: list[str] = []
    for line in _DATA.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        if match := _SECTION.fullmatch(line):
            current = sections.setdefault(match[1], {})
            continue
        aliases, arrow, pattern = line.partition(" => ")
        names += [name.strip() for name in aliases.split(" | ")]
        if arrow:
            pattern = (
                pattern.replace("␣ ", " ").replace(" ␣", " ").replace("␣", " ").replace("⏎", "\n")
            )
            current.update(dict.fromkeys(names, pattern))
            names = []
    borrowed: dict[str, str] = {}
    for patterns in sections.values():
        for name, pattern in patterns.items():
            if len(name) >= _SHORTEST_BORROWED:
                borrowed.setdefault(name, pattern)
    return sections, borrowed


_PARTS = re.compile(r"\[([^\[\]]*)\]|\{([^{}]+)\}")


def _compile(pattern: str, language: str) -> Rule | str:
    """Return the function of a pattern in one language, or its text if it is constant."""
    if pattern == _SILENT:
        return GAP
    if pattern == _PRONUNCIATION:
        return PHONES
    if pattern.startswith("!"):
        name, _, text = pattern[1:].partition(" ")
        function: Rule = getattr(template_functions, name, None) or getattr(template_numbers, name)
        if function is convert:
            return functools.partial(convert, language=language)
        return (
            (lambda arguments, keywords: function(arguments, keywords, text)) if text else function
        )
    if pattern == "{1}":
        return _first
    if "{" not in pattern:
        return pattern

    segments = _split_pattern(pattern)
    has_slots = any(kind == "slot" for kind, _ in segments)

    def rule(arguments: Arguments, keywords: Keywords) -> str:
        text, is_empty = _fill(segments, arguments, keywords, language)
        return "" if is_empty and has_slots else text

    return rule


_Parts = list[tuple[str, Any]]


def _split_pattern(pattern: str) -> _Parts:
    """Split a pattern into texts, slots and optional pieces, which are patterns again."""
    segments: _Parts = []
    position = 0
    for match in _PARTS.finditer(pattern):
        segments.append(("text", pattern[position : match.start()]))
        segments.append(
            ("slot", match[2]) if match[1] is None else ("optional", _split_pattern(match[1]))
        )
        position = match.end()
    return [*segments, ("text", pattern[position:])]


def _fill(
    parts: _Parts, arguments: Arguments, keywords: Keywords, language: str
) -> tuple[str, bool]:
    """Return the text of a pattern, and whether its slots outside optional pieces are all empty."""
    pieces: list[str] = []
    is_empty = True
    for kind, segment in parts:
        if kind == "text":
            pieces.append(segment)
        elif kind == "slot":
            pieces.append(_value(segment, arguments, keywords, language))
            is_empty &= not pieces[-1]
        else:
            text, is_unfilled = _fill(segment, arguments, keywords, language)
            pieces.append("" if is_unfilled else text)
    return "".join(pieces), is_empty


def _first(arguments: Arguments, keywords: Keywords) -> str:
    return keywords.get("1", arguments[0] if arguments else "")


def _value(slot: str, arguments: Arguments, keywords: Keywords, language: str) -> str:
    """Return the value of a slot such as `2/first:number` for the given arguments."""
    choices, colon, modifier = slot.partition(":")
    for choice in choices.split("/"):
        if choice == "all":
            return (modifier if colon else " ").join(filter(None, arguments))
        if choice.isdigit():
            text = keywords.get(
                choice, arguments[int(choice) - 1] if int(choice) <= len(arguments) else ""
            )
        elif choice in ("first", "last"):
            text = first(arguments if choice == "first" else arguments[::-1])
        else:
            text = choice.strip('"') if choice.startswith('"') else keywords.get(choice, "")
        if text:
            return group_digits(text, language) if modifier == "number" else text
    return ""
