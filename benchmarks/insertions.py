"""Words and numbers of the text that the page does not show at that place, per thousand. Run it
from the repository's root:

    python -m benchmarks.insertions DUMP … [--pages NUMBER] [--show NUMBER]

Each sentence of the text is aligned with the page as shown, in order: a word that stands elsewhere
on the page, such as the title in a hatnote above the paragraph, counts as inserted. With a
rendering (`benchmarks.fidelity`) the page as shown is the rendering's running text. In a dump of
wikitext it is drawn by rules of this module alone, not by the reader that is measured: text outside
of templates, labels of links, and the arguments of a template inside a sentence. A template that
opens a line is a box and shows nothing, but for marks of a word's language, script or form and for
a line that goes on with a small letter.
"""

from __future__ import annotations

import argparse
import html
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

from benchmarks.data.measure import table
from cloze.core.config import parse_config
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.readers.base import ReadCounters
from cloze.pipeline.corpus.readers.encyclopedia import dump as reader
from cloze.pipeline.corpus.readers.encyclopedia.mediawiki_xml import Dump, Page
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser
from cloze.pipeline.corpus.readers.streams import as_utf8, open_source
from cloze.pipeline.corpus.sources import plan_reading
from cloze.pipeline.corpus.steps import sentences

UNSPACED = (
    "\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u0e01-\u0eff\u0f40-\u0fbc"
    "\u1000-\u109f\u1780-\u17ff"
)
_MARKS = "".join(
    chr(code) for code in range(0x300, 0xE00) if unicodedata.category(chr(code))[0] == "M"
)
_TOKEN = re.compile(rf"\d+|[{UNSPACED}]|(?:[^\W\d_{UNSPACED}]|[{_MARKS}])+")
_GROUPED = re.compile(r"(?<=\d)[.,'’ \u00a0\u2009\u202f](?=\d{3}(?!\d))")
_HIDDEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
_NOT_SHOWN = re.compile(
    r"<!--.*?-->|<(?:ref|references|gallery)\b[^<>]*/>|<(ref|gallery|timeline|references|templatestyles)\b[^<>]*>.*?</\1\s*>",
    re.DOTALL | re.IGNORECASE,
)
_BRACES = re.compile(r"\{\{|\}\}")
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_TARGET = re.compile(r"\[\[([^\[\]|]*)\|\s*\]\]")
_FILE = re.compile(
    r"\[\[[^\[\]|:\n]+:[^\[\]|\n]*\.\w{3,4}\s*(?:\|(?:[^\[\]]|\[\[[^\[\]]*\]\]|\[[^\[\]]*\])*)?\]\]"
)
_ABOVE = re.compile(r"[\s*#:;'\"|!\u0001-\u0003]*(?:<[^<>]*>\s*)*")
_BOX, _SLOT, _END = "\x01", "\x02", "\x03"
# Names that mark a word, in any wiki: at the beginning of a line they are a subject, not a box.
_MARKUP = re.compile(
    r"lang|nowrap|nobr|nobold|transl|tlit|script|nihongo|harv|ill|link|flag|circa|convert|cvt|val|"
    r"formatnum|iw|не переведено|нп|仮リンク|読み仮名|ruby|small|big|sic|abbr|color|font|sc|smallcaps|"
    r"as of|audio|frac|sfrac|unité|unit|nts|num|hms|uss|ss|'|langx|флаг|state|zh|nastaliq|"
    r"unicode|polytonic|nobreak|要出典範囲|нп\d|лл|langue|date|lien|siècle|s-|s$|v$|ta$|dp$|vchem|chem"
)
_QUOTE = re.compile(
    r".*(?:small|big|zitat|quot|quote|citat|citação|cita |citaz|цитат|alıntı|উক্তি|उद्धरण|引用|παράθεμα|"
    r"क्वोट|poem|verse|column|colonne|nowrap|col-list|list|ubl|columnas|վկայ|քաղվ|cytat|sitat|idézet)"
)
_NOTE = re.compile(r"(?:efn|refn|notetag|sfn|harv|cite |ref|#tag:ref|注)(?!.*(?:txt|nb|text))")
# What templates say in words of their own: units, and in English other words.
_UNITS = frozenset(
    "10 ১০ १० c km m n siècle siècles século segle siglo بالألمانية بالإنجليزية بالفرنسية بالروسية بالإيطالية بالتركية بالفارسية "
    "січня лютого березня квітня травня червня липня серпня вересня жовтня листопада грудня".split()
)  # fmt: skip
_SAID = _UNITS | frozenset(
    "as of since to and or by c fl million billion trillion thousand sq mi ft in km m cu lb per square miles "
    "hectares acres chinese simplified traditional pinyin literally lit russian greek french german latin spanish "
    "italian japanese arabic hebrew ancient old persian turkish polish portuguese korean sanskrit english irish "
    "hungarian dutch swedish welsh czech ukrainian armenian january february march april may june july august "
    "september october november december ad bc bce ce née us s r x metric tons long short st nd rd th barrels day gal us imp 10 albanian berber catalan punjabi azerbaijani oil per".split()
)  # fmt: skip
_NEAR = 25  # tokens around the place of a sentence
_NGRAM = 3  # tokens; twice as many where a token is a character
_SKIP = 6
_CANDIDATES = 4
_DENSE = 0.5  # share of characters above which a page is in such a script


