"""Every file below a source is read, refused with a reason, or counted as passed over."""

from __future__ import annotations

import json
import tempfile
import uuid
import zipfile
from pathlib import Path

import fsspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloze.core.config import parse_config
from cloze.core.errors import DataError, UsageError
from cloze.pipeline.corpus.config import CorpusConfig
from cloze.pipeline.corpus.explain import explain
from cloze.pipeline.corpus.readers import READERS
from cloze.pipeline.corpus.readers.base import count_endings, describe_endings
from cloze.pipeline.corpus.sources import Source, list_sources
from cloze.pipeline.corpus.stage import STAGE
from tests.pipeline.corpus.corpora import make

PROSE = "The mill stands by the river and it is old. People come from far to see it. " * 9
KINDS = sorted(set(READERS))
PACKED = ("", ".gz", ".bz2", ".zst")
STEMS = ["a", "LICENSE", ".so", "_SUCCESS", "wiki_00", "x-multistream", "conftest", "a b", "Größe"]
ENDINGS = ["", ".txt", ".md", ".html", ".json", ".xml", ".py", ".parquet", ".feather", ".warc", "."]
FOLDERS = ["", "sub/", ".git/", "_x/", "tests/", "a.txt/", "__pycache__/", "d/e/"]
NAMES = st.builds(
    lambda folder, stem, ending, packed: f"{folder}{stem}{ending}{packed}",
    st.sampled_from(FOLDERS),
    st.sampled_from(STEMS),
    st.sampled_from(ENDINGS),
    st.sampled_from(PACKED),
)


def account(kind: str, path: str) -> int:
    """Return how many files a source lists and passes over together; 0 if it refuses the folder."""
    try:
        slices, matching, passed_over, _ = list_sources([Source(kind=kind, path=path)])
    except DataError:
        return 0
    reader = READERS.find(kind)
    read = {path for one in slices for _, path in reader.files(one.slice)}
    assert matching == {kind: len(read)}
    return len(read) + passed_over[kind].total()


