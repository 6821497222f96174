"""SQuAD's metrics by its published rules (`evaluate-v1.1.py`, `evaluate-v2.0.py`; Rajpurkar et al. 2016, 2018), as shares from 0 to 1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """Lower case, without ASCII punctuation, then without articles, with single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(prediction: str, answer: str) -> float:
    """1 where both are the same, once normalized."""
    return float(normalized(prediction) == normalized(answer))


def f1(prediction: str, answer: str, *, empty_matches: bool = True) -> float:
    """F1 of the words that both have, as bags.

    Args:
        empty_matches: two texts of no words are the same (2.0); in 1.1 they have nothing in common.
    """
    found, wanted = normalized(prediction).split(), normalized(answer).split()
    if not found or not wanted:
        return float(empty_matches and found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    return 2.0 * common / (len(found) + len(wanted))


def question_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, unanswerable: bool
) -> tuple[Floats, Floats]:
    """Of each question exact match and F1, against the answer that suits its prediction best.

    Args:
        predictions: the empty text says that there is no answer.
        answers: of each question, at least one; with `unanswerable` none says that the question has no answer.
        unanswerable: by the rules of 2.0: an answer of no words is none, and where all are so the empty text is right.

    Returns:
        float64 [n] each, from 0 to 1.
    """
    exacts, f1s = np.zeros(len(predictions)), np.zeros(len(predictions))
    for i, (prediction, given) in enumerate(zip(predictions, answers, strict=True)):
        right = ([text for text in given if normalized(text)] or [""]) if unanswerable else given
        exacts[i] = max(exact(prediction, text) for text in right)
        f1s[i] = max(f1(prediction, text, empty_matches=unanswerable) for text in right)
    return exacts, f1s


def best_threshold(scores: Floats, odds: Floats, has_answer: Flags) -> tuple[float, float]:
    """The threshold at which the mean score is best where a question is left unanswered if its odds are above it.

    As `find_best_thresh` of evaluate-v2.0.py, save that questions of equal odds stay together, and that a threshold at which
    all are left unanswered lies below all odds.

    Args:
        scores: of the best answer to each question, [n]; 0 where the question has none.
        odds: that there is no answer, [n].
        has_answer: which questions have one, bool [n].

    Returns:
        The mean score, from 0 to 1, and the threshold. Of thresholds that are as good the lowest.
    """
    if not len(scores):
        return 0.0, 0.0
    order = np.argsort(odds, kind="stable")
    gains = np.where(has_answer, scores, -1.0)[order]
    totals = float((~has_answer).sum()) + np.concatenate([[0.0], np.cumsum(gains)])
    ranked = odds[order]
    together = np.append(ranked[:-1] == ranked[1:], False)  # with the one behind it: no threshold between them
    totals[1:][together] = -np.inf
    best = int(np.argmax(totals))
    return float(totals[best] / len(scores)), float(ranked[best - 1] if best else ranked[0] - 1.0)
