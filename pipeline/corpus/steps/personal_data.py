"""Corpus stage: e-mail addresses, telephone numbers, IP addresses, and numbers of payment cards and bank accounts, replaced by tokens.

Precision first: a version number, a date, an ISBN or a range of years stays. E-mail and IP addresses have a grammar
(`ipaddress` checks the latter). Telephone numbers are those that Google's libphonenumber, in its Python port, holds for valid
and grouped as their country groups them. Cards and accounts have check digits (pipeline/corpus/steps/account_numbers.py). Masking
changes no other character. Documents that hold too many of them may be dropped.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.account_numbers import BETWEEN, OTHER_NUMBERS, Span, cards, ibans
from pipeline.corpus.steps.base import Removed, StepFunction, StepKind, StepResult

Kind = Literal["email", "phone", "ip", "card", "iban"]
REASON = "personal_data"


class PersonalDataOptions(CorpusOptions):
    """Addresses and numbers of persons."""

    mask_personal_data: tuple[Kind, ...] = ()
    """Which of `email`, `phone`, `ip`, `card` and `iban` are replaced (`masked_*`)."""

    personal_data_allowed: int | None = Field(default=None, ge=0)
    """How many of them a document may hold; one that holds more is dropped as `personal_data`. By default any number, replaced."""

    email_token: str = "<email>"
    """What replaces an e-mail address."""

    phone_token: str = "<phone>"
    """What replaces a telephone number."""

    ip_token: str = "<ip>"
    """What replaces an IP address."""

    card_token: str = "<card>"
    """What replaces the number of a payment card."""

    iban_token: str = "<iban>"
    """What replaces an IBAN."""

    @model_validator(mode="after")
    def _kinds_are_named(self) -> Self:
        if self.personal_data_allowed is not None and not self.mask_personal_data:
            raise ValueError("personal_data_allowed needs mask_personal_data: what is looked for, such as email and phone")
        return self

    def personal_tokens(self) -> dict[Kind, str]:
        """What stands in place of each kind that is masked, in the order of the search."""
        tokens: dict[Kind, str] = {
            "email": self.email_token,
            "iban": self.iban_token,
            "card": self.card_token,
            "ip": self.ip_token,
            "phone": self.phone_token,
        }
        return {kind: token for kind, token in tokens.items() if kind in self.mask_personal_data}


_LOCAL = r"[\w+%-]{1,64}(?:\.[\w+%-]{1,64}){0,8}"
_LABEL = r"[^\W_](?:[^\W_]|-(?=[\w-])){0,62}"
_EMAIL = re.compile(rf"(?<![\w.+%@-]){_LOCAL}@(?:{_LABEL}\.){{1,8}}[^\W\d_]{{2,24}}(?![\w-]|\.\w)")

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = re.compile(rf"(?<![\w.:/-])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}(?:[0-9a-fA-F]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:]|\.\w)")
# Four numbers with dots between them may be a version or a section. These words before it tell.
_IS_VERSION = re.compile(
    r"(?:\b(?:versions?|ver|v|releases?|builds?|firmware|kernel|chrome|chromium|firefox|safari|opera|java|jdk|python|windows|sections?|sect?|"
    r"chapters?|clauses?|paragraphs?|rules?|tables?|fig(?:ure)?s?|oid)|[§#])[\s.:#/]{0,3}$",
    re.IGNORECASE,
)
_IS_ADDRESS = re.compile(
    r"\b(?:ips?|ipv4|address(?:es)?|dns|servers?|hosts?|gateway|netmask|subnet|router|ping)\b\W{0,4}(?:\w{0,8}\W{1,4}){0,2}$",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"\d\.\d{1,3}\.\d")  # quick tests
_COLONS = re.compile(r"::|:[0-9a-fA-F]{1,4}:")
_SHORT_IPV4 = 9  # characters; `1.2.10.4` is an address only if a word says so
_LOW_OCTET = 12  # so is `10.10.10.10`, which may be the metre of a hymn

# Digits with nothing between them but what stands between those of telephone numbers.
_MAYBE_PHONE = re.compile(r"\d(?:(?:\.(?!\s)|[\s()\-–/]){0,3}\d){6,15}")
_DECIMAL = re.compile(r"\d+\.\d+")
_IS_PHONE = re.compile(
    r"(?:\b(?:tel|telephone|phones?|call|fax|mobile|mob|cell|whatsapp|sms|hotline|dial|ph|telefon|rufnummer|handy|tél|téléphone|teléfono|"
    r"telefono|telefone|móvil|cellulare)\b|☎|📞)\W{0,4}(?:\w{0,8}\W{1,3}){0,2}$",
    re.IGNORECASE,
)
_IS_NUMBER = re.compile(rf"\b(?:{OTHER_NUMBERS}|ein)(?:[ -]1[03])?{BETWEEN}", re.IGNORECASE)
_CONTEXT = 30  # characters before a number that are looked at

# Where a number without its country's code may be from, by the text's language.
REGIONS = {
    "ar": ("EG",), "cs": ("CZ",), "da": ("DK",), "de": ("DE", "AT", "CH"), "el": ("GR",), "en": ("US", "GB"), "es": ("ES", "MX"), "fi": ("FI",),
    "fr": ("FR",), "he": ("IL",), "hi": ("IN",), "hu": ("HU",), "it": ("IT",), "ja": ("JP",), "ko": ("KR",), "nl": ("NL",), "no": ("NO",), "pl": ("PL",),
    "pt": ("BR", "PT"), "ro": ("RO",), "ru": ("RU",), "sv": ("SE",), "tr": ("TR",), "uk": ("UA",), "zh": ("CN",),
}  # fmt: skip


def _before(text: str, begin: int) -> str:
    return text[max(0, begin - _CONTEXT) : begin]


def emails(text: str) -> Iterator[Span]:
    """Where e-mail addresses stand."""
    if "@" in text:
        for match in _EMAIL.finditer(text):
            yield match.span()


def ip_addresses(text: str) -> Iterator[Span]:
    """Where IPv4 and IPv6 addresses stand."""
    if _DOTTED.search(text):
        for match in _IPV4.finditer(text):
            before = _before(text, match.start())
            plain = len(match[0]) >= _SHORT_IPV4 and max(map(int, match[0].split("."))) > _LOW_OCTET
            if not _IS_VERSION.search(before) and (plain or _IS_ADDRESS.search(before)):
                yield match.span()
    if _COLONS.search(text):
        for match in _IPV6.finditer(text):
            if _is_ipv6(match[0]):
                yield match.span()


def _is_ipv6(text: str) -> bool:
    """Valid, and neither a time (`10:20:30`) nor a C++ name (`a::b`)."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return len(text) >= 6 and any(character.isdigit() for character in text)


