"""`cloze corpus` as typed: its options reach the stage. `cloze explain` prints and
writes nothing.
"""

from __future__ import annotations

import json

import pytest

from cloze.core.artifacts import artifact
from cloze.flows import cli

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def source(tmp_path):
    lines = [
        {
            "body": " ".join(
                f"The {word} house number {n} stood by the {word} road for {n} long years."
                for word in "old red wet dry".split()
            ),
            "name": f"N{n}",
            "at": "https://e.org/[i]:key:[/b]",
        }
        for n in range(6)
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(capsys, *arguments: str, command: tuple[str, ...] = ("corpus",)) -> tuple[int, dict, str]:
    code = cli.main([*command, *arguments])
    captured = capsys.readouterr()
    last = captured.out.strip().splitlines()[-1] if captured.out.strip() else "{}"
    return code, json.loads(last) if last.startswith("{") else {}, captured.out + captured.err


def test_every_option_reaches_the_stage(capsys, source, tmp_path):
    task = tmp_path / "dev.txt"
    task.write_text("A question of twelve words or so that is not in the text.\n")
    out = tmp_path / "out"
    code, found, _ = run(
        capsys, "--source", f"jsonl={source}", "--column", "text=body", "--column", "title=name",
        "--language", "de", "--dedup", "exact",
        "--decontaminate", str(task), "--keep-dropped", "--on-error", "quarantine",
        "--set", "max_unreadable_share=0.5",
        "--set", "minimum_words=2", "--out", str(out), "--json",
    )  # fmt: skip
    assert code == 0
    manifest = artifact.read_manifest(str(out))
    config = manifest.config
    assert (config["language"], config["dedup"], config["keep_dropped"], config["on_error"]) == (
        "de",
        "exact",
        True,
        "quarantine",
    )
    assert (config["max_unreadable_share"], config["minimum_words"], config["decontaminate"]) == (
        0.5,
        2,
        [str(task)],
    )
    assert config["sources"][0]["fields"] == {"text": "body", "title": "name"}
    assert {
        "documents",
        "bytes",
        "dropped",
        "dropped_lines",
        "duplicates",
        "languages",
        "quarantined",
        "contaminated",
    } <= set(found)
    assert found["documents"] == manifest.rows == 6


def test_explain_prints_and_writes_nothing(capsys, source, tmp_path):
    before = sorted(tmp_path.iterdir())
    options = [
        "--source",
        f"jsonl={source}",
        "--column",
        "text=body",
        "--column",
        "title=name",
        "--column",
        "url=at",
        "--dedup",
        "none",
    ]
    code, _, text = run(capsys, *options, command=("explain", "n3"))
    assert code == 0
    for word in ("N3", "https://e.org/[i]:key:[/b]", "clean", "sentences", "kept"):
        assert word in text
    code, found, _ = run(capsys, *options, "--json", command=("explain", "n3"))
    assert (code, found["explain"]["title"], found["explain"]["outcome"]) == (0, "N3", "kept")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--source", "jsonl"], "must look like KIND=PATH"),
        (["--source", "jsonl={}"], "Missing option"),
        (["--source", "jsonl={}", "--column", "text"], "must look like NAME=COLUMN"),
        (["--source", "books={}", "--column", "text=a", "--out", "x"], "none is given"),
        (["--source", "jsonl={}", "--column", "txt=a", "--out", "x"], "unknown field 'txt'"),
        (["--source", "jsonl={}", "--dedup", "all", "--out", "x"], "minhash"),
    ],
)
def test_bad_options(capsys, source, tmp_path, monkeypatch, options, words):
    monkeypatch.chdir(tmp_path)
    code, _, text = run(capsys, *(option.format(source) for option in options))
    assert code == 2
    assert words in text


