"""Masking of personal data: e-mail and IP addresses, telephone, card and account numbers."""

from __future__ import annotations

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from cloze.core.words import UNSPACED_LETTER
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.prose import alternatives
from cloze.pipeline.corpus.steps.base import CleaningResult, CleaningStep, RemovedText, StepFunction
from cloze.pipeline.corpus.steps.card_numbers import (
    BETWEEN,
    LABELS,
    LISTS,
    OTHER_NUMBERS,
    Span,
    cards,
    ibans,
)

Kind = Literal["email", "phone", "ip", "card", "iban"]
_SEARCHED: tuple[Kind, ...] = ("email", "iban", "card", "ip", "phone")  # in this order
REASON = "personal_data"


class PersonalDataOptions(CorpusOptions):
    """Options of the masking of personal data."""

    main: ClassVar[tuple[str, str]] = ("mask_personal_data", "a kind, such as email")

    mask_personal_data: tuple[Kind, ...] = ()
    """Kind of personal data to replace by a token such as <email>: email, phone, ip, card or iban.
    Repeatable."""

    personal_data_allowed: int | None = Field(default=None, ge=0)
    """Drop documents with more than this many occurrences. Default: never."""

    def personal_tokens(self) -> dict[Kind, str]:
        """Return the replacement of each kind that is masked, in search order."""
        return {kind: f"<{kind}>" for kind in _SEARCHED if kind in self.mask_personal_data}


_LOCAL = r"[\w+%-]{1,64}(?:[.'’&][\w+%-]{1,64}){0,8}"
_LABEL = r"[^\W_](?:[^\W_]|-(?=[\w-])){0,62}"
_TOP = r"(?:[^\W\d_]{2,24}|xn--[a-z\d-]{2,59})"
_EMAIL = rf"(?<![\w.+%@-]){_LOCAL}@(?:{_LABEL}\.){{1,8}}{_TOP}(?![\w-]|\.\w)"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = re.compile(rf"(?<![\w.:/-])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w-]|\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}(?:[0-9a-fA-F]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:]|"
    r"\.\w)"
)
# Words before four dotted numbers that make them a version or a section.
_IS_VERSION = re.compile(
    rf"(?:\b(?:{alternatives(LISTS, 'versions')})|[§#]|"
    rf"{alternatives(LISTS, 'versions in other languages')})[\s.:#/]{{0,3}}$",
    re.IGNORECASE,
)
_IS_ADDRESS = re.compile(
    rf"\b(?:{alternatives(LISTS, 'addresses')})\b\W{{0,4}}(?:\w{{0,8}}\W{{1,4}}){{0,2}}$",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"\d\.\d{1,3}\.\d")  # quick tests
_COLONS = re.compile(r"::|:[0-9a-fA-F]{1,4}:")
_SHORT_IPV4 = 9  # characters; shorter ones such as `1.2.10.4` need a word that says address
_LOW_OCTET = 12  # so do low ones such as `10.10.10.10`, which may be the metre of a hymn

# Digits separated only by characters that occur in telephone numbers.
_MAYBE_PHONE = re.compile(r"\d(?:(?:\.(?!\s)|[\s()\-–/]){0,3}\d){6,15}")
_DECIMAL = re.compile(r"\d+\.\d+")
_IS_NUMBER = re.compile(rf"\b(?:{OTHER_NUMBERS}|ein)(?:[ -]1[03])?{BETWEEN}", re.IGNORECASE)
_IS_LABELLED = re.compile(rf"\b(?:{LABELS})(?:[ -]1[03])?{BETWEEN}", re.IGNORECASE)
_IS_DATE = re.compile(  # also years, and frequencies such as 900/1800/1900
    r"(?:1\d|20)\d\d\s?[-–/]\s?(?:1\d|20)\d\d|(?:1\d|20)\d\d([-./])\d\d?\1\d\d?"
    r"|\d\d?([-./])\d\d?\2(?:1\d|20)\d\d|(?:\d{3,4}/){2,}\d{3,4}"
)
_IS_COUNT = re.compile(r"\d\d?(?:[ .]\d{3}){2,}")
_CONTEXT = 40  # characters before a number that are examined
_WORDS = 4  # the last of them, of which one announces a number
_INSIDE_CONTEXT = 24  # characters, in scripts without spaces
_NEXT = 6  # characters at most between a number and the next one of a list

_WHOLE = frozenset(" ".join(LISTS["announcements"]).split())
_STEMS = tuple(word[:-1] for word in _WHOLE if word.endswith("-"))
# Scripts without spaces, or with prefixes of a letter as Arabic: the word may stand inside another.
_INSIDE = tuple(word for word in _WHOLE if word >= "\u0590")
_WORD = re.compile(r"[a-z\u00aa-\u058f\u1e00-\u1fff]+")


