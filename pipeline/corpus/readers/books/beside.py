"""What stands in a book beside its text under a heading of its own: dedications and advertisements; options of source `books`."""

from __future__ import annotations

import re
from typing import Literal

from pipeline.corpus.options import CorpusOptions
from pipeline.corpus.readers.base import Tally

Sections = list[tuple[str, list[str]]]

_DEDICATION = re.compile(r"\W*(?:the )?(?:epistle )?dedicat(?:ion|ory)\b.{0,60}", re.IGNORECASE)
_ADVERTISEMENT = re.compile(
    r"\W*(?:(?:the )?(?:publishers?['’]?s? )?(?:advertisements?|announcements?|catalogue)\b.{0,60}|"
    r"(?:(?:books|works|novels|other books|other works) )?by the same author\W*|(?:also|other books|other works) by .{2,60}|"
    r"books (?:published|issued) by .{2,60})",
    re.IGNORECASE,
)


class BesideOptions(CorpusOptions):
    """What is read of a book beside its text."""

    dedications: Literal["keep", "drop"] = "keep"
    """What becomes of a book's sections under the heading of a dedication."""

    advertisements: Literal["keep", "drop"] = "keep"
    """What becomes of a book's sections headed as advertisements or lists of other books; old prefaces may be called so, too."""


def without(sections: Sections, options: BesideOptions, tally: Tally) -> Sections:
    """The sections that stay; the paragraphs of the others are counted as `dedication` and `advertisement`."""
    wanted = (
        (_DEDICATION, "dedication", options.dedications),
        (_ADVERTISEMENT, "advertisement", options.advertisements),
    )
    dropping = [(pattern, reason) for pattern, reason, said in wanted if said == "drop"]
    kept: Sections = []
    for heading, paragraphs in sections:
        reason = next((reason for pattern, reason in dropping if pattern.fullmatch(heading)), None)
        if reason is None:
            kept.append((heading, paragraphs))
        else:
            tally.drop_lines(reason, len(paragraphs))
    return kept
