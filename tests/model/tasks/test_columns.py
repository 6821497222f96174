"""Column files: every scheme is read as conlleval reads it and written back as it was; what is
wrong is reported with file and line.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloze.core.errors import DataError
from cloze.model.tasks.formats.tag_schemes import (
    count_invalid_tags,
    detect_scheme,
    entities,
    tags_from_entities,
)
from cloze.model.tasks.table import load_task
from tests.model.tasks.columns import sentences, write_columns

SCHEMES = ("BIO", "IOB1", "BIOES")
# sizes of the shared task: sentences, words, LOC, MISC, ORG, PER (Tjong Kim Sang and De Meulder
# 2003, tables 1 and 2)
CONLL = (
    pytest.param("train", 14041, 203621, 7140, 3438, 6321, 6600, marks=pytest.mark.soak),
    ("dev", 3250, 51362, 1837, 922, 1341, 1842),
    ("test", 3453, 46435, 1668, 702, 1661, 1617),
)
TAGS = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "creative-work"))]


def _read(path: Path, text: str | bytes, split: str = "dev", **options: object):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_task("tagging", options).read(str(path), split, None)


@given(st.lists(st.sampled_from(TAGS), max_size=12))
def test_any_sequence_keeps_its_entities_in_every_scheme(tags):
    found = entities(tags)
    for scheme in SCHEMES:
        assert entities(tags_from_entities(found, len(tags), scheme)) == found
        assert tags_from_entities(found, len(tags), scheme) == tags_from_entities(
            entities(tags_from_entities(found, len(tags), "BIO")), len(tags), scheme
        )
    assert all(a[2] < b[1] for a, b in zip(found, found[1:], strict=False))


def test_the_schemes_are_written_as_they_are_defined():
    found = [("PER", 0, 1), ("PER", 2, 2), ("LOC", 3, 5), ("PER", 7, 7)]
    assert tags_from_entities(found, 8, "BIO") == [
        "B-PER",
        "I-PER",
        "B-PER",
        "B-LOC",
        "I-LOC",
        "I-LOC",
        "O",
        "B-PER",
    ]
    assert tags_from_entities(found, 8, "IOB1") == [
        "I-PER",
        "I-PER",
        "B-PER",
        "I-LOC",
        "I-LOC",
        "I-LOC",
        "O",
        "I-PER",
    ]
    assert tags_from_entities(found, 8, "BIOES") == [
        "B-PER",
        "E-PER",
        "S-PER",
        "B-LOC",
        "I-LOC",
        "E-LOC",
        "O",
        "S-PER",
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_scheme_is_recognised(scheme):
    found = [[("PER", 0, 1), ("PER", 2, 2)], [("LOC", 1, 1)]]
    written = [tags_from_entities(own, 4, scheme) for own in found]
    assert detect_scheme(written, found) == scheme
    assert count_invalid_tags(written, found, scheme) == 0
    if scheme == "IOB1":
        assert count_invalid_tags(written, found, "BIO") == 2
    assert detect_scheme([["O", "O"]], [[]]) == "BIO"


@pytest.mark.parametrize(("split", "count", "words", "loc", "misc", "org", "per"), CONLL)
def test_conll2003_has_the_sizes_of_its_paper(
    shared_data, split, count, words, loc, misc, org, per
):
    task = load_task("conll2003")
    read = task.read(str(shared_data / "tasks"), split, None)
    assert len(read) == count
    assert task.dataset_statistics(read) == {
        "words": words,
        "scheme": "IOB1",
        "misplaced_tags": 2
        if split == "train"
        else 0,  # "Atlanta" and "Urdu-speaking" have a B- behind an O
        "entities": {"LOC": loc, "MISC": misc, "ORG": org, "PER": per},
    }


def test_wnut17_has_the_sizes_of_its_files(shared_data):
    task = load_task("wnut17")
    read = {
        split: task.read(str(shared_data / "tasks/wnut17"), split, None)
        for split in ("train", "dev", "test")
    }
    assert {split: (len(found), sum(found.types().values())) for split, found in read.items()} == {
        "train": (3394, 1975),
        "dev": (1009, 836),
        "test": (1287, 1079),
    }
    assert {found.scheme for found in read.values()} == {"BIO"}
    assert next(iter(read["dev"].rows(read["dev"].tags))) == "Stabilized\tO\tO"


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_what_is_written_is_the_file_with_a_column_more_in_its_own_scheme(
    tmp_path, scheme, separator
):
    found = [
        list(
            zip(
                [word for word, _ in own],
                tags_from_entities(entities([tag for _, tag in own]), len(own), scheme),
                strict=True,
            )
        )
        for own in sentences(20, 4)
    ]
    path = write_columns(tmp_path / "dev.txt", found, separator)
    read = load_task("tagging").read(str(path), "dev", None)
    assert read.scheme == scheme
    assert read.misplaced == 0
    lines = path.read_text().removesuffix("\n").split("\n")
    assert list(read.rows(read.tags)) == [
        line and f"{line}{separator}{line.rsplit(separator)[-1]}" for line in lines
    ]


def test_line_ends_of_windows_a_mark_and_a_missing_line_end_change_nothing(tmp_path):
    text = "-DOCSTART- -X- O O\n\nEU NNP I-NP I-ORG\nrejects VBZ I-VP O\n\n\nPeter NNP I-NP I-PER\n"
    usual = _read(tmp_path / "a", text)
    assert usual.words == [["EU", "rejects"], ["Peter"]]
    assert usual.tags == [["B-ORG", "O"], ["B-PER"]]
    for other in (
        text.replace("\n", "\r\n"),
        "\ufeff" + text,
        text.rstrip("\n"),
        text.replace(" ", "   "),
        text + "\n\n \t\n",
    ):
        found = _read(tmp_path / "b", other)
        assert (found.words, found.tags) == (usual.words, usual.tags)


def test_a_space_that_separates_no_columns_stays_in_the_word(tmp_path):
    assert _read(tmp_path / "a", "\u00a0 O\nx\u2028y B-PER\n").words == [["\u00a0", "x\u2028y"]]
    assert _read(tmp_path / "b", "New York\tB-LOC\n").words == [["New York"]]


def test_illegal_tags_are_read_as_conlleval_does_and_counted(tmp_path):
    found = _read(
        tmp_path / "a", "a B-PER\nb I-LOC\nc O\nd I-PER\ne I-PER\nf B-PER\n\ng B-PER\nh B-LOC\n"
    )
    assert found.tags == [
        ["B-PER", "B-LOC", "O", "B-PER", "I-PER", "B-PER"],
        ["B-PER", "B-LOC"],
    ]
    assert (found.scheme, found.misplaced) == ("BIO", 2)


def test_files_without_tags_are_read_to_be_predicted(tmp_path):
    alone = _read(tmp_path / "a", "EU\nrejects\n\nPeter\n", "test")
    assert not alone.labelled
    assert list(alone.rows([["B-ORG", "O"], ["B-PER"]])) == [
        "EU B-ORG",
        "rejects O",
        "",
        "Peter B-PER",
    ]
    without = _read(tmp_path / "b", "EU NNP\nrejects VBZ\n", "test", columns={"tag": None})
    assert not without.labelled
    assert list(without.rows([["B-ORG", "O"]])) == ["EU NNP B-ORG", "rejects VBZ O"]
    assert not _read(tmp_path / "c", "EU NNP I-NP\n", "test", columns={"tag": 3}).labelled


def test_columns_are_named_by_number(tmp_path):
    found = _read(tmp_path / "a", "1 EU B-ORG x\n2 and O x\n", columns={"word": 1, "tag": 2})
    assert found.words == [["EU", "and"]]
    assert found.tags == [["B-ORG", "O"]]
    assert list(found.rows(found.tags)) == ["1 EU B-ORG x B-ORG", "2 and O x O"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, r"dev\.txt has no sentences; it must have a word and its tag per line"),
        ("\n\n-DOCSTART- O\n\n", {}, r"dev\.txt has no sentences"),
        (
            "a O\nb\n",
            {},
            r"dev\.txt, line 2: 1 columns, but the lines above have 2",
        ),
        ("a O\n\nb x B-PER\n", {}, r"dev\.txt, line 3: 3 columns, but"),
        (
            "a O\nb PER\n",
            {},
            r"dev\.txt, line 2: 'PER' is not a tag \(O, B-, I-, E- or S-, and a type\); "
            r".*options\.columns\.tag",
        ),
        ("a O\nb B-\n", {}, r"line 2: 'B-' is not a tag"),
        ("a\tO\n\tO\n", {}, r"line 2: the word is empty; remove the line"),
        ("a O\nb\0 O\n", {}, r"line 2: a NUL at byte 2; the file is damaged or in UTF-16"),
        ("a O\nb O\n".encode("utf-16"), {}, r"line 1: a NUL at byte 4"),
        (b"a O\nK\xf6ln B-LOC\n", {}, r"line 2: byte 2 is not UTF-8; convert the file to UTF-8"),
        (
            "a O\n",
            {"columns": {"word": 2}},
            r"has 2 columns, options\.columns\.word is 2; name one of 0 to 1",
        ),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path, text, options, message):
    with pytest.raises(DataError, match=message):
        _read(tmp_path / "dev.txt", text, **options)


def test_a_split_that_is_not_there_is_named(tmp_path):
    with pytest.raises(
        DataError,
        match=(
            r"eng\.testa does not exist; the task reads a directory with eng\.train and eng\.testa"
        ),
    ):
        load_task("conll2003").read(str(tmp_path), "dev", None)
