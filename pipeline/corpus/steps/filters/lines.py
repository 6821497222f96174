"""Removal of lines: boilerplate, and repetitions inside a document.

Boilerplate is cookie notices, menus, share buttons and licences. Each line is judged alone and must
be short. Most rules match whole lines only, so that a sentence about cookies or a privacy policy is
kept. English is covered best; cookie notices are known in six languages.

Of repetitions the first one is kept. Lines are equal if they differ only in case, digits and
punctuation (`Page 1 of 9`, `Page 2 of 9`). Paragraphs of running text must be identical, since a
number may be what they are about. Lines shared by many documents would need counts over the whole
corpus; the rules on boilerplate and C4's cover such menus and notices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from cloze.core.words import count_words, letters_pattern
from cloze.pipeline.corpus.document import (
    ELLIPSIS,
    ETHIOPIC_STOP,
    LATIN,
    OTHER_SCRIPTS,
    Document,
    is_unmarked,
)
from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.steps.base import (
    CleaningResult,
    CleaningStep,
    StepFunction,
    remove_paragraphs,
    restrict_to_sources,
)


class BoilerplateOptions(CorpusOptions):
    """Options of boilerplate removal."""

    web: ClassVar[Mapping[str, Any]] = {"boilerplate": True}

    boilerplate: bool = False
    """Remove lines of cookie notices, menus, share buttons and licences; on with --preset web."""


LONGEST_LINE = 400  # characters; longer lines are kept
_LONGEST_WHOLE = 120

_SITE = r"(?:(?:web ?)?(?:site|page|app|service|store|shop)s?|we|our (?:partners|website))"
_POLICIES = (
    r"(?:privacy (?:policy|notice|statement)|terms (?:of (?:use|service)|(?:and|&) conditions))"
)
_NETWORKS = (
    r"(?:facebook|twitter|linkedin|pinterest|reddit|whatsapp|tumblr|instagram|youtube|telegram|"
    r"google\+|rss|e-?mail|print|more)"
)
_SHARED = (
    r"(?:this|it|us|on|via|with|to|the|your|friends|article|post|page|story|link|by|e-?mail|"
    r"facebook|twitter|x|linkedin|"
    r"pinterest|reddit|whatsapp|tumblr|instagram|youtube|telegram|google\+?|social media|and|or|&)"
)
_MENU = (
    r"(?:home|menu|search|about(?: us)?|contact(?: us)?|login|site ?map|faqs?|help|news|blog|shop|"
    r"cart|next|previous|prev|"
    r"archives?|tags?|categories|top)"
)
_ACCOUNT = (
    r"(?:to|for|with|or|your|our|the|a|free|account|newsletter|register|sign up|log in|facebook|"
    r"google|now|here|today)"
)
_CHANNEL = (
    r"(?:to|for|our|the|a|now|here|today|free|via|by|us|newsletters?|rss|feed|mailing list|e-?mail|"
    r"blog|channel)"
)

# Patterns to search for in the line, in lower case.
_INSIDE = {
    "boilerplate_cookie": (
        rf"\b{_SITE}\b[^.]{{0,60}}\b(?:uses?|using|sets?|stores?)\b[^.]{{0,30}}\bcookies\b",
        r"\b(?:accept|decline|reject|manage|allow|disable|enable) (?:all |our |the use of |"
        r"non-essential |necessary |optional )*cookies\b",
        r"\bcookie (?:policy|settings|preferences|notice|consent|statement)\b|\bconsent to (?:our|"
        r"the|its) use of cookies\b",
        r"\b(?:diese|unsere) (?:web ?)?(?:site|seite) (?:verwendet|benutzt|nutzt) cookies|\bwir "
        r"(?:verwenden|nutzen|setzen) [^.]{0,20}cookies",
        r"\bce site (?:web )?utilise (?:des|les) cookies|\bnous utilisons (?:des|les) cookies",
        r"\b(?:este|esta|nuestro) (?:sitio|web|página)[^.]{0,20} (?:utiliza|usa) cookies|"
        r"\b(?:utilizamos|usamos) cookies",
        r"\bquesto sito [^.]{0,20}(?:utilizza|usa) [^.]{0,10}cookie|\bdeze (?:web)?site "
        r"(?:gebruikt|maakt gebruik van) cookies",
    ),
    "boilerplate_policy": (
        rf"^(?:read |see |view |by [^.]{{3,60}} you (?:agree|accept|consent) )[^.]{{0,"
        rf"40}}\b{_POLICIES}\b",
        rf"^[^.!?]{{0,25}}\b{_POLICIES}\b[^.!?]{{0,25}}$",
    ),
    "boilerplate_copyright": (
        r"^(?:copyright|©|\(c\))\s*(?:©|\(c\)|copyright)?\s*[^.]{0,20}\b(?:19|20)\d\d\b.{0,120}$",
        r"^.{0,80}\ball rights reserved\b.{0,60}$",
        r"^(?:powered|hosted|designed|website) by [\w .,&-]{2,40}$",
    ),
    "boilerplate_javascript": (
        r"\b(?:enable|turn on|activate) (?:javascript|js)\b",
        r"\bjavascript (?:is|must be|has been|needs to be|seems to be) (?:disabled|enabled|"
        r"required|turned off)\b",
        r"\byour browser (?:does(?: not|n't)|doesn’t) (?:currently )?(?:support|recogni[sz]e)\b",
    ),
    "boilerplate_gutenberg": (
        r"^\*{3}\s*(?:start|end) of (?:the|this) project gutenberg|^end of (?:the |this )?project "
        r"gutenberg\b",
        r"^(?:the )?project gutenberg(?:'s|’s)? ?(?:e-?(?:book|text) of|licen[sc]e)\b",
        r"^this e-?(?:book|text) (?:is for the use of anyone|was produced by)",
        r"^(?:etext|e-text|html version|transcribed|produced|scanned|prepared) by [^.]{3,"
        r"120}(?:gutenberg|proofread|pgdp|distributed)",
        r"^(?:updated editions will replace the previous one|creating the works from print "
        r"editions)\b",
        r"^(?:release|posting) date: .{3,60}\[e|^character set encoding: .{3,40}$",
    ),
    "boilerplate_wikipedia": (
        r"^from wikipedia, the free encyclopedia\b|^jump to:? ?(?:navigation|search|content)|"
        r"^retrieved from [\"“]https?://",
        r"^this (?:[\w' -]{0,60}?-related |[\w' -]{0,60} )?article (?:is a stub|needs additional "
        r"citations|does not cite|relies (?:largely|too much))",
        r"^you can help wikipedia by expanding it\.?$|^hidden categor(?:y|ies): |^categor(?:y|"
        r"ies): [^.]{3,300}$",
        r"^this page was last (?:edited|modified|changed) on\b|^text is available under the "
        r"creative commons\b",
        r"^(?:main articles?|further information|see also|for more details on this topic, see)[:,"
        r"]? .{0,120}[^.]$",
        r"^coordinates: \d|^isbn [\dx -]{10,17}\.?$|^\[edit\]$",
    ),
}

# Patterns that must match the whole lower-case line without _BARE_ENDS.
_WHOLE = {
    "boilerplate_share": (
        rf"(?:please )?(?:share|tweet|like|pin|email|follow)(?: {_SHARED}){{0,8}}",
        r"(?:click to )?(?:share|print|email)(?: (?:on|this|to|a friend) [\w ]{0,30})? \(opens in "
        r"(?:a )?new window",
        rf"{_NETWORKS}(?:[\s|/,·•]+{_NETWORKS})*",
        r"\d+ (?:shares?|likes?|tweets?|retweets?|comments?|views?|replies|followers)",
    ),
    "boilerplate_navigation": (
        r"(?:skip|jump|go|back|return|scroll) (?:back )?to (?:the )?(?:main |page )?"
        r"(?:content|navigation|menu|top|home|homepage|search|footer|previous page|main page)",
        r"(?:read|learn|show|see|view|load|find out|discover) (?:more|less|all)"
        r"(?: (?:about|articles?|posts?|from|news|stories|comments?|details|here)){0,3}",
        rf"{_MENU}(?:[\s|/»›>·•,]+{_MENU})*",
        r"(?:previous|next|older|newer|related|recent|popular|latest|more)"
        r"(?: (?:post|article|page|story|entry|entries|posts|articles|stories|comments|news|"
        r"videos|reading)){1,2}",
        r"(?:table of )?contents|toggle navigation|main menu|close(?: menu| window)?|page \d+ of "
        r"\d+|you are here(?::.{0,80})?",
        r"advertise?ments?|continue reading(?: .{0,60})?|click here(?: (?:to|for) .{0,40})?",
    ),
    "boilerplate_form": (
        rf"(?:sign|log) ?(?:in|up|out)(?: {_ACCOUNT}){{0,6}}|(?:subscribe|register|join)(?: "
        rf"{_CHANNEL}){{0,8}}",
        r"(?:leave|post|add|write|submit) (?:a|your) (?:comment|reply|review)|cancel|reply|submit|"
        r"comments are closed",
        r"required fields are marked \*?|your email address will not be published",
        r"(?:name|e-?mail|website|comment|message|password|username)s? ?\*?|forgot(?:ten)? "
        r"(?:your )?password",
        r"add to (?:cart|basket|bag|wish ?list|favou?rites)|you must be logged in to .{3,60}|"
        r"notify me of .{5,60}",
    ),
}

REASONS = (*_INSIDE, *_WHOLE)
_INSIDE_RULES = tuple((reason, re.compile("|".join(rules))) for reason, rules in _INSIDE.items())
_WHOLE_RULES = tuple((reason, re.compile("|".join(rules))) for reason, rules in _WHOLE.items())

# Quick test: no pattern of _INSIDE matches a line without one of these.
_SIGNS = re.compile(
    r"cookie|privacy|terms|copyright|©|\(c\)|rights reserved|\bby |script|\bjs\b|browser|gutenberg|"
    r"e-?book|e-?text|updated|"
    r"creating the works|date: |encoding: |wikipedia|jump to|retrieved|article|categor|page was|"
    r"creative commons|further|see also|"
    r"for more|coordinates|isbn|edit"
)
_BARE_ENDS = " \t.:;,!|»›>«<-–—•·*…→←↑#()[]"


def boilerplate_reason(line: str) -> str | None:
    """Return why a cleaned line is boilerplate; None if it is not."""
    if len(line) > LONGEST_LINE:
        return None
    lower = line.lower()
    if _SIGNS.search(lower):
        for reason, pattern in _INSIDE_RULES:
            if pattern.search(lower):
                return reason
    if len(lower) <= _LONGEST_WHOLE:
        bare = lower.strip(_BARE_ENDS)
        for reason, pattern in _WHOLE_RULES:
            if pattern.fullmatch(bare):
                return reason
    return None


def remove_boilerplate(document: Document) -> CleaningResult:
    """Remove boilerplate lines; their reasons are REASONS."""
    return remove_paragraphs(document, boilerplate_reason)


def _build_boilerplate(options: BoilerplateOptions) -> StepFunction | None:
    if not options.boilerplate:
        return None
    return restrict_to_sources(options.web_sources, remove_boilerplate)


BOILERPLATE = CleaningStep(options=BoilerplateOptions, build=_build_boilerplate)


MINIMUM_WORDS = 6  # of a paragraph
_CLOSED = ('."', '!"', '?"', ".”", "!”", "?”", ".)", ".'", ".’", "」", "»")
_ENDS = (*LATIN, ELLIPSIS, *OTHER_SCRIPTS, ETHIOPIC_STOP, *_CLOSED)


class RepeatedLinesOptions(CorpusOptions):
    """Options of the removal of repeated lines and paragraphs."""

    web: ClassVar[Mapping[str, Any]] = {
        "drop_repeated_lines": True,
        "drop_repeated_paragraphs": True,
    }

    drop_repeated_lines: bool = False
    """Remove lines that occurred earlier in the same document; on with --preset web."""

    drop_repeated_paragraphs: bool = False
    """Remove paragraphs that occurred earlier in the same document; on with --preset web."""


def is_paragraph(text: str) -> bool:
    """Return True for running text: at least six words and the end of a sentence.

    Other texts are lines: headings, items, verse.
    """
    return (text.endswith(_ENDS) or is_unmarked(text)) and count_words(text) >= MINIMUM_WORDS


def remove_repeated(
    document: Document, *, lines: bool = True, paragraphs: bool = True
) -> CleaningResult:
    """Remove repeated lines (`duplicate_line`) and paragraphs (`duplicate_paragraph`)."""
    if len(document.paragraphs) < 2:
        return CleaningResult(document)
    seen: set[str] = set()

    def reason_of(text: str) -> str | None:
        running = is_paragraph(text)
        key = text if running else " ".join(letters_pattern().findall(text.lower()))
        if key and key in seen and (paragraphs if running else lines):
            return "duplicate_paragraph" if running else "duplicate_line"
        seen.add(key)
        return None

    return remove_paragraphs(document, reason_of)


def _build_repeated(options: RepeatedLinesOptions) -> StepFunction | None:
    if not (options.drop_repeated_lines or options.drop_repeated_paragraphs):
        return None
    repeated = partial(
        remove_repeated,
        lines=options.drop_repeated_lines,
        paragraphs=options.drop_repeated_paragraphs,
    )
    return restrict_to_sources(options.web_sources, repeated)


REPEATED = CleaningStep(options=RepeatedLinesOptions, build=_build_repeated)