def phones(text: str, language: str = "en") -> Iterator[Span]:
    """Where telephone numbers stand; those without their country's code by the rules of the language's countries."""
    for match in _MAYBE_PHONE.finditer(text):
        start = match.start() - (text[match.start() - 1 : match.start()] in {"+", "("})
        found = text[start : match.end()]
        before = _before(text, start)
        told = _IS_PHONE.search(before) is not None
        if (
            not told
            and (
                found.isdigit()  # a bare number may count or name anything
                or _DECIMAL.fullmatch(found)
                or _IS_NUMBER.search(before)
                or before[-1:].isalnum()
                or before.endswith((".", ",", ":", "-", "/", "$", "€", "£", "#", "_", "="))
            )
        ):
            continue
        begin = max(0, start - 1)
        window = text[begin : match.end() + 1]
        for region in REGIONS.get(language, ("US",)):
            span = _valid_phone(window, region, told)
            if span is not None:
                yield begin + span[0], begin + span[1]
                break


def _valid_phone(window: str, region: str, told: bool) -> Span | None:
    from phonenumbers import Leniency, PhoneNumberMatcher

    leniency = Leniency.VALID if told else Leniency.STRICT_GROUPING
    for match in PhoneNumberMatcher(window, region, leniency=leniency, max_tries=3):
        opened = match.raw_string.startswith("(") and ")" not in match.raw_string
        return match.start + opened, match.end
    return None


_FIND: dict[Kind, Callable[[str], Iterator[Span]]] = {"email": emails, "ip": ip_addresses, "card": cards, "iban": ibans}


def mask_text(text: str, tokens: Mapping[Kind, str], language: str = "en") -> tuple[str, list[Kind]]:
    """`text` with the kinds in `tokens` replaced, and the kinds of what was replaced."""
    replaced: list[Kind] = []
    for kind, token in tokens.items():  # one after the other, so that what a token replaced is not found again
        spans = list(phones(text, language) if kind == "phone" else _FIND[kind](text))
        for begin, end in reversed(spans):
            text = text[:begin] + token + text[end:]
        replaced += [kind] * len(spans)
    return text, replaced


def mask_personal_data(
    document: Document, tokens: Mapping[Kind, str], language: str = "en", allowed: int | None = None
) -> StepResult:
    """Replace personal data; what was replaced is counted as `masked_email`, `masked_ip`, …, and not told.

    Args:
        document: cleaned.
        tokens: of `PersonalDataOptions.personal_tokens`.
        language: of documents that name none.
        allowed: a document with more is dropped; what it holds is counted as `dropped_email`, …. None: none is dropped.
    """
    language = document.language or language
    values = tuple(field.value for field in document.infobox)
    texts = [mask_text(text, tokens, language) for text in (document.title, *document.paragraphs, *values)]
    kinds = [kind for _, found in texts for kind in found]
    if not kinds:
        return StepResult(document)
    if allowed is not None and len(kinds) > allowed:
        return StepResult(None, REASON, tuple(Removed(f"dropped_{kind}", tokens[kind]) for kind in kinds))
    title, *rest = (text for text, _ in texts)
    paragraphs, values = tuple(rest[: len(document.paragraphs)]), tuple(rest[len(document.paragraphs) :])
    infobox = tuple(field._replace(value=value) for field, value in zip(document.infobox, values, strict=True))
    removed = tuple(Removed(f"masked_{kind}", tokens[kind]) for kind in kinds)
    return StepResult(replace(document, title=title, paragraphs=paragraphs, infobox=infobox), None, removed)


def telling(options: PersonalDataOptions) -> Callable[[Document, str], str]:
    """What may be shown of a dropped document's text: where personal data is masked, without it."""
    tokens, language = options.personal_tokens(), options.fallback_language
    return lambda document, text: mask_text(text, tokens, document.language or language)[0] if tokens else text


def _build(options: PersonalDataOptions) -> StepFunction | None:
    tokens = options.personal_tokens()
    if not tokens:
        return None
    return partial(mask_personal_data, tokens=tokens, language=options.fallback_language, allowed=options.personal_data_allowed)


STEP = StepKind(options=PersonalDataOptions, build=_build)
