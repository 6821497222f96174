"""What a probe classifies: words, entities to their last word, arcs with both ends."""

from __future__ import annotations

import pytest

from cloze.core.errors import DataError
from cloze.labs.inside.probes import spans_of
from cloze.model.tasks.formats.columns import TaggedWords

SENTENCES = TaggedWords(
    words=[["Anna", "Li", "lives", "in", "New", "York"], ["Bo", "left"]],
    tags=[["B-PER", "I-PER", "O", "O", "B-LOC", "I-LOC"], ["B-PER", "O"]],
    scheme="BIO",
    where="a.txt",
)


def test_entities_are_from_their_first_word_to_behind_their_last() -> None:
    found = spans_of(SENTENCES, "entities")
    assert found.bounds.tolist() == [[[0, 2]], [[4, 6]], [[6, 7]]]
    assert (list(found.labels), list(found.texts)) == (
        ["PER", "LOC", "PER"],
        ["Anna Li", "New York", "Bo"],
    )


def test_words_are_each_of_them_in_the_order_of_the_file() -> None:
    found = spans_of(SENTENCES, "words")
    assert found.bounds.tolist() == [[[number, number + 1]] for number in range(8)]
    assert list(found.labels) == [tag for tags in SENTENCES.tags or () for tag in tags]
    assert list(found.texts) == [word for words in SENTENCES.words for word in words]


def conllu(*heads: tuple[str, str]) -> TaggedWords:
    """A sentence `see Bo` before one of these heads and relations."""
    rows = [("see", "0", "root"), ("Bo", "1", "obj")]
    own = [(f"w{number}", head, kind) for number, (head, kind) in enumerate(heads, 1)]
    lines = [
        (str(number), word, "_", "X", "_", "_", head, kind)
        for sentence in (rows, own)
        for number, (word, head, kind) in enumerate(sentence, 1)
    ]
    return TaggedWords(
        words=[["see", "Bo"], [word for word, _, _ in own]],
        tags=[["X"] * 2, ["X"] * len(own)],
        lines=lines,
        line_numbers=[[0, 1], [2 + number for number in range(len(own))]],
        where="a.conllu",
    )


def test_arcs_have_both_ends_and_roots_have_none() -> None:
    found = spans_of(conllu(("3", "det"), ("3", "amod"), ("0", "root")), "arcs")
    assert found.bounds.tolist() == [
        [[1, 2], [0, 1]],
        [[2, 3], [4, 5]],
        [[3, 4], [4, 5]],
    ]
    assert (list(found.labels), list(found.texts)) == (["obj", "det", "amod"], ["Bo", "w1", "w2"])


@pytest.mark.parametrize("head", ["2", "_", "x", "-1"])
def test_a_head_that_is_no_word_is_named(head: str) -> None:
    with pytest.raises(DataError, match=rf"the head \('{head}'\) is no word of the sentence"):
        spans_of(conllu((head, "det")), "arcs")


def test_nothing_to_classify_is_one_sentence() -> None:
    none = TaggedWords(words=[["a"]], tags=[["O"]], scheme="BIO", where="a.txt")
    with pytest.raises(DataError, match=r"^a.txt has no entities to classify; use another target$"):
        spans_of(none, "entities")
