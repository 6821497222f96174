"""What cannot be read: told, counted up to a limit, and too much of it ends the stage."""

from __future__ import annotations

import json
import os

import pytest

from cloze.core.artifacts import artifact
from cloze.core.errors import DataError
from cloze.pipeline.corpus.document import Document, sanitize_document
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.corpora import make, prose, rows, write_jsonl


@pytest.mark.parametrize(
    ("limit", "stops"), [(0.0, True), (0.24, True), (0.25, False), (1.0, False)]
)
def test_a_limit_on_what_cannot_be_read(tmp_path, limit, stops):
    source = write_jsonl(tmp_path / "a.jsonl", *(prose(n) for n in range(6)), bad=2)
    arguments = {"on_error": "quarantine", "max_unreadable_share": limit}
    if not stops:
        result = make(tmp_path / "out", f"jsonl={source}", **arguments)
        assert sum(result.manifest.summary["quarantined"].values()) == 2
        return
    with pytest.raises(
        DataError, match=r"2 of 8 files, pages and lines could not be read .*max_unreadable_share"
    ) as error:
        make(tmp_path / "out", f"jsonl={source}", **arguments)
    assert error.value.exit_code == 3
    assert not artifact.is_artifact(str(tmp_path / "out"))
    assert len((tmp_path / "out" / "unreadable.jsonl").read_text().splitlines()) == 2


def test_what_cannot_be_read_is_named_up_to_three_files(tmp_path):
    (tmp_path / "in").mkdir()
    for number, name in enumerate("abcde"):
        write_jsonl(tmp_path / "in" / f"{name}.jsonl", prose(number), bad=2)
    result = make(tmp_path / "out", f"jsonl={tmp_path / 'in'}", on_error="quarantine")
    said = STAGE.headline(result.manifest.summary)
    assert all(f"jsonl/{name}.jsonl: " in said for name in "abc")
    assert "d.jsonl" not in said
    assert "10 could not be read, such as" in said
    assert said.endswith("(all: unreadable.jsonl)")


def test_what_is_no_unicode_is_written_all_the_same(tmp_path):
    """Bytes of a file's name that are no UTF-8 become escapes, lone surrogates in text U+FFFD;
    Arrow would refuse both.
    """
    (tmp_path / "a").mkdir()
    for name, text in (("b\udce9.txt", prose(1)), ("c\udce9.txt", "Too short.")):
        (tmp_path / "a" / name).write_text(text)
    result = make(tmp_path / "out", f"text={tmp_path / 'a'}", keep_dropped=True)
    assert [row["id"] for row in rows(result)] == ["text/b\\xe9.txt"]
    assert [row["id"] for row in rows(result, "dropped/*.arrow")] == ["text/c\\xe9.txt"]
    document = Document(
        id="a\udce9", source="text", title="A\ud800", paragraphs=("It ended \udfff here.", "Well.")
    )
    told = sanitize_document(document)
    assert (told.id, told.title, told.paragraphs) == (
        "a\ufffd",
        "A\ufffd",
        ("It ended \ufffd here.", "Well."),
    )
    assert sanitize_document(told) is told


def test_bad_lines_are_named_up_to_a_limit_and_then_counted(tmp_path):
    """All of a file would be an entry of 330 bytes each in the worker, in its result and in the
    driver.
    """
    (tmp_path / "a.jsonl").write_text(
        "".join(f"{{bad {n}\n" for n in range(9_000)) + json.dumps({"text": prose(1)})
    )
    result = make(tmp_path / "out", f"jsonl={tmp_path}/a.jsonl", on_error="quarantine")
    assert result.manifest.counters["quarantined/bad_json"] == 9_000
    entries = [
        json.loads(line)
        for line in (tmp_path / "out" / "unreadable.jsonl").read_text().splitlines()
    ]
    assert len(entries) == 1001
    (more,) = (entry for entry in entries if entry["reason"] == "more")
    assert (more["file"], more["sentence"]) == (
        "jsonl/a.jsonl",
        "8,000 more pages or lines of this file could not be read",
    )


