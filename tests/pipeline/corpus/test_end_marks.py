"""Every rule that asks whether a line ends as a sentence does knows the marks of every script."""

from __future__ import annotations

import pytest

from pipeline.corpus.document import Document
from pipeline.corpus.end_marks import ELLIPSIS, LATIN, OTHER_SCRIPTS
from pipeline.corpus.readers.prose import reads_as_prose
from pipeline.corpus.steps.c4 import apply_c4
from pipeline.corpus.steps.repeated_lines import is_paragraph

WORDS = "six words and the end mark"


@pytest.mark.parametrize("mark", [*LATIN, ELLIPSIS, *OTHER_SCRIPTS])
def test_a_line_that_ends_in_a_mark_is_running_text(mark):
    assert reads_as_prose(WORDS + mark)
    assert is_paragraph(WORDS + mark)
    assert not reads_as_prose(WORDS)
    assert not is_paragraph(WORDS)


@pytest.mark.parametrize("mark", [*LATIN, *OTHER_SCRIPTS])
def test_c4_keeps_lines_of_other_languages_that_end_in_a_mark(mark):
    lines = tuple(f"{word} {WORDS}{mark}" for word in ("first", "second", "third"))
    page = Document(id="a", source="warc", title="", paragraphs=lines)
    assert apply_c4(page, language="km").document == page