def _announces(before: str, words: int) -> bool:
    """Return whether one of the last words announces a number; a digit ends what it announces."""
    tail = re.split(r"\d", before.lower())[-1]
    last = _WORD.findall(tail)[-words:]
    return (
        not _WHOLE.isdisjoint(last)
        or any(word.startswith(_STEMS) for word in last)
        or any(word in tail[-_INSIDE_CONTEXT:] for word in _INSIDE)
    )


REGIONS = dict(entry.split(": ") for entry in LISTS["regions"])


@functools.cache
def _email() -> Any:
    import regex

    return regex.compile(_EMAIL)  # regex's \w includes combining marks, which re's lacks


def emails(text: str) -> Iterator[Span]:
    """Yield the spans of e-mail addresses."""
    for match in _email().finditer(text) if "@" in text else ():
        yield match.span()


def ip_addresses(text: str, context: str) -> Iterator[Span]:
    """Yield the spans of IPv4 and IPv6 addresses; `context` as in `phones`."""
    for match in _IPV4.finditer(text) if _DOTTED.search(text) else ():
        before = context[max(0, match.start() - _CONTEXT) : match.start()]
        plain = len(match[0]) >= _SHORT_IPV4 and max(map(int, match[0].split("."))) > _LOW_OCTET
        if not _IS_VERSION.search(before) and (plain or _IS_ADDRESS.search(before)):
            yield match.span()
    for match in _IPV6.finditer(text) if _COLONS.search(text) else ():
        if _is_ipv6(match[0]):
            yield match.span()


