"""C4's heuristics for lines and pages (Colossal Clean Crawled Corpus).

Raffel et al. 2020 (https://jmlr.org/papers/v21/20-074.html), section 2.2, with the constants of its
program in TensorFlow Datasets. A paragraph of the document is what C4 calls a line, the document a
page. C4's language filter is in pipeline/corpus/steps/filters/language.py, deduplication in
pipeline/corpus/signatures.py; its list of bad words is not included.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from cloze.core.words import count_words, split_words
from cloze.pipeline.corpus.document import ETHIOPIC_STOP, OTHER_SCRIPTS, Document, is_unmarked
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps import sentences
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    RemovedText,
    StepFunction,
    restrict_to_sources,
)

MINIMUM_WORDS = 5  # per line
MINIMUM_SENTENCES = 3  # per page
MAXIMUM_WORD = 1000  # characters
END_MARKS = (".", "?", "!", '"')
# Line ends in other languages; C4 itself is English. Closing quotation marks count because its `"`
# does.
OTHER_END_MARKS = (*OTHER_SCRIPTS, ETHIOPIC_STOP, "」", "』", "”", "’", "»", "«", "“")
_POLICY = re.compile("terms of use|(?:privacy|cookie) policy|(?:uses|use of|use) cookies")
_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


class C4Options(CorpusOptions):
    """Options of C4's heuristics."""

    web: ClassVar[Mapping[str, Any]] = {"c4": True, "c4_end_marks": False}

    c4: bool = False
    """C4 rules for lines and pages; on with --preset web."""

    c4_end_marks: bool = True
    """Within c4: keep only lines that end in punctuation; removes headings, lists and verse."""


def _line_reason(line: str, marks: tuple[str, ...] | None) -> str | None:
    """Return why a line is dropped; None if it is kept. Reasons in the order of the original."""
    if marks is not None and (
        not (line.endswith(marks) or is_unmarked(line)) or line.endswith("...")
    ):
        return "c4_no_end_mark"
    if count_words(line) < MINIMUM_WORDS:
        return "c4_few_words"
    return None


def apply_c4(document: Document, *, language: str = "en", end_marks: bool = True) -> CleaningResult:
    """Apply C4's rules.

    Reasons to drop a line: a word of more than 1000 characters (`c4_long_word`); no `.`, `?`, `!`
    or `"` at the end, or `...` (`c4_no_end_mark`); fewer than 5 words (`c4_few_words`);
    `javascript` (`c4_javascript`); a phrase about policies or cookies (`c4_policy`).

    Reasons to drop a page: a line, not dropped by then, with `lorem ipsum` (`c4_lorem_ipsum`) or
    `{` (`c4_bracket`); fewer than 3 sentences left (`c4_few_sentences`).

    `[1]`, `[edit]` and `[citation needed]` are removed from lines.

    Args:
        language: its language; languages other than English add their own end marks.
        end_marks: drop lines without an end mark.
    """
    marks = END_MARKS if language == "en" else (*END_MARKS, *OTHER_END_MARKS)
    retained: list[str] = []
    removed: list[RemovedText] = []
    for paragraph in document.paragraphs:
        if len(paragraph) > MAXIMUM_WORD and max(map(len, split_words(paragraph))) > MAXIMUM_WORD:
            removed.append(RemovedText("c4_long_word", paragraph))
            continue
        line = _CITATION.sub("", paragraph).strip() if "[" in paragraph else paragraph
        reason = _line_reason(line, marks if end_marks else None)
        if reason is None:
            lower = line.lower()
            if "lorem ipsum" in lower:
                return CleaningResult(None, "c4_lorem_ipsum", tuple(removed))
            if "javascript" in lower:
                reason = "c4_javascript"
            elif "{" in line:
                return CleaningResult(None, "c4_bracket", tuple(removed))
            elif _POLICY.search(lower):
                reason = "c4_policy"
        if reason is None:
            retained.append(line)
        else:
            removed.append(RemovedText(reason, paragraph))
    # every line counts at least once
    if (
        len(retained) < MINIMUM_SENTENCES
        and sum(len(sentences.split_paragraph(line, language)) for line in retained)
        < MINIMUM_SENTENCES
    ):
        return CleaningResult(None, "c4_few_sentences", tuple(removed))
    return CleaningResult(replace(document, paragraphs=tuple(retained)), None, tuple(removed))


def _build(options: C4Options) -> StepFunction | None:
    # Runs before language identification, as in C4; with `auto` the end marks of all languages
    # count.
    language, end_marks = options.language or options.fallback_language, options.c4_end_marks

    def c4(document: Document) -> CleaningResult:
        return apply_c4(document, language=document.language or language, end_marks=end_marks)

    return restrict_to_sources(options.web_sources, c4) if options.c4 else None


STEP = CleaningStep(options=C4Options, build=_build, settings={"c4_": "c4"})