@dataclass(slots=True)
class Insertions:
    """Counts over all pages, with examples of inserted words."""

    pages: int = 0
    pages_hit: int = 0
    words: int = 0
    inserted: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: Insertions) -> None:
        """Add the counts of other pages."""
        self.pages += other.pages
        self.pages_hit += other.pages_hit
        self.words += other.words
        self.inserted += other.inserted
        self.examples += other.examples

    @property
    def per_thousand(self) -> float:
        """Inserted words and numbers per thousand of the text."""
        return 1000 * self.inserted / max(1, self.words)


def tokens(text: str) -> list[str]:
    """Words in lower case and numbers of a text, in order; characters where no blanks are."""
    plain = _HIDDEN.sub("", unicodedata.normalize("NFKC", text)).lower()
    return _TOKEN.findall(_GROUPED.sub("", plain))


@dataclass(slots=True)
class Shown:
    """The page as shown: its tokens, those of templates marked by a flag."""

    tokens: list[str]
    from_template: list[bool]

    @classmethod
    def of_text(cls, text: str) -> Shown:
        """Return the page of a rendering's text."""
        found = tokens(text)
        return cls(found, [False] * len(found))


def of_wikitext(wikitext: str) -> Shown:
    """Return the page of a wikitext by this module's rules."""
    text = _NOT_SHOWN.sub("", wikitext)
    result = Shown([], [])
    for number, piece in enumerate(re.split(f"([{_SLOT}{_END}])", _with_slots(text))):
        if number % 2 == 0:
            found = tokens(_without_markup(piece))
            result.tokens += found
            result.from_template += [number % 4 == 2] * len(found)
    return result


def _with_slots(text: str) -> str:
    """Replace the outermost templates: boxes by nothing, others by their arguments in marks."""
    pieces: list[str] = []
    line = ""  # of the page before the template
    depth = begin = position = 0
    for match in _BRACES.finditer(text):
        if match[0] == "{{":
            if not depth:
                begin = match.start()
            depth += 1
        elif depth:
            depth -= 1
            if not depth:
                before = text[position:begin]
                line = before.rpartition("\n")[2] if "\n" in before else line + before
                content = text[begin + 2 : match.start()]
                pieces.append(before)
                position = match.end()
                if _is_shown(content, line, text[position : position + 3]):
                    pieces.append(_SLOT + _arguments(content) + _END)
                    line += _SLOT
                else:
                    line += _BOX
    return "".join((*pieces, text[position:]))


