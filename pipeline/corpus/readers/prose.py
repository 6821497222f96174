"""For readers that take markup away: whether a line of its own is running text, in any script; and punctuation that lost its words."""

from __future__ import annotations

import re

from pipeline.corpus.end_marks import ELLIPSIS, LATIN, OTHER_SCRIPTS

_CLOSERS = "\"'”’»›)\\]」』）》】"
_BURMESE_STOP = "၊"  # ends a clause as often as a sentence
_END = re.compile(rf"[{LATIN}{OTHER_SCRIPTS}{ELLIPSIS}{_BURMESE_STOP}][{_CLOSERS}]*")
# Inside a line: only marks that hardly stand there for anything else, with a blank where the script leaves one.
_INNER_END = re.compile(r"[.!?؟۔।] |[。！？]")
# Scripts written without blanks between words: Han, kana, Thai, Lao, Tibetan, Burmese, Khmer.
_UNSPACED = re.compile(
    "[\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e01-\u0eff\u0f40-\u0fbc\u1000-\u109f\u1780-\u17ff]"
)
_UNSTOPPED = re.compile("[\u0e01-\u0eff\u0f40-\u0fbc\u1780-\u17ff]")  # of them, those that need no full stop
_LETTERS_A_WORD = 2  # of unspaced scripts, about
_FEWEST_WORDS = 4
_LONG = 120  # characters of text that needs no end of its own


def reads_as_prose(text: str) -> bool:
    """Whether a line of its own (a list's item, a remnant of a table) is a sentence: four words, and the end of one."""
    if len(text.split(maxsplit=_FEWEST_WORDS)) < _FEWEST_WORDS:
        if text.isascii():
            return False
        letters = len(_UNSPACED.findall(text[:_LONG]))
        if letters < _FEWEST_WORDS * _LETTERS_A_WORD:
            return False
        if len(text) >= _LONG // 3 and len(_UNSTOPPED.findall(text[:_LONG])) * 2 > letters:
            return True
    if _END.search(text[-4:]):
        return True
    return len(text) > _LONG and bool(_INNER_END.search(text))


_ROUNDS = 4
_EMPTY = re.compile(r"\(\s*\)|\[\s*\]|\"\s*\"|“\s*”|«\s*»")
_AFTER_OPENING = re.compile(r"([(\[])(?:\s*(?:[;,:]|(?:or|and)\b(?=\s*[;,)]))){1,8}\s*")
_BEFORE_CLOSING = re.compile(r"(?:\s*[;,:]){1,8}\s*([)\]])")
_DOUBLED = re.compile(r"([,;:])(?:\s{0,4}[,;])+")
_PADDED = re.compile(r"([(\[])\s+|\s+([)\]])")
_SPACE_BEFORE = re.compile(r"[ \t\n]+([,;:.!?])(?=[\s)\]\"”’]|$)")


def tidy(text: str) -> str:
    """Take away the punctuation that lost its words: `( ; born 1935)` is `(born 1935)`, `()` is nothing."""
    text = _DOUBLED.sub(r"\1", text)
    if "(" in text or "[" in text or '"' in text or "“" in text or "«" in text:
        for _ in range(_ROUNDS):  # one may uncover another
            before = text
            text = _BEFORE_CLOSING.sub(r"\1", _AFTER_OPENING.sub(r"\1", _EMPTY.sub("", text)))
            if text == before:
                break
        text = _PADDED.sub(r"\1\2", text)
    return _SPACE_BEFORE.sub(r"\1", text)


# Without one of these, or with other blanks than single spaces, there is nothing that `tidy` would mend; most paragraphs are such.
_MENDABLE = re.compile(r"[ (\[,;:][,;:.!?)\]]|[(\[](?:or\b|and\b| )|[\"“«] ?[\"”»]")


def mend(text: str) -> str:
    """What `tidy` makes of a text whose only blanks are single spaces, but several times as fast where there is nothing to mend."""
    return tidy(text) if _MENDABLE.search(text) else text
