"""Text of web pages: decoding, and extraction of the main text."""

from __future__ import annotations

import contextlib
import html
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal

from cloze.pipeline.corpus.options import CorpusOptions
from cloze.pipeline.corpus.readers.prose import reads_as_prose
from cloze.pipeline.corpus.readers.streams import BYTE_ORDER_MARKS

_META = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_META_BYTES = 4096
# Python's codecs lack the vendors' characters that these labels include (WHATWG Encoding Standard).
_CODECS = {
    "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs", "gbk": "gb18030",
    "iso8859-11": "cp874",
}  # fmt: skip
_MOST_INVALID = 0.1  # share of the non-ASCII characters; more if the encoding is wrong


def decode_page(data: bytes, charset: str = "", *, is_html: bool) -> str:
    """Decode a page; invalid bytes become U+FFFD.

    The encoding is taken from the byte order mark, UTF-8 if the bytes are that, the HTTP header,
    `<meta>`, or detection. One without invalid bytes is preferred to one with few. `<meta>` comes
    before a header of Latin-1, which servers send by default. Default: Windows-1252.

    Args:
        data: bytes of the page.
        charset: encoding in the HTTP header; empty if there is none.
        is_html: bool, True if the page may declare its encoding in `<meta>`.
    """
    from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

    mark_encoding = next((name for mark, name in BYTE_ORDER_MARKS if data.startswith(mark)), "")
    meta = _META.search(data[:_META_BYTES]) if is_html else None
    labels = (charset, meta[1].decode() if meta else "")
    if map_encoding_to_html5(charset, fallback_utf8=False) == "cp1252":
        labels = labels[::-1]
    # Text of another encoding is hardly ever valid UTF-8, unless it is in 7 bits as ISO-2022-JP.
    encodings: list[str] = [] if mark_encoding or data.isascii() else ["utf-8"]
    for label in filter(None, (mark_encoding, *labels)):
        encoding = map_encoding_to_html5(label, fallback_utf8=False)
        # a page with a readable <meta> is not UTF-16
        if encoding and (label == mark_encoding or not encoding.startswith("utf-16")):
            encodings.append(_CODECS.get(encoding, encoding))
    for encoding in (*encodings, "utf-8"):
        with contextlib.suppress(UnicodeDecodeError):
            return data.decode(encoding).removeprefix("\ufeff")
    detected = detect_encoding(data, html5_compatible=True) or "utf-8"
    for encoding in (*encodings, _CODECS.get(detected, detected)):
        text = data.decode(encoding, "replace")
        if text.count("\ufffd") <= _MOST_INVALID * sum(map("\x7f".__lt__, text)):
            return text.removeprefix("\ufeff")
    return data.decode("cp1252", "replace")


# Extraction of the main text without navigation, comments and boilerplate, by trafilatura or
# Resiliparse.

Extractor = Literal["trafilatura", "fast"]

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_UNCLOSED = frozenset(
    """
    area base br col embed hr img input link meta param source track wbr p li dt dd tr td th thead
    tbody tfoot option optgroup colgroup
    """.split()
)
# nesting depth; Resiliparse's time grows with it, and lxml omits deeper elements
_DEEPEST = 256
_LONGEST = 2 << 20  # characters for trafilatura: a few seconds
# Tags without meaning; trafilatura removes each and moves the text after it: quadratic time.
_STRIPPED = re.compile(
    r"</?(?:abbr|acronym|bdi|bdo|big|cite|data|dfn|font|ins|mark|nobr|small|span|wbr)\b[^<>]*>",
    re.IGNORECASE,
)
_MOST_STRIPPED = 4_000
# Elements whose words touch and only the style sheet separates: `<a>Kristi Noem</a><span>Kristi
# Lynn …`.
_INLINE = "(?:a|abbr|b|em|font|i|small|span|strong|u)"
_TOUCHING = re.compile(
    rf"</(?<=[^\W\d_A-ZÀ-Þ]</){_INLINE}\s*>(?:</{_INLINE}\s*>)*(?=(?:<[a-zA-Z][^<>]{{0,"
    rf"2000}}>)+[A-ZÀ-Þ])"
)
_TITLE = re.compile(r"<title\b[^<>]*>([^<]{0,2000})", re.IGNORECASE)
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
    text = _TOUCHING.sub(r"\g<0> ", text.replace("\0", ""))
    if extractor == "trafilatura" and len(text) <= _LONGEST:
        lines, dropped = _by_trafilatura(text)
        if lines:
            return _title(text), lines, dropped
    if _depth(text) > _DEEPEST:
        return "too_deep"
    title, lines = _by_resiliparse(text)
    prose_lines = [line for line in lines if reads_as_prose(line)]
    return title, prose_lines, Counter(fragment=len(lines) - len(prose_lines))


def _by_trafilatura(text: str) -> tuple[list[str], Counter[str]]:
    """Return the lines of the main text (also items and rows), without headings and code."""
    from trafilatura import bare_extraction

    if len(_STRIPPED.findall(text)) > _MOST_STRIPPED:
        text = _STRIPPED.sub("", text)
    try:
        page = bare_extraction(
            text, include_comments=False, fast=True, deduplicate=False, with_metadata=False
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
    """Return the maximum nesting depth, without elements whose end tag is optional."""
    depth = deepest = 0
    for closing, name in _TAG.findall(text):
        if name.lower() in _UNCLOSED:
            continue
        depth = max(0, depth - 1) if closing else depth + 1
        deepest = max(deepest, depth)
    return deepest