def test_explain_takes_the_options_of_a_corpus_that_is_made(capsys, source, tmp_path):
    """Those given replace its own: here the minimum of words, which the corpus lowered."""
    out = str(tmp_path / "out")
    options = ("--column", "text=body", "--column", "title=name", "--set", "minimum_characters=9")
    assert run(capsys, "--source", f"jsonl={source}", *options, "--out", out)[0] == 0
    code, found, _ = run(capsys, "--corpus", out, "--json", command=("explain", "n3"))
    assert (code, found["explain"]["title"], found["explain"]["outcome"]) == (0, "N3", "kept")
    again = ("--corpus", out, "--set", "minimum_words=900", "--json")
    assert run(capsys, *again, command=("explain", "n3"))[1]["explain"]["outcome"] != "kept"
    for arguments, words in (
        (["--corpus", str(source)], "has no finished artifact"),
        (["--corpus", out, "--set", "preset=web"], "leave preset out"),
        ([], "Missing option '--source', or '--corpus'"),
    ):
        code, _, text = run(capsys, *arguments, command=("explain", "n3"))
        assert (code in (2, 3), words in text) == (True, True), text


def test_explain_names_a_missing_document(capsys, source):
    arguments = ("--source", f"jsonl={source}", "--column", "text=body")
    code, _, text = run(capsys, *arguments, command=("explain", "none of them"))
    assert (code, "no document of the title or id" in text) == (2, True)


def test_what_is_said_of_a_source(capsys, source, tmp_path):
    arguments = ("--source", f"jsonl={source}", "--column", "text=body", "--set", "minimum_words=2")
    out = tmp_path / "out"
    code, found, _ = run(
        capsys,
        *arguments,
        "--source-metadata",
        "jsonl.licence=CC0-1.0",
        "--source-metadata",
        "jsonl.url=https://example.org/a=b",
        "--out",
        str(out),
        "--json",
    )
    assert code == 0
    assert found["licences"] == {"CC0-1.0": 6}
    given = artifact.read_manifest(str(out)).config["sources"][0]
    assert (given["licence"], given["url"], given["fields"]) == (
        "CC0-1.0",
        "https://example.org/a=b",
        {"text": "body"},
    )
    for about, told in (
        ("books.licence=MIT", "jsonl"),
        ("jsonl.license=MIT", "licence"),
        ("jsonl=MIT", "KIND.WHAT=TEXT"),
    ):
        code, _, text = run(
            capsys, *arguments, "--source-metadata", about, "--out", str(tmp_path / "no")
        )
        assert code == 2
        assert told in " ".join(text.split())


def test_licences_that_are_kept(capsys, source, tmp_path):
    code, _, text = run(
        capsys, "--source", f"jsonl={source}", "--column", "text=body", "--license", "MIT",
        "--license", "CC0-1.0", "--out", str(tmp_path / "out")
    )  # fmt: skip
    assert code == 3
    assert "other_licence" in text


def test_infoboxes_are_wanted_and_explained(capsys, tmp_path):
    text = "The mill stands by the river, and it has ground corn for the people of the valley. " * 4
    box = "{{Infobox mill|wheels=4|stones={{nobody knows|this|that}}}}"
    page = (
        f"<page><title>Mill</title><ns>0</ns><id>1</id><revision><id>1</id><text>{box} {text}</"
        f"text></revision></page>"
    )
    dump = tmp_path / "dump.xml"
    dump.write_text(f'<mediawiki xml:lang="en">{page}</mediawiki>')
    options = ["--source", f"wikipedia={dump}", "--dedup", "none"]
    code, _, shown = run(capsys, *options, "--infobox", "metadata", command=("explain", "Mill"))
    assert code == 0
    assert "infobox  1 field" in shown
    assert "wheels" in shown
    assert "infobox field 1" in " ".join(shown.split())  # dropped by the reader
    assert "wheels" not in run(capsys, *options, command=("explain", "Mill"))[2]
    code, _, told = run(capsys, *options, "--infobox", "yes")
    assert code == 2
    assert "'metadata'" in told or "metadata" in told


def test_explain_through_a_pipe_draws_no_lines_of_the_width_of_all_text(capsys, source):
    options = ("--source", f"jsonl={source}", "--column", "text=body", "--column", "title=name")
    code, _, text = run(capsys, *options, command=("explain", "n3"))
    assert code == 0
    assert max(map(len, text.splitlines())) < 500
