"""Roles of HTML elements: text or not, by tag, class, ARIA role and type (element_roles.txt).

Elements that are not text match what the wikitext reader drops: references, boxes, hatnotes,
editors' notes, pictures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from cloze.pipeline.corpus.readers.encyclopedia.blocks import ExtractedPage
from cloze.pipeline.corpus.readers.encyclopedia.elements import escape_literals
from cloze.pipeline.corpus.readers.encyclopedia.infoboxes import add_field, kind_of, line_of
from cloze.pipeline.corpus.readers.prose import read_lists
from cloze.pipeline.corpus.readers.raised import raised_text

Role = Literal["text", "dropped", "box", "formula", "shown", "phones", "separator", "table"]
"""Role of an element.

`dropped`: not needed by a sentence; `box`: next to the text; `shown`: a program or a chart;
`phones`: pronunciation; `separator`: read aloud between the parts of a fraction.
"""

_LISTS = read_lists(Path(__file__).with_suffix(".txt"))
BLOCKS = frozenset(_LISTS["block tags"])
HEADINGS = {f"h{level}": level for level in range(1, 7)}


def _by_role(kind: str) -> dict[Role, tuple[str, ...]]:
    """Return the tags, classes or types of each role."""
    entries = {role: _LISTS.get(f"{role} {kind}", ()) for role in get_args(Role)}
    return {role: tuple(names) for role, names in entries.items() if names}


_TAGS = {name: role for role, names in _by_role("tags").items() for name in names}
_CLASSES = {name: role for role, names in _by_role("classes").items() for name in names}
_TYPES = _by_role("types")
_BOX_ROLES = frozenset(_LISTS["ARIA roles of boxes"])
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


def role(element: Any) -> Role:
    """Return the role of an element, without regard to its template."""
    tag_role = _TAGS.get(element.tag, "text")
    if element.tag == "sup" and _is_mark(element):
        return "dropped"
    if tag_role == "dropped":
        is_tex = element.tag == "img" and "tex" in element.get("class", "").split()
        return "formula" if is_tex else "dropped"
    attributes = element.attrib
    if tag_role == "formula" or not attributes:
        return tag_role
    return _by_attributes(element, attributes) or tag_role


def _is_mark(element: Any) -> bool:
    """Return True if a raised text is a footnote mark."""
    previous, parent = element.getprevious(), element.getparent()
    before = parent.text if previous is None and parent is not None else ""
    if previous is not None:
        before = previous.tail or "".join(previous.itertext())
    link = element.find(".//a")
    is_link = link is not None and "#" in link.get("href", "")
    return raised_text(before or "", "".join(element.itertext()), is_link=is_link) == ""


def _by_attributes(element: Any, attributes: Any) -> Role | None:
    types = attributes.get("typeof")
    if types is not None and types != "mw:Transclusion":
        for name in types.split():
            for type_role, beginnings in _TYPES.items():
                if name.startswith("mw:") and name[3:].startswith(beginnings):
                    return type_role
    if attributes.get("role") in _BOX_ROLES and element.tag != "main":
        return "box"
    style = attributes.get("style")
    if style and _HIDDEN.search(style) and "mwe-math" not in attributes.get("class", ""):
        return "dropped"
    classes = attributes.get("class")
    if classes is None:
        return None
    if element.tag == "cite":
        return "dropped" if "citation" in classes.split() else None
    if element.tag == "a":
        is_bare = "autonumber" in classes or "free" in classes.split()
        return "dropped" if "external" in classes and is_bare else None
    for name in classes.split():
        class_role = _CLASSES.get(name)
        if class_role is not None and (class_role != "shown" or element.tag != "code"):
            return class_role
    return None


# Infoboxes of rendered pages: rows with name and value, by the same rules as in wikitext.

TEMPLATE = re.compile(r'"target":\{"wt":"([^"\\]{1,80})')
_CLASS = re.compile(r"(?:^|\s)(?:infobox|taxobox|geobox)")
_HEADER = re.compile(r"(?:^|\s)infobox-(?:header|above|subheader)(?=\s|$)")
_LONGEST_NAME = 80  # characters
# Prefixes of the name of a row that belongs to the preceding row without one.
_BELOW = ("•", "·", "-", "–")


def collect(element: Any, lines: Callable[[Any], list[str]], page: ExtractedPage) -> None:
    """Add the fields of a box to `page` if it is an infobox.

    Args:
        element: lxml element of the box.
        lines: function from an element to the lines of its text.
    """
    if not _CLASS.search(element.get("class", "")):
        return
    kinds = map(kind_of, TEMPLATE.findall(element.get("data-mw") or ""))
    box = next(filter(None, kinds), "")
    parent = ""
    for row in element.iter("tr"):
        row_cells = [cell for cell in row if cell.tag in ("th", "td")]
        if not row_cells:
            continue
        name = " ".join(lines(row_cells[0]))
        is_subrow = name.startswith(_BELOW)
        is_th = row_cells[0].tag == "th"
        is_header = _HEADER.search(row_cells[0].get("class", "")) is not None
        if len(row_cells) == 1 or (is_th and is_header):
            parent = name if is_th or is_header else parent
        elif len(row_cells) == 2 and 0 < len(name) <= _LONGEST_NAME:
            full_name = f"{parent}, {name.strip('•·-– ')}" if is_subrow and parent else name
            value = [line_of(escape_literals(line)) for line in lines(row_cells[1])]
            add_field(box, escape_literals(full_name), value, page)
            parent = parent if is_subrow else name
