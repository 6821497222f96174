"""Masking of personal data: e-mail and IP addresses, telephone, card and account numbers.

The check digits of cards and accounts are right by chance for one number in 10 or in 97. A card
number must therefore also have the prefix and length of a known network, and an IBAN the length of
its country.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import CleaningResult, CleaningStep, RemovedText, StepFunction

Span = tuple[int, int]

_CARD = re.compile(
    r"(?<![\w.,:/+=#&@%°$€£-])"
    r"(?:\d{14,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5})"
    r"(?![\w-]|[.,:/]\d|[ ]\d)"
)
_DIGITS = re.compile(r"\d{4}[ -]?\d{4}")  # quick tests
_COUNTRY = re.compile(r"[A-Z]{2}\d\d[ ]?[A-Z0-9]{4}")
# Networks: first and last prefix, and numbers of digits (ISO/IEC 7812; the networks' own ranges).
_NETWORKS = (
    ("4", "4", (16, 19)),  # Visa; 13-digit numbers are out of use, and barcodes have 13 digits
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),  # Mastercard
    ("34", "34", (15,)),
    ("37", "37", (15,)),  # American Express
    ("6011", "6011", (16,)),
    ("644", "659", (16,)),  # Discover
    ("300", "305", (14,)),
    ("36", "36", (14,)),
    ("38", "39", (14,)),  # Diners Club
    ("3528", "3589", (16,)),  # JCB
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
)
_IS_CARD = re.compile(
    r"\b(?:cards?|credit|debit|visa|master ?card|amex|american express|discover|diners|jcb|"
    r"unionpay)\b\W{0,4}(?:\w{0,8}\W{1,4}){0,3}$",
    re.IGNORECASE,
)
# Words before a number that make it something else, for cards and telephones. Each rule adds a few.
OTHER_NUMBERS = (
    r"isbn|issn|doi|oclc|lccn|asin|ean|upc|isin|iban|vat|ids?|nos?|nr|numbers?|orders?|invoice|"
    r"patents?|serial|sku|models?|refs?|case|"
    r"docket|arxiv|pmid|pmc|lots?|items?|parts?"
)
BETWEEN = r"[\s.:#°-]{0,4}$"  # between such a word and the number
_OTHER_NUMBER = re.compile(
    rf"(?:\b(?:{OTHER_NUMBERS}|gtin|uid|imei|iccid|tracking|topics?|threads?|pages?|status|"
    rf"statuses)(?:[ -]1[03])?|[/=?&#_]){BETWEEN}",
    re.IGNORECASE,
)
_NUMBER_CONTEXT = 40  # characters before a number that are examined

# Length of an IBAN by country (SWIFT's IBAN registry, release 99).
_LENGTHS = {
    name: int(length)
    for name, length in re.findall(
        r"([A-Z]{2})(\d\d)",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 "
        "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22"
        " GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 "
        "LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20"
        " MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 "
        "SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26"
        " UA29 VA22 VG24 XK20 YE30",
    )
}
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d\d(?=[ ]?[A-Z0-9])")
_GROUPED = re.compile(
    r"[A-Z0-9]{4}(?:[ \u00a0][A-Z0-9]{4}){2,7}(?:[ \u00a0][A-Z0-9]{1,4})?|[A-Z0-9]{15,34}"
)


def cards(text: str) -> Iterator[Span]:
    """Yield the spans of card numbers, ungrouped or in the groups printed on cards."""
    for match in _CARD.finditer(text) if _DIGITS.search(text) else ():
        digits = match[0].replace(" ", "").replace("-", "")
        if _has_network(digits) and passes_luhn(digits):
            before = text[max(0, match.start() - _NUMBER_CONTEXT) : match.start()]
            if _IS_CARD.search(before) or not _OTHER_NUMBER.search(before):
                yield match.span()


def _has_network(digits: str) -> bool:
    return any(
        len(digits) in lengths and first <= digits[: len(first)] <= last
        for first, last, lengths in _NETWORKS
    )


def passes_luhn(digits: str) -> bool:
    """Return True if the last digit is the Luhn check digit (ISO/IEC 7812-1, annex B)."""
    total = 0
    for position, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + position % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def ibans(text: str) -> Iterator[Span]:
    """Yield the spans of IBANs, ungrouped or in groups of four."""
    for match in _IBAN.finditer(text) if _COUNTRY.search(text) else ():
        length = _LENGTHS.get(match[0][:2])
        grouped = _GROUPED.match(text, match.start())
        if length is None or grouped is None:
            continue
        iban = re.match(rf"(?:\s*\S){{{length}}}", grouped[0])
        if iban is None:
            continue
        end = match.start() + iban.end()
        if not text[end : end + 1].isalnum() and passes_mod_97("".join(iban[0].split())):
            yield match.start(), end


def passes_mod_97(iban: str) -> bool:
    """Return True if the check digits of the IBAN are right (ISO 13616, ISO/IEC 7064)."""
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1


Kind = Literal["email", "phone", "ip", "card", "iban"]
_SEARCHED: tuple[Kind, ...] = ("email", "iban", "card", "ip", "phone")  # in this order
REASON = "personal_data"


class PersonalDataOptions(CorpusOptions):
    """Options of the masking of personal data."""

    mask_personal_data: tuple[Kind, ...] = ()
    """Kind of personal data to replace by a token such as <email>: email, phone, ip, card or iban.
    Repeatable."""

    personal_data_allowed: int | None = Field(default=None, ge=0)
    """Drop documents with more than this many occurrences. Default: never."""

    @model_validator(mode="after")
    def _kinds_are_named(self) -> Self:
        if self.personal_data_allowed is not None and not self.mask_personal_data:
            raise ValueError(
                "personal_data_allowed needs mask_personal_data: what is looked for, such as email "
                "and phone"
            )
        return self

    def personal_tokens(self) -> dict[Kind, str]:
        """Return the replacement of each kind that is masked, in search order."""
        return {kind: f"<{kind}>" for kind in _SEARCHED if kind in self.mask_personal_data}


_LOCAL = r"[\w+%-]{1,64}(?:\.[\w+%-]{1,64}){0,8}"
_LABEL = r"[^\W_](?:[^\W_]|-(?=[\w-])){0,62}"
_EMAIL = rf"(?<![\w.+%@-]){_LOCAL}@(?:{_LABEL}\.){{1,8}}[^\W\d_]{{2,24}}(?![\w-]|\.\w)"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = re.compile(rf"(?<![\w.:/-])(?:{_OCTET}\.){{3}}{_OCTET}(?![\w-]|\.\d)")
_IPV6 = re.compile(
    r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}(?:[0-9a-fA-F]{1,4}|(?:\d{1,3}\.){3}\d{1,3})?(?![\w:]|"
    r"\.\w)"
)
# Words before four dotted numbers that make them a version or a section.
_IS_VERSION = re.compile(
    r"(?:\b(?:versions?|ver|v|releases?|builds?|firmware|kernel|chrome|chromium|firefox|safari|"
    r"opera|java|jdk|python|windows|sections?|sect?|"
    r"chapters?|clauses?|paragraphs?|rules?|tables?|fig(?:ure)?s?|oid)|[§#])[\s.:#/]{0,3}$",
    re.IGNORECASE,
)
_IS_ADDRESS = re.compile(
    r"\b(?:ips?|ipv4|address(?:es)?|dns|servers?|hosts?|gateway|netmask|subnet|router|ping)\b\W{0,"
    r"4}(?:\w{0,8}\W{1,4}){0,2}$",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"\d\.\d{1,3}\.\d")  # quick tests
_COLONS = re.compile(r"::|:[0-9a-fA-F]{1,4}:")
_SHORT_IPV4 = 9  # characters; shorter ones such as `1.2.10.4` need a word that says address
_LOW_OCTET = 12  # so do low ones such as `10.10.10.10`, which may be the metre of a hymn

# Digits separated only by characters that occur in telephone numbers.
_MAYBE_PHONE = re.compile(r"\d(?:(?:\.(?!\s)|[\s()\-–/]){0,3}\d){6,15}")
_DECIMAL = re.compile(r"\d+\.\d+")
_IS_PHONE = re.compile(
    r"(?:\b(?:tel|telephone|phones?|call|fax|mobile|mob|cell|whatsapp|sms|hotline|dial|ph|telefon|"
    r"rufnummer|handy|tél|téléphone|teléfono|"
    r"telefono|telefone|móvil|cellulare)\b|☎|📞)\W{0,4}(?:\w{0,8}\W{1,3}){0,2}$",
    re.IGNORECASE,
)
_IS_NUMBER = re.compile(rf"\b(?:{OTHER_NUMBERS}|ein)(?:[ -]1[03])?{BETWEEN}", re.IGNORECASE)
_CONTEXT = 30  # characters before a number that are examined

# Countries of numbers without country code, by language of the text.
REGIONS = {
    "ar": ("EG",), "cs": ("CZ",), "da": ("DK",), "de": ("DE", "AT", "CH"), "el": ("GR",),
    "en": ("US", "GB"), "es": ("ES", "MX"), "fi": ("FI",),
    "fr": ("FR",), "he": ("IL",), "hi": ("IN",), "hu": ("HU",), "it": ("IT",), "ja": ("JP",),
    "ko": ("KR",), "nl": ("NL",), "no": ("NO",), "pl": ("PL",),
    "pt": ("BR", "PT"), "ro": ("RO",), "ru": ("RU",), "sv": ("SE",), "tr": ("TR",), "uk": ("UA",),
    "zh": ("CN",),
}  # fmt: skip


@functools.cache
def _email() -> Any:
    import regex

    return regex.compile(_EMAIL)  # regex's \w includes combining marks, which re's lacks


def emails(text: str) -> Iterator[Span]:
    """Yield the spans of e-mail addresses."""
    if "@" in text:
        for match in _email().finditer(text):
            yield match.span()


def ip_addresses(text: str) -> Iterator[Span]:
    """Yield the spans of IPv4 and IPv6 addresses."""
    if _DOTTED.search(text):
        for match in _IPV4.finditer(text):
            before = text[max(0, match.start() - _CONTEXT) : match.start()]
            plain = len(match[0]) >= _SHORT_IPV4 and max(map(int, match[0].split("."))) > _LOW_OCTET
            if not _IS_VERSION.search(before) and (plain or _IS_ADDRESS.search(before)):
                yield match.span()
    if _COLONS.search(text):
        for match in _IPV6.finditer(text):
            if _is_ipv6(match[0]):
                yield match.span()


def _is_ipv6(text: str) -> bool:
    """Return True if valid, and neither a time (`10:20:30`) nor a C++ name (`a::b`)."""
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return len(text) >= 6 and any(character.isdigit() for character in text)


def phones(text: str, language: str = "en") -> Iterator[Span]:
    """Yield the spans of telephone numbers.

    Numbers without country code follow the rules of the countries of `language`.
    """
    for match in _MAYBE_PHONE.finditer(text):
        start = match.start() - (text[match.start() - 1 : match.start()] in {"+", "("})
        candidate = text[start : match.end()]
        before = text[max(0, start - _CONTEXT) : start]
        is_announced = _IS_PHONE.search(before) is not None
        is_other = (
            candidate.isdigit()  # a bare number may be a count or an id
            or _DECIMAL.fullmatch(candidate)
            or _IS_NUMBER.search(before)
            or before[-1:].isalnum()
            or before.endswith((".", ",", ":", "-", "/", "$", "€", "£", "#", "_", "="))
        )
        if is_other and not is_announced:
            continue
        begin = max(0, start - 1)
        window = text[begin : match.end() + 1]
        for region in REGIONS.get(language, ("US",)):
            span = _valid_phone(window, region, is_announced)
            if span is not None:
                yield begin + span[0], begin + span[1]
                break


def _valid_phone(window: str, region: str, is_announced: bool) -> Span | None:
    from phonenumbers import Leniency, PhoneNumberMatcher

    leniency = Leniency.VALID if is_announced else Leniency.STRICT_GROUPING
    for match in PhoneNumberMatcher(window, region, leniency=leniency, max_tries=3):
        opened = match.raw_string.startswith("(") and ")" not in match.raw_string
        return match.start + opened, match.end
    return None


_FIND: dict[Kind, Callable[[str], Iterator[Span]]] = {
    "email": emails,
    "ip": ip_addresses,
    "card": cards,
    "iban": ibans,
}


def mask_text(
    text: str, tokens: Mapping[Kind, str], language: str = "en"
) -> tuple[str, list[Kind]]:
    """Replace the kinds in `tokens`; return the text and the kind of each replacement."""
    replaced: list[Kind] = []
    # in sequence, so that no kind matches inside the replacement of another
    for kind, token in tokens.items():
        pieces: list[str] = []
        position = 0
        for begin, end in sorted(phones(text, language) if kind == "phone" else _FIND[kind](text)):
            if begin >= position:
                pieces += (text[position:begin], token)
                position = end
        replaced += [kind] * (len(pieces) // 2)
        text = "".join((*pieces, text[position:]))
    return text, replaced


def mask_personal_data(
    document: Document, tokens: Mapping[Kind, str], language: str = "en", allowed: int | None = None
) -> CleaningResult:
    """Replace personal data in the text, title, infobox, URL and id of a document.

    Replacements are counted as `masked_email`, `masked_ip`, …, except those in the id. The personal
    data is not recorded anywhere.

    Args:
        document: cleaned document.
        tokens: result of `PersonalDataOptions.personal_tokens`.
        language: language of documents that name none.
        allowed: drop documents with more replacements, counted as `dropped_email`, …. None: never.
    """
    language = document.language or language
    values = tuple(field.value for field in document.infobox)
    texts = [
        mask_text(text, tokens, language)
        for text in (document.title, *document.paragraphs, *values)
    ]
    url, url_kinds = _mask_url(document.url, tokens, language)
    masked_id = _mask_id(document.id, tokens, language)
    kinds = [
        kind for replaced in (url_kinds, *(replaced for _, replaced in texts)) for kind in replaced
    ]
    if not kinds and masked_id == document.id:
        return CleaningResult(document)
    if allowed is not None and len(kinds) > allowed:
        return CleaningResult(
            None, REASON, tuple(RemovedText(f"dropped_{kind}", tokens[kind]) for kind in kinds)
        )
    title, *rest = (text for text, _ in texts)
    values = tuple(rest[len(document.paragraphs) :])
    changed = replace(
        document,
        id=masked_id,
        url=url,
        title=title,
        paragraphs=tuple(rest[: len(document.paragraphs)]),
        infobox=tuple(
            field._replace(value=value)
            for field, value in zip(document.infobox, values, strict=True)
        ),
    )
    removed = tuple(RemovedText(f"masked_{kind}", tokens[kind]) for kind in kinds)
    return CleaningResult(changed, None, removed)


def _mask_url(url: str, tokens: Mapping[Kind, str], language: str) -> tuple[str, list[Kind]]:
    """Return a URL without personal data, and the kinds replaced; `%40` counts as `@`."""
    masked, kinds = mask_text(url.replace("%40", "@"), tokens, language)
    return (masked if kinds else url), kinds


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


STEP = CleaningStep(options=PersonalDataOptions, build=_build)
