"""What the elements of a page are for: which of them are text, and which stand around it, by tag, class, role and type.

The classes are those of MediaWiki's own output (its old parser's and Parsoid's) and of the templates that the larger Wikipedias share.
What they mark is what the reader of wikitext leaves out as well: references, boxes, hatnotes, notes of the editors, pictures.
"""

from __future__ import annotations

import re
from typing import Any, Literal

Role = Literal["text", "gone", "box", "shown", "table", "formula", "phones", "separator"]
"""`gone`: shows nothing that a sentence needs; `box`: stands beside the text; `shown`: a program or a chart; `phones`: how a word is spoken;
`separator`: read aloud between the parts of a fraction."""

BLOCKS = frozenset(
    """
    p div li dd dt ul ol dl blockquote pre section article main body center address figure figcaption details summary fieldset table tbody
    thead tfoot tr td th caption hr h1 h2 h3 h4 h5 h6 header footer nav aside form poem
    """.split()
)
HEADINGS = {f"h{level}": level for level in range(1, 7)}

_GONE_TAGS = frozenset(
    """
    script style link meta title base head noscript template img picture svg audio video object embed iframe canvas map button input select
    textarea s strike del figure rp rt
    """.split()
)
_BOX_TAGS = frozenset("nav aside header footer form dialog menu".split())
_SHOWN_TAGS = frozenset(("pre",))

# Of these the text says nothing at all.
_GONE = frozenset(
    """
    reference mw-ref mw-editsection mw-empty-elt mw-jump-link mw-cite-backlink noprint Inline-Template Template-Fact need_ref_tag cite_virgule
    Z3988 mw-ext-cite-error error flagicon geo-nondefault geo-multi-punct wikidata-linkback indicateur-langue asof-tag ouvrage
    shortdescription sortkey thumb floatright floatleft floatnone mw-file-element templatequotecite listen haudio-icon ext-phonos-attribution
    mw-collapsible-toggle mw-references-wrap
    """.split()
)
_BOX = frozenset(
    """
    navbox navbox-styles navbar vertical-navbox sidebar infobox infobox_v2 infobox_v3 taxobox ambox tmbox ombox cmbox fmbox dmbox mbox-small
    metadata hatnote dablink rellink hauptartikel homonymie toc toccolours reflist references references-small mw-references catlinks
    printfooter mw-indicators sistersitebox side-box portal portalbox portal-bar bandeau-container bandeau-section bandeau-portail
    bandeau-article bandeau-niveau-information navbox-container NavFrame NavHead NavContent navigation-not-searchable succession-box quotebox
    tright tleft tmulti gallery gallerybox mw-gallery-traditional mw-gallery-packed spoken-wikipedia sister-bar authority-control stub
    BoxenVerschmelzen boite-a-droite bar-chart legend mw-kartographer-container barbox messagebox thumbcaption wikitable-caption
    """.split()
)
_SHOWN = frozenset("mw-highlight mw-syntaxhighlight-container timeline-wrapper mw-ext-score mw-hiero-outer mw-graph".split())
_FORMULA = frozenset("mwe-math-element tex".split())
_PHONES = frozenset("IPA API".split())
_ROLES = frozenset("navigation note banner contentinfo search complementary menu menubar dialog alert".split())
_HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
_TYPES: tuple[tuple[str, Role], ...] = (
    ("mw:Extension/ref", "gone"),  # and references
    ("mw:File", "gone"),
    ("mw:Image", "gone"),
    ("mw:Video", "gone"),
    ("mw:Audio", "gone"),
    ("mw:Extension/indicator", "gone"),
    ("mw:Extension/templatestyles", "gone"),
    ("mw:Extension/gallery", "box"),
    ("mw:Extension/imagemap", "gone"),
    ("mw:Extension/map", "gone"),
    ("mw:Extension/categorytree", "box"),
    ("mw:Extension/inputbox", "box"),
    ("mw:Extension/math", "formula"),
    ("mw:Extension/chem", "formula"),
    ("mw:Extension/ce", "formula"),
    ("mw:Extension/syntaxhighlight", "shown"),
    ("mw:Extension/source", "shown"),
    ("mw:Extension/score", "shown"),
    ("mw:Extension/hiero", "shown"),
    ("mw:Extension/timeline", "shown"),
    ("mw:Extension/graph", "shown"),
    ("mw:Extension/phonos", "phones"),
)


def role(element: Any) -> Role:
    """What an element is for, apart from what its template says."""
    tag = element.tag
    if tag in _GONE_TAGS:
        return "formula" if tag == "img" and "tex" in element.get("class", "").split() else "gone"
    if tag == "math":
        return "formula"
    attributes = element.attrib
    if attributes:
        found = _by_attributes(element, attributes)
        if found is not None:
            return found
    if tag in _BOX_TAGS:
        return "box"
    if tag in _SHOWN_TAGS:
        return "shown"
    return "table" if tag == "table" else "text"


def _by_attributes(element: Any, attributes: Any) -> Role | None:
    kind = attributes.get("typeof")
    if kind is not None and kind != "mw:Transclusion":
        for one in kind.split():
            for begin, found in _TYPES:
                if one.startswith(begin):
                    return found
    if attributes.get("role") in _ROLES and element.tag != "main":
        return "box"
    style = attributes.get("style")
    if style is not None and _HIDDEN.search(style) and "mwe-math" not in attributes.get("class", ""):
        return "gone"
    names = attributes.get("class")
    if names is None:
        return None
    if element.tag == "cite":
        return "gone" if "citation" in names.split() else None
    if element.tag == "a":
        return "gone" if "external" in names and ("autonumber" in names or "free" in names.split()) else None
    for name in names.split():
        if name in _GONE:
            return "gone"
        if name in _BOX:
            return "box"
        if name in _FORMULA:
            return "formula"
        if name in _PHONES:
            return "phones"
        if name in _SHOWN and element.tag != "code":
            return "shown"
        if name == "sr-only":
            return "separator"
    return None
