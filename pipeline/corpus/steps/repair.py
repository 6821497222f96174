"""Repair of text that was decoded with the wrong character set (`donâ€™t` becomes `don’t`).

ftfy's `fix_encoding` does the repair; it changes only improbable sequences that are valid UTF-8
underneath. It reads about 4 MB/s, so a regex first looks for pairs of characters that wrong
decoding produces; well-decoded text has next to none.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import CleaningResult, CleaningStep, StepFunction


class RepairOptions(CorpusOptions):
    """Options of the repair of wrongly decoded text."""

    repair_unicode: bool = True
    """Repair text that was decoded with the wrong character set."""


# Characters of the bytes 0x80 to 0xBF in Windows-1252 and Latin-1, in Windows-1251 and Mac Roman.
_WESTERN = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_CYRILLIC = "ЂЃѓЉЊЌЋЏђљњќћџЎўЈҐЁЄЇІіґё№єјЅѕї\xa0-\xbf‚„…†‡€‰‹‘’“”•–—™›"
_LEAD = re.compile(
    "[\x80-\x84\x86-\x9fÂ-ÚàáâãäåæçèéêëìíîïðРСв√‚├Γ]"
)  # first characters of _SUSPECT; a quick test
# First bytes of UTF-8 sequences in these sets: a letter of Latin-1, Р or С, √ or ‚Ä, ├ or ΓÇ. C1
# controls are nearly always Windows-1252 read as Latin-1.
_SUSPECT = re.compile(
    _LEAD.pattern
    + rf"(?:(?<=[ÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑ×ØÙÚàáâãäåæçèéêëìíîïð])[{_WESTERN}]|(?<=[РСв])[{_CYRILLIC}]|"
    rf"(?<=[\x80-\x84\x86-\x9f])|"
    r"(?<=√)[^\s\d]|(?<=‚)Ä|(?<=├)|(?<=Γ)Ç)"
)


def repair_text(text: str) -> str:
    """Repair UTF-8 or Windows-1252 text that was decoded as something else."""
    if text.isascii() or _LEAD.search(text) is None or _SUSPECT.search(text) is None:
        return text
    import ftfy

    repaired: str = ftfy.fix_encoding(text)
    return repaired


def repair(document: Document) -> CleaningResult:
    """Repair wrongly decoded text in title, paragraphs and infobox."""
    title, infobox = repair_text(document.title), document.map_infobox(repair_text)
    paragraphs = tuple(map(repair_text, document.paragraphs))
    changed = (
        title != document.title or paragraphs != document.paragraphs or infobox != document.infobox
    )
    return CleaningResult(
        replace(document, title=title, paragraphs=paragraphs, infobox=infobox)
        if changed
        else document
    )


def _build(options: RepairOptions) -> StepFunction | None:
    return repair if options.repair_unicode else None


STEP = CleaningStep(options=RepairOptions, build=_build)
