"""The report on MediaWiki's parser tests: cases are read, compared in order, and sorted by reason."""

from __future__ import annotations

from benchmarks.parser_tests import AGREED, SKIPPED, WRONG, cases_in, judge
from cloze.pipeline.corpus.readers.encyclopedia.wikitext import WikitextParser

FILE = """# A comment
!! article
Template:X
!! text
not a case
!! endarticle

!! test
Tags
!! wikitext
The <onlyinclude>mill</onlyinclude>er's ''house''<sup>2</sup>
* is [[a|old]]
!! html
<p>The miller's <i>house</i>²
</p><ul><li>is <a href="/wiki/A">old</a></li></ul>
!! end

!! test
A table
!! wikitext
{|
| a
|}
!! html/php
<table><tbody><tr><td>a</td></tr></tbody></table>
!! html/parsoid
<p>other</p>
!! end

!! test
A wrong one
!! wikitext
a
!! html/*
<p>b</p>
!! end

!! test
Of saving
!! options
pst
!! wikitext
a
!! html
b
!! end

!! test
Without HTML
!! wikitext
a
!! end
"""


def test_cases_are_judged() -> None:
    cases = list(cases_in(FILE))
    assert [case.name for case in cases] == ["Tags", "A table", "A wrong one", "Of saving"]
    kinds = [judge(case, WikitextParser({}))[0] for case in cases]
    assert kinds == [AGREED, "tables are left out", WRONG, SKIPPED]
