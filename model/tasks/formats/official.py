"""Files of one task that are no tables, read as records: one mapping of columns per example."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cloze.core.errors import DataError
from cloze.model.tasks.formats.lines import json_lines, read_json, text_lines

Record = tuple[str, Mapping[str, Any]]  # file and line, for messages; values by column

# Characters that the Penn Treebank's files escape.
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
TREE_TOKEN = re.compile(r"[()]|[^()\s]+")


def unescaped(word: str) -> str:
    return ESCAPES.get(word, word.replace(r"\/", "/").replace(r"\*", "*"))


def trees(path: str) -> Iterator[Record]:
    """Iterate over the phrases of sentiment trees (Socher et al. 2013), such as (3 (2 a) (4 joy)).

    Columns: text, label, and root: whether the phrase is a whole sentence.
    """
    for number, line in text_lines(path):
        location = f"{path}, line {number}"
        words, open_phrases = list[str](), list[tuple[str, int]]()  # label, first word
        tokens = iter(TREE_TOKEN.findall(line))
        for token in tokens:
            if token == "(":
                open_phrases.append((next(tokens, ""), len(words)))
            elif not open_phrases:
                raise DataError(f"{location}: {token!r} is outside of the tree; correct the line")
            elif token == ")":
                label, begin = open_phrases.pop()
                root = str(not open_phrases).lower()
                yield location, {"text": " ".join(words[begin:]), "label": label, "root": root}
            else:
                words.append(unescaped(token))
        if open_phrases:
            raise DataError(f"{location}: a bracket of the tree is not closed; correct the line")


def _multirc(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the answers of SuperGLUE's MultiRC; the id has the numbers of passage and question."""
    for question in row["passage"]["questions"]:
        for answer in question["answers"]:
            yield {
                "id": f"{row['idx']}-{question['idx']}-{answer['idx']}",
                "text": row["passage"]["text"],
                "pair": f"{question['question']} {answer['text']}",
                **({"label": answer["label"]} if "label" in answer else {}),
            }


def json_records(
    convert: Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]], name: str, is_list: bool
) -> Callable[[str], Iterator[Record]]:
    """Return a reader of JSON lines, or of a list of objects, that converts each object."""

    def read(path: str) -> Iterator[Record]:
        rows = enumerate(_objects(path), start=1) if is_list else json_lines(path)
        for number, row in rows:
            location = f"{path}, {'example' if is_list else 'line'} {number}"
            try:
                records = list(convert(row))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise DataError(
                    f"{location}: not an example of {name} ({error}); use its official file"
                ) from error
            yield from ((location, record) for record in records)

    return read


def _objects(path: str) -> Sequence[Any]:
    rows = read_json(path)
    if not isinstance(rows, list):
        raise DataError(f"{path} is not a list of examples; use the official file")
    return rows


multirc = json_records(_multirc, "MultiRC", is_list=False)