@pytest.mark.parametrize("good", [0, 700])
def test_a_file_that_is_mostly_something_else_ends_the_stage_early(tmp_path, good):
    lines = ["INFO 2024-05-01 the server has started"] * 3000
    lines[: 2 * good : 2] = [json.dumps({"id": n, "text": prose(n % 5)}) for n in range(good)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    words = (
        rf"a.jsonl: 1,000 of its first {1000 + good:,} pages and lines could not be read .the "
        rf"first: the line at byte .* is no JSON"
    )
    with pytest.raises(DataError, match=words):
        make(tmp_path / "out", f"jsonl={tmp_path}/a.jsonl")
    assert (
        make(
            tmp_path / "more", f"jsonl={write_jsonl(tmp_path / 'b.jsonl', prose(1), prose(2))}"
        ).manifest.rows
        == 2
    )
    if good:  # who knows what the file is says so
        assert (
            make(
                tmp_path / "all", f"jsonl={tmp_path}/a.jsonl", max_unreadable_share=1.0
            ).manifest.rows
            == 5
        )


def test_more_bad_lines_than_good_ones_end_the_stage(tmp_path):
    source = write_jsonl(tmp_path / "a.jsonl", prose(1), bad=2)
    with pytest.raises(DataError, match=r"2 of 3 files, pages and lines could not be read"):
        make(tmp_path / "out", f"jsonl={source}")
    assert make(tmp_path / "on", f"jsonl={source}", on_error="quarantine").manifest.rows == 1
    assert (
        make(
            tmp_path / "half", f"jsonl={write_jsonl(tmp_path / 'b.jsonl', prose(1), bad=1)}"
        ).manifest.rows
        == 1
    )


@pytest.mark.parametrize("value", [{"text": prose(1)}, {"data": [{"text": prose(1)}]}])
def test_json_over_several_lines_is_called_so(tmp_path, value):
    (tmp_path / "a.json").write_text(json.dumps(value, indent=1))
    with pytest.raises(
        DataError,
        match=r"a.json: the file is JSON over several lines, .* write one object a line .jq -c",
    ):
        make(tmp_path / "out", f"jsonl={tmp_path}/a.json")


def test_a_record_without_an_id_takes_nobody_elses(tmp_path):
    records = [
        {"id": "2", "text": prose(1)},
        {"text": prose(2)},
        {"id": "#4", "text": prose(3)},
        {"text": prose(4)},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, records)))
    found = rows(make(tmp_path / "out", f"jsonl={tmp_path}/a.jsonl"))
    assert {row["id"] for row in found} == {
        f"jsonl/a.jsonl/{name}" for name in ("2", "#2", "##4", "#4")
    }


def test_a_broken_link_is_told_and_the_rest_of_the_folder_is_read(tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_text(prose(1))
    (folder / "b.txt").symlink_to(tmp_path / "nothing.txt")
    (folder / "c.txt").symlink_to("c.txt")
    (folder / "d.txt").symlink_to(folder)
    (folder / "e.txt").symlink_to("a.txt")
    (folder / "f.txt").write_text(prose(2))
    (folder / "circle").symlink_to(folder)
    os.mkfifo(folder / "g.txt")  # whoever opens it waits for ever
    result = make(tmp_path / "out", f"text={folder}", on_error="quarantine")
    assert {row["id"] for row in rows(result)} == {"text/a.txt", "text/f.txt"}
    assert result.manifest.counters["quarantined/no_file"] == 4
    entries = [
        json.loads(line)
        for line in (tmp_path / "out" / "unreadable.jsonl").read_text().splitlines()
    ]
    assert [(entry["file"], entry["sentence"]) for entry in entries] == [
        (f"text/{name}.txt", "it is a link that leads to no file, or a pipe") for name in "bcdg"
    ]
    assert (
        make(tmp_path / "again", f"text={folder}/*.txt", on_error="quarantine").manifest.rows == 2
    )
    (folder / "b.txt").unlink()
    with pytest.raises(DataError, match=r"b.txt does not exist"):
        make(tmp_path / "none", f"text={folder}/b.txt")