@pytest.mark.parametrize("kind", KINDS)
@given(names=st.sets(NAMES, min_size=1, max_size=12))
@example(names={"a.txt", "a.html", "a.md"})
@settings(max_examples=8, deadline=None)
def test_no_file_of_any_tree_is_left_out(kind: str, names: set[str]) -> None:
    names = {name for name in names if f"{name}/" not in FOLDERS}
    with tempfile.TemporaryDirectory() as directory:
        for name in names:
            file = Path(directory, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(PROSE)
        assert account(kind, directory) in (0, len(names))
    if kind == "docstrings":
        return
    store, filesystem = f"memory://{uuid.uuid4().hex}", fsspec.filesystem("memory")
    for name in names:
        filesystem.pipe(f"{store}/{name}", PROSE.encode())
    assert account(kind, store) in (0, len(names))
    filesystem.rm(store, recursive=True)


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A folder of 3 texts, one file that is refused, a copy, and 11 files of other kinds."""
    folder = tmp_path / "in"
    for name in ("sub", "_x", ".y"):
        (folder / name).mkdir(parents=True)
    for name in ("a.txt", "b.txt", "copy.txt", "sub/c.txt"):
        (folder / name).write_text(f"{name if name != 'copy.txt' else 'a.txt'} {PROSE}")
    (folder / "empty.txt").touch()
    others = "LICENSE t.csv x.html.gz _SUCCESS .so.txt _x/a.txt .y/b.txt sub/1.html sub/2.html v.1"
    for name in others.split():
        (folder / name).write_text(PROSE)
    (folder / "elsewhere").symlink_to(tmp_path)
    return folder


@pytest.mark.parametrize("text", ["", "Too short."])
def test_a_source_that_gives_nothing_names_what_it_passed_over(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text(text)
    for name in ("b.html", "c.html", "d.csv"):
        (folder / name).write_text(PROSE)
    with pytest.raises(
        DataError,
        match=r"1 of 4 files match books; 3 others passed over \(.html 2, .csv 1\)",
    ):
        make(tmp_path / "out", f"books={folder}")


def test_the_sums_of_a_corpus_add_up(mixed: Path, tmp_path: Path) -> None:
    result = make(tmp_path / "out", f"text={mixed}", dedup="exact")
    counters = result.manifest.counters
    assert {
        name: count for name, count in counters.items() if name.startswith(("files", "dropped_f"))
    } == {"files/read": 3, "files/refused": 1, "dropped_files/duplicate_file": 1}
    assert counters["quarantined/empty_file"] == 1
    prefix = "passed_over/text/"
    passed_over = {
        name.removeprefix(prefix): count
        for name, count in counters.items()
        if name.startswith(prefix)
    }
    assert passed_over == {
        "hidden": 4, ".html": 2, ".html.gz": 1, ".csv": 1, ".1": 1, "no ending": 1, "link": 1,
    }  # fmt: skip
    said = (
        "5 of 16 files match text; 11 others passed over "
        "(hidden 4, .html 2, .1 1, .csv 1, .html.gz 1, link 1, no ending 1)"
    )
    assert said in STAGE.headline(result.manifest.summary)
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["passed_over"] == [said]
    assert said in (tmp_path / "out" / "card.html").read_text()
    values = {"sources": [{"kind": "text", "path": str(mixed)}]}
    with pytest.raises(UsageError, match="5 of 16 files match text; 11 others"):
        explain(parse_config(CorpusConfig, values, "corpus"), "LICENSE")


def test_a_file_that_another_source_reads_is_not_passed_over(mixed: Path) -> None:
    sources = [Source(kind=kind, path=str(mixed)) for kind in ("text", "html")]
    listing = list_sources(sources)
    assert listing.matching == {"text": 5, "html": 3}
    assert listing.passed_over["text"] == listing.passed_over["html"]
    assert listing.passed_over["text"].total() == 8


def test_a_pattern_passes_over_what_is_hidden(mixed: Path) -> None:
    listing = list_sources([Source(kind="text", path=f"{mixed}/*")])
    assert listing.passed_over["text"]["hidden"] >= 2
    assert ".html" in listing.passed_over["text"]  # of the folder that matches
    whole = list_sources([Source(kind="text", path=f"{mixed}/a.txt")])
    assert (whole.matching, whole.passed_over["text"].total()) == ({"text": 1}, 0)
    assert whole.describe() == []


def test_a_folder_without_a_match_says_what_it_holds(mixed: Path) -> None:
    with pytest.raises(
        DataError, match=r"no file of source warc .*, but \.txt 5, hidden 4, .html 2"
    ):
        READERS.find("warc").slices(str(mixed))


def test_the_list_of_endings_is_short() -> None:
    names = [f"a.e{number}" for number in range(40) for _ in range(40 - number)]
    counts = count_endings([*names, "a.b c d e f g h", "b.A", "c.a", "x/y.z/w"])
    assert len([name for name in counts if counts[name]]) == 11
    assert counts.total() == len(names) + 4
    described = describe_endings(counts)
    assert described.startswith(".e0 40, .e1 39, .e2 38")
    assert described.split(", ")[-1].startswith("others ")


def test_a_file_of_blank_lines_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text(json.dumps({"text": PROSE}))
    (tmp_path / "in" / "b.jsonl").write_text("\n \n\n")
    result = make(tmp_path / "out", f"jsonl={tmp_path}/in")
    counters = result.manifest.counters
    assert (counters["files/read"], counters["files/refused"]) == (1, 1)
    assert counters["quarantined/empty_file"] == 1


def test_members_of_an_archive_that_are_no_pages_are_counted(tmp_path: Path) -> None:
    page = f"<html><body><main><p>{PROSE}</p></main></body></html>"
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("a.html", ".b.html", "c.css", "d/e.txt"):
            archive.writestr(name, page)
    result = make(tmp_path / "out", f"html={tmp_path}/a.zip")
    assert result.manifest.counters["passed_over/html/in archives"] == 3
    assert "3 members of archives passed over" in STAGE.headline(result.manifest.summary)
