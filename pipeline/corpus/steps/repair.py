"""Corpus stage: text that was decoded with the wrong character set, put right (`donâ€™t` is `don’t`).

The repair is ftfy's `fix_encoding`, which changes a text only where the sequence is improbable as it stands and valid
UTF-8 underneath. It reads some 4 MB/s, so a regular expression finds out first whether a paragraph has a pair of
characters that a wrong decoding leaves; in well-decoded text next to none has.
"""

from __future__ import annotations

import re
from dataclasses import replace

from pipeline.corpus.document import Document
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps.base import StepFunction, StepKind, StepResult


class RepairOptions(CorpusOptions):
    """Text in the wrong character set."""

    repair_unicode: bool = True
    """Whether text that was decoded with the wrong character set is put right."""


# The characters that the bytes 0x80 to 0xBF are in Windows-1252 and Latin-1, in Windows-1251 and in Mac Roman.
_WESTERN = "\x80-\xbf€‚ƒ„…†‡ˆ‰Š‹ŒŽ‘’“”•–—˜™š›œžŸ"
_CYRILLIC = "ЂЃѓЉЊЌЋЏђљњќћџЎўЈҐЁЄЇІіґё№єјЅѕї\xa0-\xbf‚„…†‡€‰‹‘’“”•–—™›"
_LEAD = re.compile("[\x80-\x84\x86-\x9fÂ-ÚàáâãäåæçèéêëìíîïðРСв√‚├Γ]")  # what _SUSPECT may begin with; a quick test
# What the first bytes of UTF-8 sequences are there: a letter of Latin-1, Р or С, √ or ‚Ä, ├ or ΓÇ.
# C1 controls are nearly always Windows-1252 that was read as Latin-1.
_SUSPECT = re.compile(
    _LEAD.pattern
    + rf"(?:(?<=[ÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑ×ØÙÚàáâãäåæçèéêëìíîïð])[{_WESTERN}]|(?<=[РСв])[{_CYRILLIC}]|(?<=[\x80-\x84\x86-\x9f])|"
    r"(?<=√)[^\s\d]|(?<=‚)Ä|(?<=├)|(?<=Γ)Ç)"
)


def repair_text(text: str) -> str:
    """`text` as it was meant, where it holds UTF-8 or Windows-1252 that was decoded as something else."""
    if text.isascii() or _LEAD.search(text) is None or _SUSPECT.search(text) is None:
        return text
    import ftfy

    repaired: str = ftfy.fix_encoding(text)
    return repaired


def repair(document: Document) -> StepResult:
    """The document with wrongly decoded text put right in its title, paragraphs and infobox."""
    title, infobox = repair_text(document.title), document.infobox_by(repair_text)
    paragraphs = tuple(map(repair_text, document.paragraphs))
    changed = title != document.title or paragraphs != document.paragraphs or infobox != document.infobox
    return StepResult(replace(document, title=title, paragraphs=paragraphs, infobox=infobox) if changed else document)


def _build(options: RepairOptions) -> StepFunction | None:
    return repair if options.repair_unicode else None


STEP = StepKind(options=RepairOptions, build=_build)
