"""Rendering of templates inside sentences.

Most templates are data (templates.txt), some are functions (template_functions.py). Others are
rendered by their place and form. At the start of a line they are boxes, such as hatnotes. After a
word and a blank, a single argument is shown, as are the text of `{{x|en|text}}` and the components
of a date or measure. A template without arguments directly after a word is a note (`word{{when}}`).
All others leave a placeholder, because unknown words are missing; sentences with a placeholder are
dropped.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from cloze.core.words import UNSPACED_LETTER, without_marks
from cloze.pipeline.corpus.document import HOLE_TEMPLATE
from cloze.pipeline.corpus.readers.encyclopedia import template_functions, template_numbers
from cloze.pipeline.corpus.readers.encyclopedia.elements import (
    GAP,
    PHONES,
    ends_word,
    escape_literals,
    touch,
)
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_names import (
    ENGLISH_NAMES,
    alternatives,
    read_names,
)
from cloze.pipeline.corpus.readers.encyclopedia.template_functions import by_name, first, labelled
from cloze.pipeline.corpus.readers.encyclopedia.template_numbers import (
    Arguments,
    Keywords,
    group_digits,
)

Rule = Callable[..., str]

_DATA = Path(__file__).with_name("templates.txt")
_PREFIXES = read_names("template namespaces")
_SECTION = re.compile(r"\[([a-z-]+|[*:])\]")
_PRONUNCIATION = "!phones"
_CONSTANTS = {"!silent": GAP, _PRONUNCIATION: PHONES, "!nothing": "", "!hole": HOLE_TEMPLATE}

_BEGINNINGS = re.compile(f"(?:{alternatives('silent template beginnings')})")
_ENDINGS = re.compile(alternatives("silent template endings"))
_DATED = re.compile(r"\s*(?:date|datum|fecha|дата|تاريخ|data)\s*=")
PHONETIC = re.compile(r"ipac?-.*|(?:ipa|lfe|xpa)-.*")

_NAMED = re.compile(r"\s*[\w -]{1,30}\s*")
_LANGUAGE = re.compile(r"lang-([a-z]{2,3})(?:-[a-z-]+)?\d?")
_FOREIGN_CODE = re.compile(r"[a-z]{2,3}")
_COMPUTED = re.compile(alternatives("computed templates"))
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
# A word, or a comma or dash behind one, and the opening quotes and brackets of the next.
_INSIDE = re.compile(r"[^\W_][\"'’”»)\]%°]*(?:[,;:–—-]?\s+[\"'“«„‘(\[]*|[(\[“«„（「『《、，])\Z")


# What may stand before a box on its line: list marks, quotes, tags, other boxes.
_ABOVE = re.compile(rf"(?:[\s*#:;'{GAP}{HOLE_TEMPLATE}]|<[^<>]*>)*")
_NEAR = 80  # characters looked at before a template


def open_line(pieces: Sequence[str], bracket: str) -> str:
    """Return the end of the text on the open line; empty if only boxes and marks precede.

    Args:
        pieces: text since the last open bracket.
        bracket: that bracket, empty at the top: inside of a link or template no line begins.
    """
    line = ""
    for piece in reversed(pieces):
        line = piece + line
        if "\n" in piece or len(line) > _NEAR:
            line = line[line.rfind("\n") + 1 :]
            break
    else:
        line = bracket + line
    return "" if _ABOVE.fullmatch(line) else line


def render(content: str, language: str = "en", line: str = "", after: str = "") -> str:
    """Return the text for a template: words, a gap (encyclopedia/elements.py) or a placeholder.

    Args:
        content: text between the braces, with inner templates rendered.
        line: text before the template on its line; empty at the beginning.
        after: following character; empty at the end.
    """
    head, *parameters = content.split("|")
    look_up = _look_up_cached if len(head) <= _LONGEST_HEAD else _look_up
    name, after_colon, rule, apart = look_up(head, language)
    if after_colon is not None:
        parameters.insert(0, after_colon)
    if isinstance(rule, str):
        if name == "!" and line[:1] not in ("", "|", "!", "["):
            return escape_literals("|")  # outside of tables and links it is text
        return _apart(rule, line, after, " " if rule[:1].isdigit() else None)
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
        return _apart(rule(arguments, keywords), line, after, apart) or GAP
    if match := _LANGUAGE.fullmatch(name):
        text = first(arguments[:1])
        return (labelled(match[1], text, keywords) if language == "en" else text) or GAP
    if is_silent(name, parameters) or "\n" in content.strip():  # a box spans several lines
        return GAP
    if after_colon is not None:  # an unknown parser function, or a page
        return HOLE_TEMPLATE
    return _by_shape(name, head.strip(), arguments, keywords, line, after)


def _apart(text: str, line: str, after: str, gap: str | None) -> str:
    """Keep words and numbers of a template apart from those beside it: `1{{frac|1|4}}`.

    Args:
        gap: a blank, GAP for a button that shows nothing after a word, or None for marking, which
            may stand inside a word.
    """
    if gap is None or not text:
        return text
    if touch(line.rstrip("'")[-1:], text[0]):  # bold and italics aside
        text = gap if gap == GAP else f" {text}"
    return f"{text} " if text[-1].isdigit() and after.isdigit() else text


def _by_shape(
    name: str, shown: str, arguments: Arguments, keywords: Keywords, line: str, after: str
) -> str:
    """Return the text for an unknown template, as far as its place and arguments tell."""
    before = line[-1:]
    follows_word = before in (",", ";") or (
        ends_word(line[-2:-1]) and ends_word(before) and not UNSPACED_LETTER.match(before)
    )  # one letter is a prefix, such as the Arabic "and"
    if not before or before in _ENDS or before == GAP:
        return HOLE_TEMPLATE  # a box, or after a sentence, where placeholders are removed
    if not arguments and not keywords:
        if not _PLAIN_WORD.search(name) and not any(map(str.isdigit, name)):
            return GAP  # a mark
        return GAP if follows_word and not shown.isupper() else HOLE_TEMPLATE
    if _COMPUTED.match(name) or not all(map(_is_wording, arguments)):
        return HOLE_TEMPLATE
    texts = list(filter(None, arguments))
    if not texts:
        return HOLE_TEMPLATE
    is_number = template_functions.ROMAN.fullmatch(texts[0]) is not None  # of a century
    is_word = not is_number and _PLAIN_WORD.search(without_marks(texts[0])) is not None
    if len(texts) == 1 and not is_word:
        # the number of a note, or without a unit
        return GAP if follows_word and not is_number else HOLE_TEMPLATE
    text = "" if len(texts) == 1 and keywords and follows_word else _wording(texts, is_word)
    is_inside = UNSPACED_LETTER.match(before) or _INSIDE.search(without_marks(line))
    return text if text and is_inside and not touch(text[-1], after) else HOLE_TEMPLATE


def _wording(texts: Sequence[str], is_word: bool) -> str:
    """Return what the arguments of an unknown template say; "" if they do not tell."""
    first_text, second_text = texts[0], "".join(texts[1:2])
    if len(texts) == 1:
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
    return ""


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


def _look_up(head: str, language: str) -> tuple[str, str | None, Rule | str | None, str | None]:
    """Return the name of a template, the text after a colon, its rule, and the gap beside it."""
    name = head.strip().lower().replace("_", " ")
    name, colon, _ = name.partition(":") if not name.startswith(("h:", "#")) else (name, "", "")
    name = name.strip() if colon else name
    if colon and name in _PREFIXES:
        return _look_up(head.partition(":")[2], language)
    pattern = _tables()[0][":"].get(name) if colon else _pattern(name, language)
    rule: Rule | str | None = None if pattern is None else _compile(pattern, language)
    if rule is None and not colon and PHONETIC.fullmatch(name):
        rule = PHONES
    is_marking = pattern is None or pattern.startswith(_MARKING) or bool(colon)
    apart = None if is_marking else GAP if pattern == "!audio" else " "
    return name, head.partition(":")[2] if colon else None, rule, apart


# Patterns that may stand inside a word or formula.
_MARKING = ("{", "[{", "<", "!chemical", "!formula")

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
    sections: dict[str, dict[str, str]] = {"*": {}, ":": {}, "en": {}}
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
            pattern = re.sub("␣ | ?␣", " ", pattern).replace("⏎", "\n")
            if not pattern.isalnum() and "{" not in pattern and pattern[0] not in "!|":
                pattern = escape_literals(pattern)  # no markup, whatever is beside
            current.update(dict.fromkeys(names, pattern))
            names = []
    # English words are no text in other languages.
    borrowed: dict[str, str] = dict.fromkeys(sections["en"], "!hole")
    for language, patterns in sections.items():
        for name, pattern in patterns.items():
            if len(name) >= _SHORTEST_BORROWED and language != ":":
                borrowed.setdefault(name, pattern)
    return sections, borrowed


_PARTS = re.compile(r"\[([^\[\]]*)\]|\{([^{}]+)\}")


def _compile(pattern: str, language: str) -> Rule | str:
    """Return the function of a pattern in one language, or its text if it is constant."""
    if pattern in _CONSTANTS:
        return _CONSTANTS[pattern]
    if pattern.startswith("!"):
        name, _, text = pattern[1:].partition(" ")
        function: Rule = getattr(template_functions, name, None) or getattr(template_numbers, name)
        options = {"text": text} if text else {}
        if "language" in inspect.signature(function).parameters:
            options["language"] = language
        return functools.partial(function, **options) if options else function
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
