"""Text of web pages: decoding, and extraction of the main text."""

from __future__ import annotations

import contextlib
import html
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers import encodings
from cloze.pipeline.corpus.readers.encodings import BYTE_ORDER_MARKS
from cloze.pipeline.corpus.readers.prose import alternatives, read_lists, reads_as_prose
from cloze.pipeline.corpus.readers.raised import without_marks

_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_META_BYTES = 4096
# Python's codecs lack the vendors' characters that these labels include (WHATWG Encoding Standard).
_CODECS = {
    "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "gbk": "gb18030",
    "iso8859-11": "cp874",
}  # fmt: skip
_MOST_INVALID = 0.1  # share of the non-ASCII characters; more if the encoding is wrong
_MARKUP = re.compile(rb"<[^<>]*>")
_SAMPLE_BYTES = 1 << 13  # for detection
_HIGH, _RARE = bytes(range(0x80, 0x100)), 200  # bytes of a page to one beyond ASCII
_DEFAULT = "cp1252"  # of servers, whatever the page


def decode_page(data: bytes, charset: str = "", *, is_html: bool) -> str:
    """Decode a page; invalid bytes become U+FFFD.

    The encoding is taken from the byte order mark, UTF-8 if the bytes are that, the HTTP header,
    `<meta>`, or detection. One without invalid bytes is preferred to one with few. `<meta>` comes
    before a header of Latin-1, which servers send by default; detection, where it is sure, too.

    Args:
        charset: encoding in the HTTP header; empty if there is none.
        is_html: bool, True if the page may declare its encoding in `<meta>`.

    Returns:
        An empty text if the encoding is not known.
    """
    from resiliparse.parse.encoding import map_encoding_to_html5

    mark_encoding = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), "")
    meta = _META.search(data[:_META_BYTES]) if is_html else None
    labels = (charset, meta[1].decode() if meta else "")
    if map_encoding_to_html5(charset, fallback_utf8=False) == _DEFAULT:
        labels = labels[::-1]
    # Text of another encoding is hardly ever valid UTF-8, unless it is in 7 bits as ISO-2022-JP.
    candidates = [] if mark_encoding or data.isascii() else ["utf-8"]
    for label in filter(None, (mark_encoding, *labels)):
        encoding = map_encoding_to_html5(label, fallback_utf8=False)
        # a page with a readable <meta> is not UTF-16
        if encoding and (label == mark_encoding or not encoding.startswith("utf-16")):
            candidates.append(_CODECS.get(encoding, encoding))
    candidates = list(dict.fromkeys(candidates))
    if data.isascii():
        candidates.append(encodings.shifted(data) or "utf-8")
    for number, encoding in enumerate(candidates):
        if encoding == _DEFAULT:
            candidates[number] = encoding = _detected(data) or encoding
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding).removeprefix("\ufeff")
    if _DEFAULT not in candidates:
        candidates.append(_detected(data))
    for encoding in filter(None, candidates):
        text = data.decode(encoding, "replace")
        if text.count("\ufffd") <= _MOST_INVALID * sum(map("\x7f".__lt__, text)):
            return text.removeprefix("\ufeff")
    return ""


def _detected(data: bytes) -> str:
    """Return the name of a page's encoding; empty if it is not sure, and more than a rare letter.

    Only its lines with bytes beyond ASCII count, without markup.
    """
    text = _MARKUP.sub(b"\n", data)
    lines = encodings.high_lines(text)
    sample = lines[: lines.rfind(b"\n", 0, _SAMPLE_BYTES) + 1] or lines
    is_rare = len(text) > _RARE * (len(text) - len(text.translate(None, _HIGH)))
    return (encodings.detect(sample).encoding if sample else "") or (_DEFAULT if is_rare else "")


# Extraction of the main text without navigation, comments and boilerplate, by trafilatura or
# Resiliparse.

