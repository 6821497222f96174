"""Entity scores equal those of the program conlleval, illegal sequences and empty sides
included.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.model.tasks import metrics
from cloze.model.tasks.formats.tag_schemes import entities

TAGS = ["O", "O", "B-PER", "I-PER", "B-creative-work", "I-creative-work"]


def _conlleval(gold, predicted):
    """Correct, predicted and gold chunks, counted in one pass as conlleval does (Tjong Kim Sang and
    Buchholz 2000), for B, I and O.

    Unlike what is tested it never lists chunks: it looks at two neighbouring words at a time,
    sentences set apart by an O.
    """
    rows = [
        pair
        for a, b in zip(gold, predicted, strict=True)
        for pair in (*zip(a, b, strict=True), ("O", "O"))
    ]
    split = [[(tag[0], tag[2:]) for tag in pair] for pair in rows]
    before = [("O", ""), ("O", "")]
    correct = found_gold = found_predicted = 0
    inside = False
    for now in split:
        ended = [
            was[0] in "BI" and (now[k][0] in "BO" or was[1] != now[k][1])
            for k, was in enumerate(before)
        ]
        started = [
            now[k][0] == "B" or (now[k][0] == "I" and (was[0] == "O" or was[1] != now[k][1]))
            for k, was in enumerate(before)
        ]
        if inside:
            if ended[0] and ended[1] and before[0][1] == before[1][1]:
                inside, correct = False, correct + 1
            elif ended[0] != ended[1] or now[0][1] != now[1][1]:
                inside = False
        if started[0] and started[1] and now[0][1] == now[1][1]:
            inside = True
        found_gold += started[0]
        found_predicted += started[1]
        before = now
    return correct, found_predicted, found_gold


def _figures(correct, predicted, gold):
    precision = correct / predicted if predicted else 0.0
    recall = correct / gold if gold else 0.0
    f1 = 2 * precision * recall / (precision + recall) if correct else 0.0
    return {"f1": f1, "precision": precision, "recall": recall}


@st.composite
def _sides(draw):
    lengths = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    return tuple(
        [[draw(st.sampled_from(TAGS)) for _ in range(length)] for length in lengths]
        for _ in range(2)
    )


@settings(max_examples=50, deadline=None)
@given(_sides())
def test_scores_are_those_of_conlleval(sides):
    gold, predicted = sides
    found = metrics.tagging_scores(gold, predicted)
    assert {name: found[name] for name in ("f1", "precision", "recall")} == pytest.approx(
        _figures(*_conlleval(gold, predicted))
    )
    words = [
        (a, b) for x, y in zip(gold, predicted, strict=True) for a, b in zip(x, y, strict=True)
    ]
    assert found["accuracy"] == pytest.approx(sum(a == b for a, b in words) / len(words))


@pytest.mark.parametrize(
    ("gold", "predicted", "counts"),
    [
        (["B-A", "I-A", "O"], ["B-A", "I-A", "O"], (1, 1, 1)),
        (["B-A", "I-A", "O"], ["B-A", "O", "O"], (0, 1, 1)),  # a part is nothing
        (["B-A", "I-A"], ["I-A", "I-A"], (1, 1, 1)),  # an I- begins one
        (["B-A", "I-A"], ["B-A", "I-B"], (0, 2, 1)),  # a change of type ends one
        (["B-A", "B-A"], ["B-A", "I-A"], (0, 1, 2)),
        (["O", "O"], ["O", "O"], (0, 0, 0)),
        (["B-A", "O"], ["O", "O"], (0, 0, 1)),
        (["O", "O"], ["B-A", "O"], (0, 1, 0)),
    ],
)
def test_edge_cases_are_counted_as_conlleval_counts_them(gold, predicted, counts):
    assert _conlleval([gold], [predicted]) == counts
    found = metrics.tagging_scores([gold], [predicted])
    assert {name: found[name] for name in ("f1", "precision", "recall")} == pytest.approx(
        _figures(*counts)
    )


def test_a_type_is_scored_alone_and_an_entity_does_not_cross_sentences():
    gold = [["B-A"], ["I-A", "O", "B-B"]]
    predicted = [["B-A"], ["I-A", "O", "B-A"]]
    assert [len(entities(tags)) for tags in gold] == [1, 2]
    assert metrics.tagging_scores_by_type(gold, predicted) == {
        "A": {
            "f1": pytest.approx(0.8),
            "precision": pytest.approx(2 / 3),
            "recall": 1.0,
            "entities": 2,
        },
        "B": {"f1": 0.0, "precision": 0.0, "recall": 0.0, "entities": 1},
    }
    assert metrics.tagging_scores([], []) == dict.fromkeys(metrics.TAGGING, 0.0)


def test_the_interval_holds_the_score_and_is_a_point_where_all_is_right():
    gold = [["B-A", "O"], ["O", "B-B"], ["O", "O"]] * 10
    predicted = [["B-A", "O"], ["O", "O"], ["O", "O"]] * 10
    low, high = metrics.tagging_f1_interval(gold, predicted, 1, 200)
    assert low < metrics.tagging_scores(gold, predicted)["f1"] < high
    assert metrics.tagging_f1_interval(gold, gold, 1, 50) == [1.0, 1.0]
    assert metrics.tagging_f1_interval([["O"]], [["O"]], 1, 5) == [0.0, 0.0]