def _is_shown(content: str, line: str, after: str) -> bool:
    name = content.partition("|")[0].strip().lower().replace("_", " ")
    if _NOTE.match(name):
        return False
    if "\n" in content.strip():
        return _QUOTE.match(name) is not None
    if not _ABOVE.fullmatch(line):
        return True
    goes_on = after.lstrip(" '")[:1]
    return (
        _MARKUP.match(name) is not None
        or _QUOTE.match(name) is not None
        or ((goes_on.islower() or goes_on in tuple(",;:.()–—-")) and "\n" not in after)
    )


def _arguments(content: str) -> str:
    """Return the name after a colon and the values of the arguments, inner templates alike."""
    flat = content
    for _ in range(6):
        inner = re.sub(r"\{\{([^{}]*)\}\}", lambda match: " " + match[1].replace("|", " ¦ "), flat)
        if inner == flat:
            break
        flat = inner
    return re.sub(r"[{}]", "", flat).replace("|", " ¦ ").replace("=", " = ")


def _without_markup(text: str) -> str:
    text = _TARGET.sub(r"\1", _FILE.sub("", text))
    for _ in range(3):
        text = _LINK.sub(r"\1", text)
    text = re.sub(r"</?(?:sub|small|span|big|i|b|u|wbr)\b[^<>]*>|\[\[|\]\]", "", text)
    text = re.sub(r"''+", "'", text).replace("''", "'")  # an apostrophe separates tokens
    return html.unescape(re.sub(r"</?[a-z][a-z0-9]*(?: [^<>]*)?/?>|\[?https?:[^\s\]]+", " ", text))


def insertions(
    lines: Iterable[str], shown: Shown, excused: frozenset[str] = frozenset()
) -> Insertions:
    """Count the words of sentences that the page does not show at their places.

    Args:
        lines: sentences of the text.
        shown: the page.
        excused: words that templates say of their own.
    """
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    characters = sum(len(token) == 1 for token in shown.tokens)
    length = _NGRAM * (2 if characters > _DENSE * len(shown.tokens) else 1)
    for index in range(len(shown.tokens) - length + 1):
        places[tuple(shown.tokens[index : index + length])].append(index)
    result = Insertions(pages=1)
    for line in lines:
        own = tokens(line)
        added = _inserted(own, shown, places, excused)
        result.words += len(own)
        result.inserted += len(added)
        if added:
            result.examples.append(f"{' '.join(added)}  <  {line[:160]}")
    result.pages_hit = int(result.inserted > 0)
    return result


def _inserted(
    own: Sequence[str],
    shown: Shown,
    places: dict[tuple[str, ...], list[int]],
    excused: frozenset[str],
) -> list[str]:
    """Return the inserted words of a sentence at the place of the page that fits it best."""
    votes: Counter[int] = Counter()
    diagonals: Counter[int] = Counter()
    length = len(next(iter(places), ()))
    for index in range(len(own) - length + 1):
        for place in places.get(tuple(own[index : index + length]), ())[:200]:
            diagonals[place - index] += 1
            bucket = (place - index) // _NEAR
            votes.update((bucket, bucket + 1))  # overlapping: a border cuts no sentence
    if not votes:
        return [] if len(own) < 2 * length else list(own)
    if max(diagonals.values()) >= len(own) - length + 1:  # it stands there as it is
        return []
    best: list[str] | None = None
    for bucket, _ in votes.most_common(_CANDIDATES):
        begin = max(0, bucket * _NEAR - 3 * _NEAR)
        end = bucket * _NEAR + 2 * len(own) + 5 * _NEAR
        added = _added(own, shown.tokens[begin:end], shown.from_template[begin:end], excused)
        best = added if best is None or len(added) < len(best) else best
    return best or []


