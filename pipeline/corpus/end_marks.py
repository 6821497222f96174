"""Corpus stage: the marks that end a sentence, one table for every rule that asks whether a line ends as a sentence does.

Marks that may close a quotation or a bracket behind them are the rules' own: C4 takes a bare quotation mark for an end, others do
not. Rules that ask something else have sets of their own and say what they ask: where a sentence ends inside a line
(pipeline/corpus/readers/prose.py), whether a blank must follow (pipeline/corpus/steps/sentences.py), and the readers of books and
docstrings, which are English (pipeline/corpus/readers/books/book_text.py, pipeline/corpus/readers/docstrings/docstring_text.py).
"""

from __future__ import annotations

LATIN = ".!?"
"""Of Latin, Cyrillic, Greek, Hebrew, Hangul and most other scripts."""

ELLIPSIS = "…"
"""Ends a sentence or breaks it off; C4 takes a line for cut off that ends in one."""

OTHER_SCRIPTS = "。｡．！？؟۔।॥։።፧။។៕།"
"""Chinese and Japanese (five, in two widths), Arabic and Urdu, Devanagari and its kin (two), Armenian, Ethiopic (two), Burmese,
Khmer (two), Tibetan."""
