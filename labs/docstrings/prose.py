"""Prose in docstrings: numpydoc, Google style, field lists, reStructuredText, Markdown.

Dropped are descriptions of interfaces: signatures, parameter tables, doctests, code, formulas,
references, version notes. Kept are summaries, explanations, notes, warnings, and list items that
are sentences.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from cloze.pipeline.corpus.readers.prose import read_lists

_LISTS = read_lists(Path(__file__).with_suffix(".txt"), " | ")
_TABLES, _DESCRIBED = frozenset(_LISTS["interface"]), frozenset(_LISTS["described"])
_KEPT_DIRECTIVES = frozenset(_LISTS["kept directives"])
_TITLED_DIRECTIVES = frozenset(_LISTS["titled directives"])
# `name (type): Words`
_NAMED = re.compile(r"[*`\w][\w.*`, \[\]|]*(?:\s*\(.*?\))?(?<! ):\s+(?=[A-Z])")
_UNDERLINE = re.compile(r"([=\-~^\"'`*+#.:_])\1{2,}\s*")
_GOOGLE = re.compile(r"([A-Z][A-Za-z ]{2,24}):{1,2}\s*")
_FIELD = re.compile(r":[A-Za-z][\w *,.\[\]|~-]*:(?:\s|$)|@[a-z]+\b")
_DIRECTIVE = re.compile(r"\.\.\s+(?:\|[^|]+\|\s+)?([\w:-]+)::\s*(.*)|\.\. .*|\.\.$")
_FENCE = re.compile(r"(?:```|~~~)")
_ITEM = re.compile(r"(?:[-*+•]|\(?(?:\d{1,2}|[a-zA-Z]|#)[.)])\s+")
_COMMENT_OR_TABLE = re.compile(
    r"\||\+[-=+]{3,}|#[^#\s]|={3,}[= ]*$|-{3,}[- ]*$|%|\$ |In \[\d|Out\[\d"
)

_ROLE = re.compile(r":(?:[a-z]+:)*[a-z]+:`~?!?([^`<]*?)(?:\s*<[^`>]*>)?`")
_LINK = re.compile(r"`([^`<]+?)\s*<[^`>]+>`_{1,2}")
_MARKDOWN_LINK = re.compile(r"!?\[([^\]\n]+)\]\([^)\s]*\)")
_LITERAL = re.compile(r"``(.+?)``|`([^`]+)`_{0,2}")
_MATH_ROLE = re.compile(r":math:`|\$[^$]+\$|\\[a-z]+\{")
_STRONG = re.compile(r"(?<![\w*])(\*{1,2})(?=\S)([^*]+?)(?<=\S)\1(?![\w*])")
_CITATION = re.compile(r"\s*\[(?:\d{1,3}|#\w*|[A-Z][\w+-]*\d{2,4}[a-z]?|\*)\]_?|\s*\|\w+\|_?")
_URL = re.compile(r"<?(?:https?|ftp)://[^\s>)\]]+>?|\bwww\.[^\s>)]+")
_PLACEHOLDER = re.compile(r"%\(\w+\)|sphx_glr_|\{\w*\}|\\\\|__\w+__\s*=|\{\{|\}\}")
_CODE = re.compile(
    r"[\w\])]\s*(?:=|==|->|\+=)\s*[\w\[(\"']|;\s*$|^\s*(?:def|class|import|from \w+ import|return|"
    r"if .*:$|for .*:$)\b|\w\(\w*\)\.\w"
)
_SENTENCE_START = re.compile(r"[\"'“(]?[^\W\d_]")
# Up to the last English end of a sentence; what follows is not a sentence.
_LAST_END = re.compile(r".*[.!?][\"')\]”’]*(?=\s|$)", re.DOTALL)
_BLANK_BEFORE_MARK = re.compile(r"\s+([,.;:])(?=\s|$)")
_LETTER_OR_BLANK = re.compile(r"[^\W\d_]|\s")

FEWEST_DESCRIPTION_WORDS = 8
FEWEST_WORDS = 4
FEWEST_CHARACTERS = 20
MOST_SYMBOLS = 0.12  # share of characters that are neither letters nor blanks


def prose(docstring: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring that read as prose, each on one line."""
    docstring = inspect.cleandoc(docstring.replace("\t", "    "))
    lines = [line.rstrip() for line in docstring.split("\n")]
    for paragraph in _paragraphs(lines):
        text = _inline(" ".join(paragraph))
        if text:
            yield text
    for paragraph in _descriptions(lines):
        text = _inline(" ".join(paragraph))
        if len(text.split()) >= FEWEST_DESCRIPTION_WORDS and _LAST_END.fullmatch(text):
            yield text


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    """Yield runs of lines that may be prose; other blocks are skipped."""
    current: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        text = line.strip()
        if not text:
            yield from _flush(current)
            number += 1
            continue
        end = _skipped(lines, number)
        if end > number:
            yield from _flush(current)
            number = end
            continue
        directive = _DIRECTIVE.match(text)
        if directive:  # a directive with prose: its title may be prose, its name is not
            yield from _flush(current)
            if directive[2] and directive[1] not in _TITLED_DIRECTIVES:
                current.append(directive[2])
            number += 1
            continue
        item = _ITEM.match(text)
        if item:
            yield from _flush(current)
            text = text[item.end() :]
        current.append(text)
        number += 1
        if text.endswith("::"):  # introduces code
            current[-1] = text[:-1]
            yield from _flush(current)
            number = _block_end(lines, number, _indent(line))
        elif (
            len(current) == 1
            and not item
            and number < len(lines)
            and _indent(lines[number]) > _indent(line) + 1
        ):
            yield from _flush(current)  # a term and its definition, or a signature and its text
    yield from _flush(current)


