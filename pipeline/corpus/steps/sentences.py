"""Sentence splitting.

English is split by sentencex (Wikimedia's rules). It gets blanks for quotation marks and brackets,
because it ends no sentence between them and pairs them wrongly. In other languages every end mark
(pipeline/corpus/document.py) before a blank may end a sentence; scripts without blanks need no
blank. Rules by language (pipeline/corpus/steps/sentence_rules.py) decide whether the sentence
continues. No sentence ends in a short quotation, in a short bracket, or after the number of a list
item. Thai and Lao do not mark the ends of sentences: a paragraph is one sentence.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from cloze.pipeline.corpus.document import (
    ELLIPSIS,
    ETHIOPIC_STOP,
    HOLES,
    LATIN,
    OTHER_SCRIPTS,
    PLACEHOLDER_PATTERN,
    UNMARKED,
    Document,
    has_hole,
)
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    RemovedText,
    Sentences,
    StepFunction,
)
from cloze.pipeline.corpus.steps.sentence_rules import EnglishRules, SentenceRules, sentence_rules

# characters per call of sentencex, whose time grows with the square of the number of sentences
WINDOW = 10_000
LONGEST_SENTENCE = 4 * WINDOW  # longer text without an end mark is divided at a blank
SHORT_QUOTATION = 40  # characters; shorter quotations are titles and names as often as speech
SHORT_BRACKET = 200  # characters
_FAR = 1000  # characters before an end mark in which quotation marks are counted

_MARKS = f"!?{ELLIPSIS}{OTHER_SCRIPTS}"
# A search is three times as fast for a set, and then its repetition, as for a repeated set.
_END = re.compile(f"[{_MARKS}.][{_MARKS}.]*")
_ENDS = {  # other end marks, by language
    "el": re.compile(f"[{_MARKS}.;][{_MARKS}.;]*"),
    **dict.fromkeys(("am", "ti"), re.compile(rf"(?:[{_MARKS}.]|{ETHIOPIC_STOP}|::)+")),
    "hy": re.compile(rf"(?:[{_MARKS}:]|\.\.\.)+"),  # a full stop is a comma in Armenian
}
_UNSTOPPED = re.compile(f"[{UNMARKED}]")  # scripts without `.`

_CLOSERS = "\"'´“”‘’»«›‹」』》〉）)\\]】"  # directly after an end mark any quotation mark closes
_GAP = re.compile(rf"[{_CLOSERS}]*(?:[:;]-?[)D])?\s+")  # an emoticon also closes
_SPACED_CLOSER = re.compile(r"([\"“”»›]|'')\s+")  # closes after an odd number of marks of its kind
_KINDS = {'"': '"', "“": "“”„", "”": "“”„", "»": "«»", "›": "‹›", "''": ("''", "``", ",,")}
_PAIRS = ('""', "''", "“”", "‘’", "«»", "„“", "「」", "『』")
# Number of a list item; its text follows.
_ENUMERATOR = re.compile(r"\s*\(?(?:\d{1,3}|[a-zA-Z]|[ivxIVX]{1,5})[.)]+\s*")
_LONGEST_ENUMERATOR = 8  # characters

# After marks of other scripts a sentence begins without a blank; after `!` and `?` only between Han
# or kana.
_CLOSERS_UNSPACED = re.compile('[」』”’）】》〉"]*')
_OPENERS_UNSPACED = frozenset("「『（“‘《【")
_HAN_OR_KANA = re.compile("[\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")
# A Japanese sentence continues after a quotation.
_QUOTATIVE = re.compile(r"[とっにがをの、，,。]|は(?!い)|って|という|など")
_PARTICLE = re.compile("[のがを]")  # after a title that ends in a mark

_BLANKED = '"“”‘«»()'  # replaced by blanks for sentencex
# sentencex searches for the closing mark of each; “, ‘ and « are blanked before
_OPENING_MARKS = "`„‚‹"
_NO_OPENING_MARKS = dict.fromkeys(map(ord, _OPENING_MARKS + "'"), "’")
_WALKED_OVER = frozenset(_BLANKED + "'’")
_ENGLISH_ENDS = frozenset(LATIN + ELLIPSIS + OTHER_SCRIPTS)


def split_paragraph(paragraph: str, language: str = "en") -> list[str]:
    """Split a paragraph into stripped sentences; only white space between them is lost."""
    pieces: list[str] = []
    begin, width = 0, WINDOW
    while begin < len(paragraph):
        window = paragraph[begin : begin + width]
        borders = _borders(window, language)
        if begin + width < len(paragraph):  # the last sentence may continue in the next window
            blank = window.rfind(" ") + 1 if width >= LONGEST_SENTENCE else 0
            cut = borders[-1] if borders else blank
            if not cut and width < LONGEST_SENTENCE:
                width *= 2
                continue
            if not cut:  # no blank either: up to the next one
                cut = (paragraph.find(" ", begin + width) + 1 or len(paragraph)) - begin
                window = paragraph[begin : begin + cut]
            edges = [0, *(borders or [cut])]
        else:
            edges = [0, *borders, len(window)]
        texts = (window[left:right].strip() for left, right in itertools.pairwise(edges))
        pieces += filter(None, texts)
        begin, width = begin + edges[-1], WINDOW
    return pieces


def _borders(text: str, language: str) -> list[int]:
    """Return where sentences begin inside `text`, ascending."""
    is_english = language == "en"
    ends = (
        _english_ends(text)
        if is_english
        else [match.end() for match in _ENDS.get(language, _END).finditer(text)]
    )
    borders: list[int] = []
    if not ends:
        return borders
    rules = sentence_rules(language)
    has_case = text.islower() == text.isupper()
    pairs = [pair for pair in _PAIRS if pair[0] in text]
    has_bracket = "(" in text or "（" in text
    begin = 0
    for end in ends:
        # shortcut for most English sentences, five times as fast as `_border`
        if (
            is_english
            and text[end] == " "
            and end - begin >= _LONGEST_ENUMERATOR
            and text[end + 1 : end + 2].isupper()
        ):
            border = end + 1
        else:
            border = _border(text, begin, end, rules, has_case)
        if (
            border > begin
            and not (has_bracket and _is_bracketed(text, border))
            and not (pairs and _is_quoted(text, border, pairs))
        ):
            borders.append(border)
            begin = border
    return borders


def _english_ends(text: str) -> list[int]:
    """Return the ends of the end marks after which sentencex begins a sentence."""
    import sentencex  # a config is read without it

    shadow = text
    if "'" in text:
        shadow = text.replace(" '", "  ").replace("' ", "  ").replace("'", "_")
    for mark in _BLANKED:  # faster than a regex
        if mark in shadow:
            shadow = shadow.replace(mark, " ")
    # not prose; each mark costs time proportional to the text
    marks = shadow.count("`") if shadow.isascii() else sum(map(shadow.count, _OPENING_MARKS))
    if marks * 10 > len(shadow):
        shadow = shadow.translate(_NO_OPENING_MARKS)
    ends: list[int] = []
    position = 0
    for piece in sentencex.segment("en", shadow)[:-1]:
        position += len(piece)
        end = position - 1
        if text[end] != " " or text[end - 1] not in LATIN:
            end = position
            while end and (text[end - 1].isspace() or text[end - 1] in _WALKED_OVER):
                end -= 1
            if not end or text[end - 1] not in _ENGLISH_ENDS:
                continue
        ends.append(end)
    return ends


def _border(
    text: str, begin: int, end: int, rules: SentenceRules | EnglishRules, has_case: bool
) -> int:
    """Return where a sentence begins after the end mark that ends at `end`; 0 if none does."""
    gap = _GAP.match(text, end)
    if gap is None:
        return _unspaced_border(text, end)
    position = gap.end()
    closer = _SPACED_CLOSER.match(text, position)
    if (
        closer
        and sum(text.count(mark, max(0, end - _FAR), position) for mark in _KINDS[closer[1]]) % 2
    ):
        position = closer.end()
    if position == len(text):
        return 0
    if position - begin <= _LONGEST_ENUMERATOR and _ENUMERATOR.fullmatch(text, begin, position):
        return 0
    if text[end - 1] == "." and end > 1 and _UNSTOPPED.match(text, end - 2):
        return 0
    return 0 if rules.continues(text, begin, position, has_case) else position


def _unspaced_border(text: str, end: int) -> int:
    """Return where a sentence begins after an end mark without a blank; 0 if none does."""
    mark = text[end - 1]
    if mark in OTHER_SCRIPTS:
        if (mark in "։۔" and text[end : end + 1].isdigit()) or (
            mark in "！？" and _PARTICLE.match(text, end)
        ):
            return 0
        closers = _CLOSERS_UNSPACED.match(text, end)
        position = closers.end() if closers else end
        is_end = position < len(text) and not (position > end and _QUOTATIVE.match(text, position))
        return position if is_end else 0
    before = len(text[:end].rstrip("!?"))
    if before == end or not before or not _HAN_OR_KANA.match(text, before - 1):
        return 0
    if text[end : end + 1] not in _OPENERS_UNSPACED and not _HAN_OR_KANA.match(text, end):
        return 0
    return 0 if _PARTICLE.match(text, end) else end


def _is_bracketed(text: str, border: int) -> bool:
    """Return True if `border` is inside a short bracket."""
    near = text[max(0, border - SHORT_BRACKET) : border]
    return any(
        near.count(opening) > near.count(closing)
        and text.find(closing, border, border + SHORT_BRACKET) >= 0
        for opening, closing in (("(", ")"), ("（", "）"))
    )


def _is_quoted(text: str, border: int, pairs: Iterable[str]) -> bool:
    """Return True if `border` is inside a short quotation."""
    for pair in pairs:
        opening, closing = pair[0], pair[1]
        begin = text.rfind(opening, max(0, border - SHORT_QUOTATION), border)
        if opening in "\"'‘":  # these also occur inside words: Hebrew acronyms, apostrophes
            while begin > 0 and text[begin - 1].isalnum() and text[begin + 1].isalnum():
                begin = text.rfind(opening, max(0, border - SHORT_QUOTATION), begin)
            if begin >= 0 and (text[begin - 1 : begin].isalnum() or text[begin + 1].isspace()):
                continue
        if begin < 0:
            continue
        end = text.find(closing, begin + 1, begin + SHORT_QUOTATION + 2)
        if closing in "\"'’":
            while end >= 0 and text[end + 1 : end + 2].isalnum():
                end = text.find(closing, end + 1, begin + SHORT_QUOTATION + 2)
        if end >= border:
            return True
    return False


def split(paragraphs: Iterable[str], language: str = "en") -> Sentences:
    """Split a cleaned document in a language (ISO 639) into sentences."""
    texts: list[str] = []
    starts: list[int] = []
    dropped: list[str] = []
    for paragraph in paragraphs:
        sentences = split_paragraph(paragraph, language)
        if has_hole(paragraph):
            dropped += [sentence for sentence in sentences if PLACEHOLDER_PATTERN.search(sentence)]
            sentences = [text for text in sentences if not PLACEHOLDER_PATTERN.search(text)]
        if sentences:
            starts.append(len(texts))
            texts += sentences
    return Sentences(texts, starts, dropped)


def _removed(sentence: str) -> RemovedText:
    """Return a sentence with placeholders shown as `[…]`, counted by its first placeholder."""
    hole = PLACEHOLDER_PATTERN.search(sentence)
    return RemovedText(HOLES[hole[0]] if hole else "", PLACEHOLDER_PATTERN.sub("[…]", sentence))


def _build(options: CorpusOptions) -> StepFunction:
    fallback = options.fallback_language

    def sentences(document: Document) -> CleaningResult:
        split_document = split(document.paragraphs, document.language or fallback)
        removed = tuple(map(_removed, split_document.dropped))
        if not split_document.texts:
            return CleaningResult(None, "too_short", removed)
        return CleaningResult(document, None, removed, sentences=split_document)

    return sentences


STEP = CleaningStep(options=CorpusOptions, build=_build)
