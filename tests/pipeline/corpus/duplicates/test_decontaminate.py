"""Text of tasks in documents: what is found, what is dropped, and which files texts are
read from.
"""

from __future__ import annotations

import bz2
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import DataError
from cloze.pipeline.corpus import signatures
from cloze.pipeline.corpus.document import Document
from cloze.pipeline.corpus.steps.base import CleaningResult
from cloze.pipeline.corpus.steps.decontaminate import decontaminate, task_files, task_texts
from cloze.pipeline.corpus.steps.task_index import TaskIndex

# 18 words
QUESTION = "Which of the two rivers that meet below the old town is longer, and by how many miles?"
SHORT = "The cat sat on the very old mat."  # 8 words
INDEX = TaskIndex.build(
    [("qa.json", QUESTION), ("cola.tsv", SHORT), ("cola.tsv", "Too short to be found.")]
)


def document(*paragraphs: str) -> Document:
    return Document(id="text/a/1", source="text", title="A", paragraphs=paragraphs)


def test_thirteen_words_in_a_row_are_found_whatever_the_case_and_punctuation():
    words = QUESTION.split()
    match = INDEX.find(
        "He asked: " + " ".join(words[2:15]).upper().replace(",", ";") + " and so on"
    )
    assert match == ("qa.json", "the two rivers that meet below the old town is longer and by")
    assert INDEX.find("He asked " + " ".join(words[2:14]) + " and so on") is None  # twelve
    assert INDEX.find("") is None


def test_a_short_text_counts_as_a_whole():
    assert INDEX.find("Then the cat sat on the very old mat, and slept.")[0] == "cola.tsv"
    assert INDEX.find("Then the cat sat on the very old chair, and slept.") is None
    assert INDEX.find("This is too short to be found.") is None
    assert list(INDEX.tables) == [13, 8]


def test_what_is_dropped_is_the_document_or_its_paragraph():
    clean, dirty = (
        "Nothing of the kind stands here, and it is long enough to stay.",
        f"So. {QUESTION} Nobody knew.",
    )
    result = decontaminate(document(clean, dirty), INDEX, "document")
    assert (result.document, result.reason, len(result.matches)) == (None, "contaminated", 1)
    result = decontaminate(document(clean, dirty, clean), INDEX, "paragraph")
    assert result.document is not None
    assert result.document.paragraphs == (clean, clean)
    assert [(removed.reason, removed.text) for removed in result.removed] == [
        ("contaminated", dirty)
    ]
    result = decontaminate(document(clean, dirty), INDEX, "paragraph", minimum_characters=200)
    assert (result.document, result.reason) == (None, "contaminated")
    untouched = document(clean)
    assert (
        decontaminate(untouched, INDEX, "document")
        == decontaminate(untouched, INDEX, "paragraph")
        == CleaningResult(untouched)
    )


def test_paragraphs_do_not_hide_a_text():
    words = QUESTION.split()
    assert (
        decontaminate(document(" ".join(words[:9]), " ".join(words[9:])), INDEX, "document").reason
        == "contaminated"
    )


def test_saved_and_loaded(tmp_path):
    INDEX.save(str(tmp_path / "tasks.arrow"))
    again = TaskIndex.load(str(tmp_path / "tasks.arrow"))
    assert (again.names, list(again.tables), len(again)) == (INDEX.names, [13, 8], len(INDEX))
    assert again.find(QUESTION) == INDEX.find(QUESTION)


@given(
    st.text(alphabet="ab ", max_size=40), st.lists(st.text(alphabet="ab ", max_size=20), max_size=4)
)
def test_find_against_brute_force(text, tasks):
    index = TaskIndex.build([("t", task) for task in tasks], words=3, minimum=2)
    words = signatures.normalize_words(text).decode().split()
    runs = set()
    for task in tasks:
        own = signatures.normalize_words(task).decode().split()
        length = min(3, len(own))
        runs |= (
            {tuple(own[at : at + length]) for at in range(len(own) - length + 1)}
            if length >= 2
            else set()
        )
    expected = any(
        tuple(words[at : at + n]) in runs for n in (2, 3) for at in range(len(words) - n + 1)
    )
    assert (index.find(text) is not None) == expected