Extractor = Literal["trafilatura", "fast"]

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_TAGS = read_lists(Path(__file__).with_suffix(".txt"))
_UNCLOSED, _CONTAINERS, _INLINE_TAGS = (
    frozenset(_TAGS[name]) for name in ("optional end tags", "containers", "inline")
)
# nesting depth; Resiliparse's time grows with it, and lxml omits deeper elements
_DEEPEST = 256
_LONGEST = 2 << 20  # characters for trafilatura: a few seconds
_STRIPPED = re.compile(rf"</?(?:{alternatives(_TAGS, 'stripped')})\b[^<>]*>", re.IGNORECASE)
_MOST_STRIPPED = 4_000
_LONGEST_TAG = 1 << 14  # characters
# Elements whose words touch and only the style sheet separates: `<a>Kristi Noem</a><span>Kristi
# Lynn …`.
_INLINE = "(?:a|abbr|b|em|font|i|small|span|strong|u)"
_TOUCHING = re.compile(
    rf"</(?<=[^\W\d_A-ZÀ-Þ]</){_INLINE}\s*>(?:</{_INLINE}\s*>)*(?=(?:<[a-zA-Z][^<>]{{0,"
    rf"2000}}>)+[A-ZÀ-Þ])"
)
_TITLE = re.compile(r"<title\b[^<>]*>([^<]{0,2000})", re.IGNORECASE)
_MENUS, _MOST_OF_TEXT = 0.05, 0.7  # shares of a page's characters: benchmarks/web_pages.py
_DROPPED = {"head": "heading", "code": "code"}  # elements of trafilatura
_APART = frozenset(("lb", "p", "quote", "head"))


class WebOptions(CorpusOptions):
    """Options of the text extraction from web pages."""

    extractor: Extractor = "trafilatura"
    """Extractor of the main text of crawled pages: trafilatura, or fast (Resiliparse, five times as
    fast, keeps only full sentences)."""


def main_text(text: str, extractor: Extractor) -> tuple[str, list[str], Counter[str]] | str:
    """Extract the main text of an HTML page.

    Returns:
        (title, lines, numbers of omitted lines by reason), or the reason to drop the page.
    """
    text = without_marks(_without_long_tags(text.replace("\0", "")))
    text = _TOUCHING.sub(r"\g<0> ", text)
    if len(_STRIPPED.findall(text)) > _MOST_STRIPPED:
        text = _STRIPPED.sub("", text)
    if extractor == "trafilatura" and len(text) <= _LONGEST:
        lines, dropped = _by_trafilatura(text)
        if lines:
            return _title(text), lines, dropped
    if _depth(text) > _DEEPEST:
        return "too_deep"
    title, lines = _by_resiliparse(text)
    prose_lines = [line for line in lines if reads_as_prose(line)]
    return title, prose_lines, Counter(fragment=len(lines) - len(prose_lines))


def _without_long_tags(text: str) -> str:
    """Return the page with very long tags bare; parsers compare their attributes in pairs."""
    pieces = text.split(">")
    if max(map(len, pieces)) <= _LONGEST_TAG:
        return text
    for number, piece in enumerate(pieces):
        tag = _TAG.search(piece) if len(piece) > _LONGEST_TAG else None
        if tag and len(piece) - tag.start() > _LONGEST_TAG:
            pieces[number] = piece[: tag.end()]
    return ">".join(pieces)


def _by_trafilatura(text: str) -> tuple[list[str], Counter[str]]:
    """Return the lines of the main text (also items and rows), without headings and code.

    Where menus stand between the sentences, trafilatura's precision mode chooses among the lines.
    Its own lines lack links, even inside sentences. Where it loses most of a page, it is ignored.
    """
    lines, dropped = _extract(text)
    size = sum(map(len, lines))
    if sum(len(line) for line in lines if not reads_as_prose(line)) < _MENUS * size:
        return lines, dropped
    precise = _shingles(_extract(text, favor_precision=True)[0])
    shingles = [(line, _shingles([line])) for line in lines]
    kept = [line for line, found in shingles if 2 * len(found & precise) >= len(found)]
    if sum(map(len, kept)) < _MOST_OF_TEXT * size:
        return lines, dropped
    return kept, dropped + Counter(fragment=len(lines) - len(kept))


