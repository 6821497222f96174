"""Books in Markdown: chapters by headings, no mark of the format in the text, and none of the text
lost.
"""

from __future__ import annotations

import pytest

from tests.pipeline.corpus.readers.test_books import PARAGRAPH, SENTENCE, read, text_of, wrapped

BOOK = f"""---
title: "The Book"
author: A. Nobody
---

# The Beginning {{#one .chapter}}

It was *the* __best__ of **times**[^1], and `nobody` knew [which of them](https://example.org/a_b) it was. ![a picture](x.png)
{wrapped(PARAGRAPH)}

[^1]: A note that is no text,
    over two lines.

## The Middle

> {SENTENCE.strip()}

- One thing was said at the inn, and it was this one.
- Another was said at home, and it was ~~not~~ that one.

| a | b |
|---|---|
| 1 | 2 |

```python
print("no text")
```

### A lesser heading

{wrapped(PARAGRAPH)}

* * *

2 \\* 3 is six, he said; and so it ended. {SENTENCE * 4}
"""


def test_a_book_in_markdown(tmp_path):
    documents, tally = read(tmp_path, BOOK, "a_book.md")
    assert [one.title for one in documents] == ["The Book: The Beginning", "The Book: The Middle"]
    assert documents[0].paragraphs == (
        f"It was the best of times, and nobody knew which of them it was. {PARAGRAPH}",
    )
    assert documents[1].paragraphs == (
        SENTENCE.strip(),
        "One thing was said at the inn, and it was this one.",
        "Another was said at home, and it was not that one.",
        PARAGRAPH,
        f"2 * 3 is six, he said; and so it ended. {(SENTENCE * 4).strip()}",
    )
    dropped = {
        name.removeprefix("dropped_lines/"): n
        for name, n in tally.counters.items()
        if name.startswith("dropped_lines/")
    }
    assert dropped == {"heading": 3, "front_matter": 4, "footnote": 1, "table": 1, "code": 1}


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.markdown"])
def test_told_by_name_or_by_headings(tmp_path, name):
    text = f"# A Title\n\nby A. Nobody\n\n{PARAGRAPH}\n\n## I\n\n**{PARAGRAPH}**\n"
    documents, _ = read(tmp_path, text, name)
    assert [one.title for one in documents] == ["A Title", "A Title: I"]
    assert text_of(documents) == f"{PARAGRAPH}\n{PARAGRAPH}"


def test_plain_text_with_a_number_sign_is_no_markdown(tmp_path):
    text = (
        f"CHAPTER I\n\nHe went by\n# 12 bus, with * marks and _italics_.\n\n{wrapped(PARAGRAPH)}\n"
    )
    (document,), _ = read(tmp_path, text)
    assert document.paragraphs[0] == "He went by # 12 bus, with * marks and italics."


CLAUSES = """# Gesetz

## Abschnitt 1

(1) Zuständig sind die Behörden der Länder, soweit

1.  sie die Aufsicht über die Mühlen führen und

        a)  die Mühle an einem Bach des Landes steht oder

        b)  der Müller es schriftlich beantragt hat;

2.  nichts anderes bestimmt ist.

    *   Kunden nach ihren Wünschen fragen, beraten und ihnen die Mühle zeigen

It is built by:

    make all
    gcc -o mill mill.c

    for stone in stones: grind(stone)
"""


def test_indented_prose_is_text_and_indented_code_is_none(tmp_path):
    text = text_of(read(tmp_path, CLAUSES, "a.md")[0])
    assert "die Mühle an einem Bach des Landes steht oder" in text
    assert "der Müller es schriftlich beantragt hat" in text
    assert "Kunden nach ihren Wünschen fragen" in text
    assert "make all" not in text
    assert "grind" not in text
