"""Spans of card numbers and IBANs.

The check digits of cards and accounts are right by chance for one number in 10 or in 97. A card
number must therefore also have the prefix and length of a known network, and an IBAN the length of
its country.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cloze.pipeline.corpus.readers.prose import alternatives, read_lists

Span = tuple[int, int]
LISTS = read_lists(Path(__file__).with_name("personal_data.txt"), "\n")

_CARD = re.compile(
    r"(?<![\w.,:/+=#&@%°$€£-])"
    r"(?:\d{14,19}|\d{4}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?|\d{4}([ -])\d{6}\2\d{4,5})"
    r"(?![\w-]|[.,:/]\d|[ ]\d)"
)
_DIGITS = re.compile(r"\d{4}[ -]?\d{4}")  # quick tests
_COUNTRY = re.compile(r"[A-Z]{2}\d\d[ -]?[A-Z0-9]{3}")
_NETWORKS = [
    (first, last, [int(length) for length in lengths])
    for first, last, *lengths in map(str.split, LISTS["card networks"])
]
_IS_CARD = re.compile(
    rf"\b(?:{alternatives(LISTS, 'cards')})\b\W{{0,4}}(?:\w{{0,8}}\W{{1,4}}){{0,3}}$", re.IGNORECASE
)
LABELS = alternatives(LISTS, "labels")
OTHER_NUMBERS = rf"{LABELS}|ids?|nos?|nr|numbers?|refs?"
BETWEEN = r"[\s.:#°-]{0,4}$"  # between such a word and the number
_OTHER_NUMBER = re.compile(
    rf"(?:\b(?:{OTHER_NUMBERS}|gtin|uid|imei|iccid|tracking|topics?|threads?|pages?|status|"
    rf"statuses)(?:[ -]1[03])?|[/=?&#_]){BETWEEN}",
    re.IGNORECASE,
)
_NUMBER_CONTEXT = 40  # characters before a number that are examined

_LENGTHS = {entry[:2]: int(entry[2:]) for entry in " ".join(LISTS["iban lengths"]).split()}
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