def _added(
    own: Sequence[str], window: Sequence[str], slots: Sequence[bool], excused: frozenset[str]
) -> list[str]:
    """Return the words of a sentence that a piece of the page has not, in order."""
    said = {token for token, flag in zip(window, slots, strict=True) if flag}
    said |= {f"{token}e" for token in said}  # {{s|XIX}} says XIXe siècle
    said |= {left + right for left, right in pairwise(window) if left in said and right in said}
    added: list[str] = []
    skipped = 0  # words of the page that the sentence leaves out here
    matcher = SequenceMatcher(None, own, window, autojunk=False)
    for kind, first, last, start, stop in matcher.get_opcodes():
        joined = "".join(window[max(0, start - 1) : stop + 1])
        is_same = "".join(own[first:last]) in joined  # cut elsewhere into tokens
        # A few words that match only far from the others of the sentence stand elsewhere.
        is_far = kind == "equal" and skipped > _SKIP and first and len(own) - first <= _NGRAM
        if is_far or (kind in ("delete", "replace") and not is_same):
            added += [word for word in own[first:last] if word not in said and word not in excused]
        skipped = slots[start:stop].count(False) if kind in ("insert", "replace") else 0
    return added


def articles(path: Path) -> Iterator[tuple[WikitextParser, Page]]:
    """Yield the articles of a dump, with the parser of its wiki."""
    config = parse_config(
        CorpusConfig,
        {"sources": [{"kind": "wikipedia", "path": str(path)}], "on_error": "quarantine"},
        "corpus",
    )
    one = plan_reading(config.listed())[0][0]
    tally = ReadCounters(slice=one.slice, stop=False)
    dump = Dump(as_utf8(open_source(str(path))), tally, config.maximum_document_bytes)
    markup = None
    for page in dump.pages():
        if markup is None:
            options = reader.WikipediaOptions()
            markup = WikitextParser(dump.site.names, **options.rules(dump.site.language))
        if not reader._reason(page, markup, frozenset(), frozenset({"0"})):
            yield markup, page


def measure(path: Path, pages: int, found: dict[str, Insertions]) -> None:
    """Add the pages of a dump to the counts of its language."""
    for markup, page in articles(path):
        total = found.setdefault(markup.language, Insertions())
        lines = sentences.split(markup.extract(page.text).paragraphs, markup.language).texts
        excused = _SAID if markup.language == "en" else _UNITS
        one = insertions(lines, of_wikitext(page.text), excused)
        one.examples = [f"{page.title}: {example}" for example in one.examples]
        total.add(one)
        if total.pages >= pages:
            break


def row(name: str, one: Insertions) -> tuple[str, ...]:
    """Return a row of the table."""
    return (
        name,
        f"{one.pages:,}",
        f"{one.words:,}",
        f"{one.inserted:,}",
        f"{one.per_thousand:.3f}",
        f"{100 * one.pages_hit / max(1, one.pages):.1f} %",
    )


HEAD = ("", "pages", "words and numbers", "inserted", "per thousand", "pages with any")


def main() -> None:
    """Print the table, and examples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", nargs="+", type=Path)
    parser.add_argument("--pages", type=int, default=1 << 30, metavar="NUMBER", help="of a dump")
    parser.add_argument("--show", type=int, default=0, metavar="NUMBER", help="examples of each")
    given = parser.parse_args()
    report(given.dumps, given.pages, given.show)


def report(dumps: Iterable[Path], pages: int = 1 << 30, show: int = 0) -> None:
    """Print the table of dumps, and examples of each language."""
    found: dict[str, Insertions] = {}
    for path in dumps:
        measure(path, pages, found)
    total = Insertions()
    for one in found.values():
        total.add(one)
    print(table(HEAD, [row(name, one) for name, one in [*found.items(), ("all", total)]]))
    for language, one in found.items():
        for example in one.examples[:show]:
            print(f"{language}  {example}")


if __name__ == "__main__":
    main()
