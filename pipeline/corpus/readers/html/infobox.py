"""Infoboxes of rendered pages: the rows of the box that have a name and a value, by the rules of those in wikitext.

<tr><th>Founded</th><td>1209</td></tr>      Founded: 1209
<tr><th colspan=2>Population</th></tr>
<tr><th> • Total</th><td>145,700</td></tr>  Population, Total: 145,700
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from pipeline.corpus.readers.wikipedia.blocks import Extracted
from pipeline.corpus.readers.wikipedia.hidden import hide
from pipeline.corpus.readers.wikipedia.infobox import add, kind_of, line_of

_TEMPLATE = re.compile(r'"target":\{"wt":"([^"\\]{1,80})')
_CLASS = re.compile(r"(?:^|\s)(?:infobox|taxobox|geobox)")
_HEADER = re.compile(r"(?:^|\s)infobox-(?:header|above|subheader)(?=\s|$)")
_LONGEST_NAME = 80  # characters
_BELOW = ("•", "·", "-", "–")  # a row whose name begins so belongs to the row before it that begins otherwise


def collect(element: Any, lines: Callable[[Any], list[str]], found: Extracted) -> None:
    """Add the fields of a box to what was found in its page, if it is an infobox.

    Args:
        element: of the box.
        lines: what an element shows, line by line.
    """
    if not _CLASS.search(element.get("class", "")):
        return
    box = next(filter(None, (kind_of(name) for name in _TEMPLATE.findall(element.get("data-mw") or ""))), "")
    above = ""
    for row in element.iter("tr"):
        cells = [cell for cell in row if cell.tag in ("th", "td")]
        if not cells:
            continue
        name = " ".join(lines(cells[0]))
        below = name.startswith(_BELOW)
        named, headed = cells[0].tag == "th", bool(_HEADER.search(cells[0].get("class", "")))
        if len(cells) == 1 or (named and headed):
            above = name if named or headed else above
        elif len(cells) == 2 and 0 < len(name) <= _LONGEST_NAME:
            told = f"{above}, {name.strip('•·-– ')}" if below and above else name
            add(box, hide(told), [line_of(hide(line)) for line in lines(cells[1])], found)
            above = above if below else name
