"""Drawings against the duplicates of google-research/bert's create_pretraining_data.py: the same
distributions of lengths, labels, borders and short rows.

Once against its recorded output (60 examples of five duplicates), and once against its rules
written out here with Python's random numbers, on more text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from cloze.core import random_keys
from cloze.pipeline.dataset.config import ExampleConfig
from cloze.pipeline.dataset.pairings.segments import (
    TokenizedDocuments,
    target_lengths,
    tokenize,
)
from cloze.pipeline.dataset.pairings.sentence_pairs import RANDOM, next_sentence
from cloze.pipeline.tokenizer.tokenizer import Tokenizer
from tests.parity.test_reference_program import (  # noqa: F401
    Theirs,
    directory,
    text,
    theirs,
    tokenizer,
)
from tests.pipeline.dataset.pairings.documents import columns, make_documents

stats = pytest.importorskip("scipy.stats")

Pair = tuple[int, int, bool]  # tokens of A, tokens of B, and whether B is random
LENGTH, ROOM = 64, 61
SIZES = [[3 + (7 * i + 5 * j + i * j) % 31 for j in range(4 + i % 23)] for i in range(80)]
LIKELY = 1e-4  # the seeds are fixed, so a failure is a change
FEATURES: dict[str, Callable[[Pair], float]] = {
    "tokens": lambda pair: pair[0] + pair[1],
    "tokens of A": lambda pair: pair[0],
    "tokens of B": lambda pair: pair[1],
    "border": lambda pair: pair[0] / (pair[0] + pair[1]),
}


def one_pass(documents: Sequence[Sequence[int]], dice: random.Random) -> list[Pair]:
    """Rows of one duplicate by the program's rules, for the sizes of the documents' sentences."""
    pairs = []
    for number, sizes in enumerate(documents):
        goal = dice.randint(2, ROOM) if dice.random() < 0.1 else ROOM
        place = 0
        while place < len(sizes):
            end = place + 1
            while end < len(sizes) and sum(sizes[place:end]) < goal:
                end += 1
            own = 1 if end - place == 1 else dice.randint(1, end - place - 1)
            a, b = sum(sizes[place : place + own]), 0
            is_random = end - place == 1 or dice.random() < 0.5
            if is_random:
                other = dice.choice([text for text in documents if text is not documents[number]])
                for size in other[dice.randint(0, len(other) - 1) :]:
                    b += size
                    if b >= goal - a:
                        break
                place += own
            else:
                b = sum(sizes[place + own : end])
                place = end
            while a + b > ROOM:
                a, b = (a - 1, b) if a > b else (a, b - 1)
            pairs.append((a, b, is_random))
    return pairs


def our_pairs(documents: TokenizedDocuments, config: ExampleConfig) -> list[list[Pair]]:
    """Rows of each drawing."""
    drawings = []
    for number in range(config.drawings):
        segments = next_sentence(documents.draw(number), config)
        _, lengths = columns(segments)
        labels = (segments.pair_label == RANDOM).tolist()
        drawings.append([(a, b, c) for (a, b), c in zip(lengths.tolist(), labels, strict=True)])
    return drawings


def likelihood(first: Sequence[float], second: Sequence[float], bins: int = 12) -> float:
    """Return the p value of a chi-square test that both are of one distribution."""
    borders = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0, 1, bins + 1)))
    counts = [np.histogram(values, borders)[0] for values in (first, second)]
    return float(stats.chi2_contingency(np.array(counts)).pvalue)


def test_drawings_are_distributed_as_the_programs_duplicates() -> None:
    passes = 40
    dice = random.Random(12345)
    expected = [pair for _ in range(passes) for pair in one_pass(SIZES, dice)]
    config = ExampleConfig(length=LENGTH, seed=1, drawings=passes)
    found = [pair for drawing in our_pairs(make_documents(SIZES), config) for pair in drawing]
    for only in (True, False):  # random rows, and the others
        ours, wanted = ([p for p in pairs if p[2] == only] for pairs in (found, expected))
        for name, feature in FEATURES.items():
            assert likelihood([*map(feature, ours)], [*map(feature, wanted)]) > LIKELY, name
    labels = [
        [sum(p[2] for p in pairs), sum(not p[2] for p in pairs)] for pairs in (found, expected)
    ]
    assert stats.chi2_contingency(np.array(labels)).pvalue > LIKELY
    short = [[sum(a + b < 40 for a, b, _ in pairs), len(pairs)] for pairs in (found, expected)]
    assert stats.chi2_contingency(np.array(short)).pvalue > LIKELY


def test_each_document_is_short_in_one_drawing_of_ten() -> None:
    config, documents = ExampleConfig(length=LENGTH, seed=2), make_documents([[5] * 40, [6] * 40])
    targets = np.array([target_lengths(documents.draw(d), config, ROOM) for d in range(2000)])
    assert (np.abs((targets < ROOM).mean(axis=0) - 0.1) < 4 * (0.09 / 2000) ** 0.5).all()
    assert targets.min() == 2


def test_the_programs_own_output_is_as_likely_as_ours(
    theirs: list[Theirs],  # noqa: F811
    tokenizer: Tokenizer,  # noqa: F811
    text: list[list[str]],  # noqa: F811
) -> None:
    """Its 60 examples, five duplicates, against 500 drawings of the same text."""
    documents = tokenize(
        random_keys.fold_in(3, np.arange(len(text))),
        [sentence for document in text for sentence in document],
        np.array([len(document) for document in text]),
        tokenizer,
        "uint16",
    )
    drawings = our_pairs(documents, ExampleConfig(length=128, seed=5, drawings=500))
    ours = [pair for drawing in drawings for pair in drawing]
    wanted = [
        (
            int((each.types == 0)[1 : each.length].sum()) - 1,
            int(each.types.sum()) - 1,
            each.pair_label == 1,
        )
        for each in theirs
    ]
    for name, feature in FEATURES.items():
        found, expected = [*map(feature, ours)], [*map(feature, wanted)]
        assert likelihood(found, expected, bins=5) > 0.01, name
    labels = [[sum(p[2] for p in pairs), sum(not p[2] for p in pairs)] for pairs in (ours, wanted)]
    assert stats.chi2_contingency(np.array(labels)).pvalue > 0.01
    # five duplicates of theirs are five drawings: as many rows, none the same set of pairs
    counts = np.array([len(drawing) for drawing in drawings])
    assert abs(len(wanted) / 5 - counts.mean()) < 3 * counts.std()
    assert len({tuple(sorted(drawing)) for drawing in drawings[:5]}) == 5
