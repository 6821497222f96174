"""Column files as people have them: schemes, comments, mixed separators, types of dev alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.core.errors import DataError
from cloze.model.tasks.formats.columns import TaggedWords
from cloze.model.tasks.kinds.tagging import Tags
from cloze.model.tasks.notes import split_notes
from cloze.model.tasks.table import load_task
from cloze.model.tasks.task import encoded

SENTENCE = [("Mary", "PER", 0), ("of", "ORG", 0), ("New", "ORG", 1), ("York", "ORG", 2)]
BIO = ["B-PER", "O", "B-ORG", "I-ORG", "I-ORG", "O"]
SCHEMES = {
    "BIO": BIO,
    "IOB1": ["I-PER", "O", "I-ORG", "I-ORG", "I-ORG", "O"],  # that is IO, too
    "BIOES": ["S-PER", "O", "B-ORG", "I-ORG", "E-ORG", "O"],
    "BILOU": ["U-PER", "O", "B-ORG", "I-ORG", "L-ORG", "O"],
    "BMES": ["S-PER", "O", "B-ORG", "M-ORG", "E-ORG", "O"],
    "BMEWO": ["W-PER", "O", "B-ORG", "M-ORG", "E-ORG", "O"],
}
WORDS = ["Mary", "left", "Bank", "of", "York", "."]


def read(tmp_path: Path, text: str, **options: Any) -> TaggedWords:
    (tmp_path / "dev.txt").write_bytes(text.encode())
    found: TaggedWords = load_task("tagging", options).read(str(tmp_path), "dev", None)
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("separator", [" ", "\t", "  \t"])
def test_every_scheme_has_the_same_entities(scheme: str, separator: str, tmp_path: Path) -> None:
    tags = SCHEMES[scheme]
    text = "\r\n".join(map(separator.join, zip(WORDS, tags, strict=True)))  # no final newline
    found = read(tmp_path, text)
    assert (found.words, found.tags, found.scheme) == ([WORDS], [BIO], scheme)
    assert found.misplaced == 0
    written = [line.split()[-1] for line in found.rows([BIO])]
    assert written == tags


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "# id 5 domain=en\nMary _ _ B-PER\n\n# id 6 domain=en\nleft _ _ O\n",
            [["Mary"], ["left"]],
        ),
        ("# text = Mary left\nMary\tB-PER\nleft\tO\n", [["Mary", "left"]]),
        ("#begin document (a); part 000\nMary B-PER\n\n#end document\n", [["Mary"]]),
        ("# O\nMary B-PER\n", [["#", "Mary"]]),
        ("#tag O\n# O\nMary B-PER\n", [["#tag", "#", "Mary"]]),
        ("-DOCSTART-\tO\n\nMary\tB-PER\nleft\tO", [["Mary", "left"]]),
        ("-DOCSTART- -X- -X- O\nMary NNP I B-PER\n", [["Mary"]]),
        ("Mary\tB-PER\nleft O\nhome\tO\t\n", [["Mary", "left", "home"]]),
        ("Mary B-PER\nleft\tO\nhome  O  \n \t\nhere O", [["Mary", "left", "home"], ["here"]]),
    ],
)
def test_comments_and_mixed_separators(text: str, words: list[list[str]], tmp_path: Path) -> None:
    found = read(tmp_path, text)
    assert found.words == words
    assert found.types() == {"PER": 1}


def test_a_type_that_only_dev_has_counts_as_an_error(tmp_path: Path, pieces: Any) -> None:
    task = load_task("tagging")
    (tmp_path / "train.txt").write_text("a B-PER\nb O\n\nc B-LOC\n")
    train = task.read(str(tmp_path), "train", None)
    metadata = task.metadata(train)
    dev = read(tmp_path, "a B-PER\nb B-ORG\nc I-ORG\n\nd B-ORG\n")
    split = encoded(task, dev, metadata, pieces, 16)
    assert split.samples.dropped_counts == {"of_unknown_type": 2}
    assert split_notes("dev", split) == [
        "dev has answers that no output can give: 2 of unknown type"
    ]
    perfect = Tags(tags=[["B-PER", "O", "O"], ["O"]], scores=[])
    scores = task.score(split.examples, perfect)
    assert scores["precision"] == 1.0
    assert scores["recall"] == pytest.approx(1 / 3)
    other = read(tmp_path, "a B-ORG\n")
    with pytest.raises(
        DataError, match=r"line 1: the tag's type 'ORG' is unknown .*LOC, PER\), and so are"
    ):
        encoded(task, other, metadata, pieces, 16)
    assert encoded(task, read(tmp_path, "a O\n"), metadata, pieces, 16).samples.dropped_counts == {}


@pytest.mark.parametrize(
    ("ids", "line", "said"),
    [
        ("1 2 1 2", 3, "is 1 after 2"),  # two sentences without an empty line
        ("1 2 2", 3, "is 2 after 2"),
        ("1 3", 2, "is 3 after 1"),  # a row is lost
        ("2 1", 2, "is 1 after 2"),
        ("1 2-3 2 4", 4, "is 4 after 2"),
        ("1 2-3 2 3 3.1 4", 0, ""),
        ("5 6", 0, ""),  # the end of a sentence
    ],
)
def test_ids_of_conllu_are_numbered_through(ids: str, line: int, said: str, tmp_path: Path) -> None:
    rows = ["\t".join([number, "word", "_", "NOUN"]) for number in ids.split()]
    (tmp_path / "dev.conllu").write_text("\n".join(rows) + "\n")
    task = load_task("tagging", {"scheme": "plain"})
    if not said:
        found: TaggedWords = task.read(str(tmp_path), "dev", None)
        assert len(found.words[0]) == sum(number.isdecimal() for number in ids.split())
        return
    with pytest.raises(DataError, match=rf"dev\.conllu, line {line}: the word's id {said}"):
        task.read(str(tmp_path), "dev", None)