def _shingles(lines: list[str]) -> set[str]:
    width = 8  # characters, for scripts without blanks
    return {line[n : n + width] for line in lines for n in range(max(1, len(line) - width + 1))}


def _extract(text: str, **mode: bool) -> tuple[list[str], Counter[str]]:
    from trafilatura import bare_extraction
    from trafilatura.utils import load_html

    try:
        root = load_html(text)
        _wrap_loose_text(root)
        page = bare_extraction(
            root, include_comments=False, fast=True, deduplicate=False, with_metadata=False, **mode
        )
    except Exception:  # unexpected errors of any kind: the other extractor reads the page
        page = None
    lines: list[str] = []
    dropped: Counter[str] = Counter()
    for block in () if page is None or isinstance(page, dict) else page.body:
        if block.tag in _DROPPED:
            dropped[_DROPPED[block.tag]] += 1
        elif block.tag == "list":
            lines += map(_words, block.iter("item"))
        elif block.tag == "table":
            lines += (
                ", ".join(filter(None, map(_words, row.iter("cell")))) for row in block.iter("row")
            )
        else:
            lines.append(_words(block))
    return [line for line in lines if any(map(str.isalnum, line))], dropped


def _wrap_loose_text(root: Any) -> None:
    """Make paragraphs of the sentences between those of a page; trafilatura would omit them."""
    if root is None:
        return
    for container in dict.fromkeys(paragraph.getparent() for paragraph in root.iter("p")):
        if container is None or container.tag not in _CONTAINERS:
            continue
        block, inline = None, list[Any]()
        for child in [*container, None]:
            if child is not None and (not isinstance(child.tag, str) or child.tag in _INLINE_TAGS):
                inline.append(child)
                continue
            _wrap(container, block, inline)
            block, inline = child, []


def _wrap(container: Any, block: Any, inline: list[Any]) -> None:
    """Put the text and elements after a block, or at the start of a container, in a paragraph."""
    first = container.text if block is None else block.tail
    text = [first or ""]
    for child in inline:
        text += [*child.itertext(), child.tail or ""]
    if not reads_as_prose(" ".join("".join(text).split())):
        return
    paragraph = container.makeelement("p")
    paragraph.text = first
    if block is None:
        container.text = None
        container.insert(0, paragraph)
    else:
        block.tail = None
        block.addnext(paragraph)
    paragraph.extend(inline)


def _words(element: Any) -> str:
    """Return the text of an element on one line, without nested lists."""
    return " ".join("".join(_pieces(element)).split())


def _pieces(element: Any) -> Iterator[str]:
    yield element.text or ""
    for child in element:
        if child.tag != "list":
            separator = " " if child.tag in _APART else ""
            yield separator
            yield from _pieces(child)
            yield separator
        yield child.tail or ""


def _by_resiliparse(text: str) -> tuple[str, list[str]]:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    tree = HTMLTree.parse(text)
    content = extract_plain_text(
        tree, main_content=True, list_bullets=False, alt_texts=False, comments=False
    )
    lines = (" ".join(line.split()) for line in content.split("\n"))
    return " ".join((tree.title or "").split()), list(filter(None, lines))


def _title(text: str) -> str:
    match = _TITLE.search(text)
    return " ".join(html.unescape(match[1]).split()) if match else ""


def _depth(text: str) -> int:
    """Return the maximum nesting depth, without elements whose end tag is optional.

    As in a browser, an end tag closes what is open inside its element, or nothing if there is none.
    """
    opened: list[str] = []
    counts: Counter[str] = Counter()
    deepest = 0
    for closing, tag in _TAG.findall(text):
        name = tag.lower()
        if name in _UNCLOSED:
            continue
        if not closing:
            opened.append(name)
            counts[name] += 1
            deepest = max(deepest, len(opened))
        elif counts[name]:
            while (last := opened.pop()) != name:
                counts[last] -= 1
            counts[name] -= 1
    return deepest
