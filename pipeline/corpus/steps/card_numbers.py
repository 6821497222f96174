"""Spans of card numbers and IBANs.

The check digits of cards and accounts are right by chance for one number in 10 or in 97. A card
number must therefore also have the prefix and length of a known network, and an IBAN the length of
its country.
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
_COUNTRY = re.compile(r"[A-Z]{2}\d\d[ -]?[A-Z0-9]{3}")
# Networks: first and last prefix, and numbers of digits (ISO/IEC 7812; the networks' own ranges).
_NETWORKS = (
    ("4", "4", (16, 19)),  # Visa; 13-digit numbers are out of use, and barcodes have 13 digits
    ("51", "55", (16,)), ("2221", "2720", (16,)),  # Mastercard
    ("34", "34", (15,)), ("37", "37", (15,)),  # American Express
    ("6011", "6011", (16,)), ("644", "659", (16,)),  # Discover
    ("300", "305", (14,)), ("36", "36", (14,)), ("38", "39", (14,)),  # Diners Club
    ("3528", "3589", (16,)),  # JCB
    ("62", "62", (16, 17, 18, 19)),  # UnionPay
)  # fmt: skip
_IS_CARD = re.compile(
    r"\b(?:cards?|credit|debit|visa|master ?card|amex|american express|discover|diners|jcb|"
    r"unionpay)\b\W{0,4}(?:\w{0,8}\W{1,4}){0,3}$",
    re.IGNORECASE,
)
# Words before a number that make it something else, for cards and telephones. Each rule adds a few.
LABELS = (
    r"isbn|issn|doi|oclc|lccn|asin|ean|upc|isin|iban|vat|orders?|invoice|patents?|serial|sku|"
    r"models?|case|docket|arxiv|pmid|pmc|lots?|items?|parts?"
)
OTHER_NUMBERS = rf"{LABELS}|ids?|nos?|nr|numbers?|refs?"
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
        "DK18 DO28 EE20 EG29 ES24 FI18 FK18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HN28 HR21 HU28 "
        "IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 LB28 LC32 LI21 LT20 LU20 LV21 LY25 MC27 MD24 ME22 "
        "MK19 MN20 MR27 MT31 MU30 NI28 NL18 NO15 OM23 PK24 PL28 PS29 PT25 QA29 RO24 RS22 RU33 SA24 "
        "SC31 SD18 SE24 SI19 SK24 SM27 SO23 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 YE30",
    )
}
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}\d\d(?=[ -]?[A-Z0-9])")


def cards(text: str) -> Iterator[Span]:
    """Yield the spans of card numbers, ungrouped or in the groups printed on cards."""
    for match in _CARD.finditer(text) if _DIGITS.search(text) else ():
        digits = match[0].replace(" ", "").replace("-", "")
        has_network = any(
            len(digits) in lengths and first <= digits[: len(first)] <= last
            for first, last, lengths in _NETWORKS
        )
        if has_network and passes_luhn(digits):
            before = text[max(0, match.start() - _NUMBER_CONTEXT) : match.start()]
            if _IS_CARD.search(before) or not _OTHER_NUMBER.search(before):
                yield match.span()


def passes_luhn(digits: str) -> bool:
    """Return True if the last digit is the Luhn check digit (ISO/IEC 7812-1, annex B)."""
    values = [int(digit) * (1 + place % 2) for place, digit in enumerate(reversed(digits))]
    return sum(value - 9 * (value > 9) for value in values) % 10 == 0


def ibans(text: str) -> Iterator[Span]:
    """Yield the spans of IBANs, ungrouped or in groups of any length."""
    for match in _IBAN.finditer(text) if _COUNTRY.search(text) else ():
        more = _LENGTHS.get(match[0][:2], 0) - 4
        grouped = rf"[A-Z]{{2}}\d\d(?:[ -]?[A-Z0-9]){{{more}}}(?![A-Za-z0-9])"
        if more > 0 and (found := re.compile(grouped).match(text, match.start())):
            iban = re.sub("[ -]", "", found[0])
            # capitals with blanks between them would be right by chance
            if 2 * sum(map(str.isdigit, iban)) >= len(iban) and passes_mod_97(iban):
                yield found.span()


def passes_mod_97(iban: str) -> bool:
    """Return True if the check digits of the IBAN are right (ISO 13616, ISO/IEC 7064)."""
    return int("".join(str(int(character, 36)) for character in iban[4:] + iban[:4])) % 97 == 1