def _is_ipv6(text: str) -> bool:
    """Return True if valid, and neither a time (`10:20:30`) nor a C++ name (`a::b`)."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return len(text) >= 6 and any(character.isdigit() for character in text)


def phones(text: str, context: str, language: str = "en") -> Iterator[Span]:
    """Yield the spans of telephone numbers.

    Numbers without country code follow the rules of the countries of `language`.

    Args:
        context: the text with the letters that touch a number.
    """
    own, _, more = REGIONS.get(language, "US").partition("|")
    position, list_end = 0, -_CONTEXT
    while match := _MAYBE_PHONE.search(text, position):
        position = match.end()
        start = match.start() - (text[match.start() - 1 : match.start()] in {"+", "("})
        candidate = text[start : match.end()].removeprefix("(")
        before, shown = (part[max(0, start - _CONTEXT) : start] for part in (text, context))
        if _IS_DATE.fullmatch(candidate):
            continue
        near = 1 if _IS_COUNT.fullmatch(candidate) else _WORDS
        is_announced = not _IS_LABELLED.search(before) and (
            start - list_end <= _NEXT or _announces(shown, near)
        )
        is_other = (
            candidate.isdigit()  # a bare number may be a count or an id
            or _DECIMAL.fullmatch(candidate)
            or _IS_NUMBER.search(before)
            or before[-1:].isalnum()
            or before.endswith((".", ",", ":", "-", "/", "$", "€", "£", "#", "_", "="))
        )
        if is_other and not is_announced:
            continue
        begin = max(0, start - (not is_announced))  # phonenumbers rejects what touches a letter
        window = text[begin : match.end() + 1]
        best = 0, 0
        for region in (own + more if is_announced else own).split():
            span = _valid_phone(window, region, is_announced) or best
            # another country may see a part of the number
            best = max(best, span, key=lambda span: span[1] - span[0])
            if best[1] - best[0] >= len(match[0]):
                break
        if best[1]:
            yield begin + best[0], begin + best[1]
            position = begin + best[1]
            list_end = position if is_announced else list_end


def _valid_phone(window: str, region: str, is_announced: bool) -> Span | None:
    from phonenumbers import Leniency, PhoneNumberMatcher

    leniency = Leniency.VALID if is_announced else Leniency.STRICT_GROUPING
    for match in PhoneNumberMatcher(window, region, leniency=leniency, max_tries=3):
        opened = match.raw_string.startswith("(") and ")" not in match.raw_string
        return match.start + opened, match.end
    return None


# Letters that touch a number or an address before or after them: of scripts without spaces between
# words, and of Korean particles.
_TOUCHING = re.compile(f"(?:{UNSPACED_LETTER.pattern}|[\uac00-\ud7a3])+")
_LONG_VOWEL = re.compile(r"(?<=\d)ー(?=\d)")  # typed for a hyphen
_DIGIT_OR_AT = re.compile(r"[\d@\uff20]")  # quick test


@functools.cache
def _ascii_forms() -> dict[str, str]:
    """Return the ASCII form of full-width letters and signs, and of all digits, hyphens, blanks."""
    signs = map(chr, range(0x80, 0x20000))
    forms = {sign: str(unicodedata.decimal(sign)) for sign in signs if sign.isdecimal()}
    forms |= {chr(code + 0xFEE0): chr(code) for code in range(0x21, 0x7F)}
    return forms | dict.fromkeys("\u2010\u2011\u2012", "-") | dict.fromkeys(_BLANKS, " ")


_BLANKS = "\u00a0\u2007\u2009\u202f\u3000"
_FIND: dict[Kind, Callable[[str, str, str], Iterator[Span]]] = {
    "email": lambda text, _context, _language: emails(text),
    "card": lambda text, _context, _language: cards(text),
    "iban": lambda text, _context, _language: ibans(text),
    "ip": lambda text, context, _language: ip_addresses(text, context),
    "phone": phones,
}


def mask_text(
    text: str, tokens: Mapping[Kind, str], language: str = "en"
) -> tuple[str, list[Kind]]:
    """Replace the kinds in `tokens`; return the text and the kind of each replacement.

    Letters of scripts without spaces end an address. They are part of one, such as 王@例子.中国,
    only in texts that contain no other address.
    """
    replaced: list[Kind] = []
    if not _DIGIT_OR_AT.search(text):
        return text, replaced
    plain, separated = _search_forms(text)
    # in sequence, so that no kind matches inside the replacement of another
    for kind, token in tokens.items():
        pieces: list[str] = []
        position = 0
        spans = sorted(_FIND[kind](separated, plain, language))
        if kind == "email" and not spans:
            spans = sorted(emails(plain))
        for begin, end in spans:
            if begin >= position:
                pieces += (text[position:begin], token)
                position = end
        if pieces:
            replaced += [kind] * (len(pieces) // 2)
            text = "".join((*pieces, text[position:]))
            plain, separated = _search_forms(text)
    return text, replaced


def _search_forms(text: str) -> tuple[str, str]:
    """Return the text in ASCII forms, and with a stop for each letter that may touch an address.

    Both have the length of the text.
    """
    if text.isascii():
        return text, text
    plain = text
    for sign in set(text) & _ascii_forms().keys():  # few; faster than a look-up of each letter
        plain = plain.replace(sign, _ascii_forms()[sign])
    plain = _LONG_VOWEL.sub("-", plain)
    return plain, _TOUCHING.sub(lambda run: "。" * len(run[0]), plain)


def mask_personal_data(
    document: Document, tokens: Mapping[Kind, str], language: str = "en", allowed: int | None = None
) -> CleaningResult:
    """Replace personal data in the text, title, infobox, URL and id of a document.

    Replacements are counted as `masked_email`, `masked_ip`, …, except those in the id. The personal
    data is not recorded anywhere.

    Args:
        tokens: result of `PersonalDataOptions.personal_tokens`.
        language: language of documents that name none.
        allowed: drop documents with more replacements, counted as `dropped_email`, …. None: never.
    """
    language = document.language or language
    kinds: list[Kind] = []

    def masked(text: str) -> str:
        shown, replaced = mask_text(text, tokens, language)
        kinds.extend(replaced)
        return shown

    url = masked(document.url.replace("%40", "@"))
    changed = replace(
        document,
        id=_mask_id(document.id, tokens, language),
        url=url if kinds else document.url,
        title=masked(document.title),
        paragraphs=tuple(map(masked, document.paragraphs)),
        infobox=tuple(field._replace(value=masked(field.value)) for field in document.infobox),
    )
    if not kinds and changed.id == document.id:
        return CleaningResult(document)
    if allowed is not None and len(kinds) > allowed:
        return CleaningResult(
            None, REASON, tuple(RemovedText(f"dropped_{kind}", tokens[kind]) for kind in kinds)
        )
    removed = tuple(RemovedText(f"masked_{kind}", tokens[kind]) for kind in kinds)
    return CleaningResult(changed, None, removed)


def _mask_id(name: str, tokens: Mapping[Kind, str], language: str) -> str:
    """Return an id without personal data, plus a hash of the original id if it changed."""
    from cloze.core import random_keys  # a config is read without numpy

    masked, kinds = mask_text(name, tokens, language)
    return f"{masked}#{random_keys.document_key(name):016x}" if kinds else name


def make_redactor(options: PersonalDataOptions) -> Callable[[Document, str], tuple[Document, str]]:
    """Return a function that masks a dropped document and its text for output, if masking is on."""
    tokens, fallback = options.personal_tokens(), options.fallback_language

    def masked(document: Document, text: str) -> tuple[Document, str]:
        language = document.language or fallback
        title, shown = (mask_text(part, tokens, language)[0] for part in (document.title, text))
        return replace(document, id=_mask_id(document.id, tokens, language), title=title), shown

    return masked if tokens else lambda document, text: (document, text)


def _build(options: PersonalDataOptions) -> StepFunction | None:
    tokens = options.personal_tokens()
    if not tokens:
        return None
    return partial(
        mask_personal_data,
        tokens=tokens,
        language=options.fallback_language,
        allowed=options.personal_data_allowed,
    )


STEP = CleaningStep(
    options=PersonalDataOptions,
    build=_build,
    settings={"personal_data": "personal_data_allowed"},
    reasons={"personal_data": "more personal data than allowed"},
)
