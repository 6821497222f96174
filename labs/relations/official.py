"""Official files of tasks on two marked entities, read as records.

Entities become the tags of SemEval-2010's own file, `<e1>…</e1>` and `<e2>…</e2>`, with their type
as in `<e1:PERSON>` if the file has one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cloze.core.errors import DataError
from cloze.model.tasks.formats.lines import text_lines
from cloze.model.tasks.formats.official import Record, json_records, unescaped

SENTENCE = re.compile(r'(\d+)\t"?(.*?)"?\s*')


def semeval2010(path: str) -> Iterator[Record]:
    """Iterate over SemEval-2010's task 8: a numbered sentence, a relation, and a comment.

    Columns: id, text, and label, empty if the file has none.
    """
    record: dict[str, str] | None = None
    location = path
    for number, line in text_lines(path):
        if sentence := SENTENCE.fullmatch(line):
            if record:
                yield location, record
            location = f"{path}, line {number}"
            record = {"id": sentence[1], "text": sentence[2], "label": ""}
        elif line.strip() and not line.startswith("Comment"):
            if record is None or record["label"]:
                raise DataError(
                    f"{path}, line {number}: neither a numbered sentence, a relation nor a "
                    f"comment; use a file of SemEval-2010's task 8"
                )
            record["label"] = line.strip()
    if record:
        yield location, record


def _tacred(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an example of TACRED (Zhang et al. 2017); its ends are inclusive."""
    words = [unescaped(word) for word in row["token"]]
    for entity, name in (("1", "subj"), ("2", "obj")):
        begin, end = int(row[f"{name}_start"]), int(row[f"{name}_end"])
        if not 0 <= begin <= end < len(words):
            raise ValueError(f"{name}_start and _end are {begin} and {end} of {len(words)} words")
        words[begin] = f"<e{entity}:{row[f'{name}_type']}>{words[begin]}"
        words[end] += f"</e{entity}>"
    yield {"id": row["id"], "text": " ".join(words), "label": row.get("relation")}


def _wic(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield an example of SuperGLUE's WiC: one word in two sentences."""
    texts = []
    for entity in "12":
        text, begin, end = (row[f"{name}{entity}"] for name in ("sentence", "start", "end"))
        if not 0 <= begin < end <= len(text):
            place = f"{begin} and {end} of {len(text)} characters"
            raise ValueError(f"start{entity} and end{entity} are {place}")
        marked = f"<e{entity}>{text[begin:end]}</e{entity}>"
        texts.append(text[:begin] + marked + text[end:])
    example = {"id": row["idx"], "text": texts[0], "pair": texts[1]}
    yield {**example, **({"label": row["label"]} if "label" in row else {})}


tacred = json_records(_tacred, "TACRED", is_list=True)
wic = json_records(_wic, "WiC", is_list=False)