def _skipped(lines: list[str], number: int) -> int:
    """Return the end of the non-prose block that begins at this line; `number` if it is prose."""
    line, count = lines[number], len(lines)
    text = line.strip()
    name, end = _section(lines, number)
    if name:
        if name not in _TABLES:
            return end
        if end - number == 1:  # Google style: the indented block below the name
            return _block_end(lines, end, _indent(line))
        while end < count and not _is_underlined(lines, end):  # numpydoc: up to the next section
            end += 1
        return end
    if text.startswith(">>>"):
        return next((end for end in range(number, count) if not lines[end].strip()), count)
    if _FENCE.match(text):
        fences = (end for end in range(number + 1, count) if _FENCE.match(lines[end].strip()))
        return next(fences, count) + 1
    directive = _DIRECTIVE.match(text)
    if directive and (directive[1] or "").lower() not in _KEPT_DIRECTIVES:
        return _block_end(lines, number + 1, _indent(line))
    if _FIELD.match(text):
        end = number + 1
        while end < count and lines[end].strip() and _indent(lines[end]) > _indent(line):
            end += 1
        return end
    return number + 1 if _COMMENT_OR_TABLE.match(text) or _UNDERLINE.fullmatch(text) else number


def _section(lines: list[str], number: int) -> tuple[str, int]:
    """Return the lower-case name of the section that begins here and the line after its heading.

    The name is "" if no section begins at this line.
    """
    text = lines[number].strip()
    if _is_underlined(lines, number):
        return text.rstrip(":").lower(), number + 2
    match = _GOOGLE.fullmatch(text)
    if match and _block_follows(lines, number):
        return match[1].strip().lower(), number + 1
    return "", number


def _descriptions(lines: list[str]) -> Iterator[list[str]]:
    """Yield the sentences of parameter and result tables, without names and types."""
    number = 0
    while number < len(lines):
        name, begin = _section(lines, number)
        if name not in _DESCRIBED:
            number += 1
            continue
        number = _skipped(lines, number)
        block = [line for line in lines[begin:number] if line.strip()]
        base_indent = min(map(_indent, block), default=0)
        entry: list[str] = []
        for line in [*lines[begin:number], " " * base_indent + "end"]:
            if line.strip() and _indent(line) <= base_indent:
                yield from _paragraphs(inspect.cleandoc("\n".join(entry)).split("\n"))
                match = _NAMED.match(line.strip())
                entry = [line.strip()[match.end() :]] if match else [""]
            else:
                entry.append(line)


def _is_underlined(lines: list[str], number: int) -> bool:
    text = lines[number].strip()
    next_line = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return (
        len(text) >= 2
        and not _UNDERLINE.fullmatch(text)
        and bool(_UNDERLINE.fullmatch(next_line))
        and len(next_line) >= min(len(text), 3)
    )


def _flush(current: list[str]) -> Iterator[list[str]]:
    if current:
        yield list(current)
        current.clear()


def _block_follows(lines: list[str], number: int) -> bool:
    """Return True if one of the next two lines with text is indented more than this one."""
    for line in lines[number + 1 : number + 3]:
        if line.strip():
            return _indent(line) > _indent(lines[number])
    return False


def _block_end(lines: list[str], number: int, indent: int) -> int:
    """Return the first line from `number` on with text at `indent` or less."""
    while number < len(lines) and (not lines[number].strip() or _indent(lines[number]) > indent):
        number += 1
    return number


def _inline(text: str) -> str:
    """Return a paragraph without markup, up to its last whole sentence; empty if no prose."""
    if _PLACEHOLDER.search(text) or _MATH_ROLE.search(text):
        return ""
    text = _LINK.sub(r"\1", _ROLE.sub(_role, text))
    text = _LITERAL.sub(
        lambda match: (match[1] or match[2]).strip(), _MARKDOWN_LINK.sub(r"\1", text)
    )
    text = _STRONG.sub(r"\2", _STRONG.sub(r"\2", text))
    text = _CITATION.sub("", _URL.sub("", text))
    text = text.replace("\\ ", "").replace("\\*", "*").replace("\\_", "_").replace("<>", "")
    text = " ".join(text.split()).replace("()", "\x01")
    text = _BLANK_BEFORE_MARK.sub(r"\1", text).replace("( )", "").replace("\x01", "()")
    if text.endswith((":", ",", "(", "e.g.", "i.e.")):
        sentence_match = _LAST_END.match(text)
        if not sentence_match or sentence_match[0].endswith(("e.g.", "i.e.")):
            return ""
        text = sentence_match[0].strip()
    return text if _is_prose(text) else ""


def _role(match: re.Match[str]) -> str:
    name = match[1].strip()
    return name.rpartition(".")[2] if match[0].partition("`")[2].startswith("~") else name


def _is_prose(text: str) -> bool:
    if len(text) < FEWEST_CHARACTERS or len(text.split(maxsplit=FEWEST_WORDS)) < FEWEST_WORDS:
        return False
    if not _SENTENCE_START.match(text) or _CODE.search(text):
        return False
    symbol_count = len(_LETTER_OR_BLANK.sub("", text))
    return symbol_count <= MOST_SYMBOLS * len(text)
