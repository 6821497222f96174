"""Corpus stage: where numbers of payment cards and of bank accounts stand in a text.

Both carry check digits, which one number of ten, or of 97, has by chance: so a card's number must also begin and be as long as those of
a known network, and an IBAN be as long as those of its country.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Span = tuple[int, int]

_CARD = re.compile(
    r"(?<![\w.,:/+=#&@%°$€£-])"
    r"(?:\d{14,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5})"
    r"(?![\w-]|[.,:/]\d|[ ]\d)"
)
_DIGITS = re.compile(r"\d{4}[ -]?\d{4}")  # quick tests
_COUNTRY = re.compile(r"[A-Z]{2}\d\d[ ]?[A-Z0-9]{4}")
# Networks: the first and the last number that theirs may begin with, and how many digits they have (ISO/IEC 7812; the networks' own ranges).
_NETWORKS = (
    ("4", "4", (16, 19)),  # Visa; those of 13 digits are gone, and barcodes have as many
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
    r"\b(?:cards?|credit|debit|visa|master ?card|amex|american express|discover|diners|jcb|unionpay)\b\W{0,4}(?:\w{0,8}\W{1,4}){0,3}$",
    re.IGNORECASE,
)
# Words before a number that say what else it is, to cards' and telephones' rules alike; each rule knows a few more.
OTHER_NUMBERS = (
    r"isbn|issn|doi|oclc|lccn|asin|ean|upc|isin|iban|vat|ids?|nos?|nr|numbers?|orders?|invoice|patents?|serial|sku|models?|refs?|case|"
    r"docket|arxiv|pmid|pmc|lots?|items?|parts?"
)
BETWEEN = r"[\s.:#°-]{0,4}$"  # such a word, or the 10 or 13 of an ISBN behind it, and the number
_OTHER_NUMBER = re.compile(
    rf"(?:\b(?:{OTHER_NUMBERS}|gtin|uid|imei|iccid|tracking|topics?|threads?|pages?|status|statuses)(?:[ -]1[03])?|[/=?&#_]){BETWEEN}",
    re.IGNORECASE,
)
_CONTEXT = 40  # characters before a number that are looked at

# Letters and digits of an IBAN by its country (SWIFT's IBAN registry, release 99).
_LENGTHS = {
    name: int(length)
    for name, length in re.findall(
        r"([A-Z]{2})(\d\d)",
        "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BI27 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DJ27 DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22"
        " GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 MK19 MN20"
        " MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26"
        " UA29 VA22 VG24 XK20 YE30",
    )
}
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d\d(?=[ ]?[A-Z0-9])")
_GROUPED = re.compile(r"[A-Z0-9]{4}(?:[ \u00a0][A-Z0-9]{4}){2,7}(?:[ \u00a0][A-Z0-9]{1,4})?|[A-Z0-9]{15,34}")


def cards(text: str) -> Iterator[Span]:
    """Where numbers of payment cards stand: bare, or in the groups that they are embossed in."""
    for match in _CARD.finditer(text) if _DIGITS.search(text) else ():
        digits = match[0].replace(" ", "").replace("-", "")
        if _has_network(digits) and passes_luhn(digits):
            before = text[max(0, match.start() - _CONTEXT) : match.start()]
            if _IS_CARD.search(before) or not _OTHER_NUMBER.search(before):
                yield match.span()


def _has_network(digits: str) -> bool:
    return any(len(digits) in lengths and first <= digits[: len(first)] <= last for first, last, lengths in _NETWORKS)


def passes_luhn(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (ISO/IEC 7812-1, annex B)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 * (value > 9)
    return total % 10 == 0


def ibans(text: str) -> Iterator[Span]:
    """Where IBANs stand: in one piece, or in groups of four."""
    for match in _IBAN.finditer(text) if _COUNTRY.search(text) else ():
        length = _LENGTHS.get(match[0][:2])
        found = _GROUPED.match(text, match.start())
        if length is None or found is None:
            continue
        end = _end(found[0], length)
        if end is None or text[match.start() + end : match.start() + end + 1].isalnum():
            continue
        if passes_mod_97("".join(found[0][:end].split())):
            yield match.start(), match.start() + end


def _end(text: str, length: int) -> int | None:
    """Where so many letters and digits of it end; None where it has fewer."""
    seen = 0
    for place, character in enumerate(text):
        seen += not character.isspace()
        if seen == length:
            return place + 1
    return None


def passes_mod_97(iban: str) -> bool:
    """Whether its check digits are those of the rest (ISO 13616, ISO/IEC 7064)."""
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1
