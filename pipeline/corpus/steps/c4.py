"""Corpus stage: the heuristics of C4, the Colossal Clean Crawled Corpus.

Raffel et al. 2020 (https://jmlr.org/papers/v21/20-074.html), section 2.2, with the constants of its program in TensorFlow
Datasets. A paragraph of the document is what C4 calls a line, the document a page. Of C4's other rules, the language is judged in
pipeline/corpus/steps/language.py, copies are found in pipeline/corpus/dedup/signatures.py, and its list of bad words is not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pipeline.corpus.document import Document
from pipeline.corpus.end_marks import OTHER_SCRIPTS
from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.steps import sentences
from pipeline.corpus.steps.base import Removed, StepFunction, StepKind, StepResult, only_from
from pipeline.corpus.steps.word_count import count_words, split_words

MINIMUM_WORDS = 5  # a line
MINIMUM_SENTENCES = 3  # a page
MAXIMUM_WORD = 1000  # characters
END_MARKS = (".", "?", "!", '"')
# What ends a line elsewhere; C4 itself is English. Closing quotation marks count, for its own `"` does.
OTHER_END_MARKS = (*OTHER_SCRIPTS, "」", "』", "”", "’", "»", "«", "“")
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

_CITATION = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")


class C4Options(CorpusOptions):
    """The heuristics of C4."""

    web: ClassVar[Mapping[str, Any]] = {"c4": True}

    c4: bool = False
    """Whether C4's rules for lines and pages apply (`c4_*`)."""

    c4_end_marks: bool = True
    """Whether, of C4's rules, that one applies by which a line ends in an end mark; it takes headings, lists and verse."""


def _line_reason(line: str, marks: tuple[str, ...] | None) -> str | None:
    """Why a line goes; None if it stays. Reasons in the order of the original."""
    if marks is not None and (not line.endswith(marks) or line.endswith("...")):
        return "c4_no_end_mark"
    if count_words(line) < MINIMUM_WORDS:
        return "c4_few_words"
    return None


def apply_c4(document: Document, *, language: str = "en", end_marks: bool = True) -> StepResult:
    """C4's rules.

    Lines go that hold a word of more than 1000 characters (`c4_long_word`), do not end in `.`, `?`, `!` or `"`, or end in
    `...` (`c4_no_end_mark`), have fewer than 5 words (`c4_few_words`), hold `javascript` (`c4_javascript`) or a phrase about
    policies and cookies (`c4_policy`). Pages go that hold `lorem ipsum` (`c4_lorem_ipsum`) or `{` (`c4_bracket`) in a line that
    would have stayed, or are left with fewer than 3 sentences (`c4_few_sentences`). `[1]`, `[edit]` and
    `[citation needed]` are cut out of lines.

    Args:
        document: cleaned.
        language: of the document. In other languages than English their own ends of sentences count too.
        end_marks: whether lines without an end mark go.
    """
    marks = None if not end_marks else END_MARKS if language == "en" else (*END_MARKS, *OTHER_END_MARKS)
    kept: list[str] = []
    removed: list[Removed] = []
    for paragraph in document.paragraphs:
        if len(paragraph) > MAXIMUM_WORD and max(map(len, split_words(paragraph))) > MAXIMUM_WORD:
            removed.append(Removed("c4_long_word", paragraph))
            continue
        line = _CITATION.sub("", paragraph).strip() if "[" in paragraph else paragraph
        reason = _line_reason(line, marks)
        if reason is None:
            lower = line.lower()
            if "lorem ipsum" in lower:
                return StepResult(None, "c4_lorem_ipsum", tuple(removed))
            if "javascript" in lower:
                reason = "c4_javascript"
            elif "{" in line:
                return StepResult(None, "c4_bracket", tuple(removed))
            elif any(phrase in lower for phrase in POLICY):
                reason = "c4_policy"
        if reason is None:
            kept.append(line)
        else:
            removed.append(Removed(reason, paragraph))
    if not _has_sentences(kept, language):
        return StepResult(None, "c4_few_sentences", tuple(removed))
    return StepResult(replace(document, paragraphs=tuple(kept)), None, tuple(removed))


def _has_sentences(lines: Iterable[str], language: str) -> bool:
    """Whether there are enough sentences; every line that is left is one at least."""
    lines = list(lines)
    if len(lines) >= MINIMUM_SENTENCES:
        return True
    return sum(len(sentences.split_paragraph(line, language)) for line in lines) >= MINIMUM_SENTENCES


def _build(options: C4Options) -> StepFunction | None:
    # before the language is identified, as in C4; with `auto` the ends of sentences of all languages count
    language, end_marks = options.language, options.c4_end_marks

    def c4(document: Document) -> StepResult:
        return apply_c4(document, language=document.language or language, end_marks=end_marks)

    return only_from(options.web_sources, c4) if options.c4 else None


STEP = StepKind(options=C4Options, build=_build)