FILES = {
    "dev.tsv": (b"index\tsentence\tlabel\n0\tA \"quoted text here.\t1\n", ['A "quoted text here.']),
    "dev.csv": (b'text,label\n"One, two\nthree",1\n', ["One, two\nthree"]),
    "mac.csv": (b'text,label\rOne of old.,1\rAnother one.,0\r', ["One of old.", "Another one."]),
    "bare.csv": (b'text,label\na\rb,1\n"x\ry",2\n', ["a", "x\ry"]),
    "dev.jsonl": ((
        b'{"premise": "It rains.", "words": ["so", "it", "is"], "n": 3}\n\n{"deep": [{"x": '
        b'"Below."}]}\n'
    ), ["It rains.", "so it is", "Below."]),
    "dev.json": (json.dumps({"data": [{"context": "Long ago.",
    "qas": [{"question": "When?"}]}]}).encode(), ["Long ago.", "When?"]),
    "choices.json": (
        json.dumps({"options": ["北京大学图书馆", "上海市政府"], "words": ["a", "b"]}).encode(),
        ["北京大学图书馆 上海市政府", "北京大学图书馆", "上海市政府", "a b"],
    ),
    "lines.json": (b'{"a": "first line"}\n{"a": "second line"}\n', ["first line", "second line"]),
    "scicite.txt": (b'{"string": "As shown by them."}\n', ["As shown by them."]),
    "plain.txt": ("\ufeffOne line.\nAnother line.\n".encode(), ["One line.", "Another line."]),
    "utf16.txt": ("Some line.\n".encode("utf-16"), ["Some line."]),
    "unmarked.tsv": ("Some line of more words.\t1\n".encode("utf-16-le"),
    ["Some line of more words."]),
    "eng.testa": ((
        b"-DOCSTART- -X- O O\n\nPeter NNP I-NP B-PER\nBlackburn NNP I-NP I-PER\n\nBRUSSELS NNP "
        b"I-NP B-LOC\n"
    ), ["Peter Blackburn", "BRUSSELS"]),
    "packed.tsv.gz": (gzip.compress(b"A packed text\t1\n"), ["A packed text"]),
    "packed.jsonl.bz2": (bz2.compress(b'{"a": "Packed, too"}\n'), ["Packed, too"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_texts_of_task_files(tmp_path, name):
    content, expected = FILES[name]
    (tmp_path / name).write_bytes(content)
    found = list(task_texts(str(tmp_path / name)))
    assert [text for text in expected if text not in found] == []


def test_tables(tmp_path):
    table = pa.table({"id": [1, 2], "text": ["First of all.", "Second."]})
    pq.write_table(table, tmp_path / "dev.parquet")
    assert {"First of all.", "Second."} <= set(task_texts(str(tmp_path / "dev.parquet")))


def test_files_of_a_directory(tmp_path):
    for name in (
        "task/dev.tsv",
        "task/README.md",
        "task/LICENSE.txt",
        "task/.hidden",
        "task/eng.testb",
        "task/notes.md",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    assert [name for name, _ in task_files(str(tmp_path / "task"))] == [
        "task/dev.tsv",
        "task/eng.testb",
    ]
    assert [name for name, _ in task_files(str(tmp_path / "task" / "dev.tsv"))] == ["dev.tsv"]
    (tmp_path / "none").mkdir()
    for path, words in (("none", "contains no task file"), ("nowhere", "does not exist")):
        with pytest.raises(DataError, match=words):
            task_files(str(tmp_path / path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"a": "b"}\nnot json\n', "line 2 is not valid JSON"),
        ("a.txt", b"\xff\xff\xff", "cannot be read as a task file"),
        ("a.tsv.gz", b"\x1f\x8b\x08\x00broken", "cannot be read as a task file"),
        ("a.parquet", b"PAR1", "cannot be read as a table"),
    ],
)
def test_bad_task_files(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        list(task_texts(str(tmp_path / name)))


def test_real_task_files(shared_data):
    """Every format of the shared tasks gives texts that their own index finds again."""
    tasks = shared_data / "tasks"
    files = [
        file
        for name in ("conll2003", "wnut17", "glue", "codah", "scicite")
        for file in task_files(str(tasks / name))
    ]
    chosen = [
        (name, path) for name, path in files if not any(word in name for word in ("train", "full"))
    ]
    assert len(chosen) >= 9
    for name, path in chosen:
        texts = list(task_texts(path))
        long = [
            text
            for text in texts
            if signatures.WordSequence(signatures.normalize_words(text)).count >= 13
        ][:200]
        assert long, name
        index = TaskIndex.build([(name, text) for text in long])
        assert all(index.find(f"before {text} after") for text in long[:50])
