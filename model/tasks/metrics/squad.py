"""SQuAD's metrics, from 0 to 1 (`evaluate-v1.1.py`, `evaluate-v2.0.py`).

Sources: Rajpurkar et al. 2016, 2018.
"""

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
    """Normalize a text: lower case, no ASCII punctuation, no articles, single blanks."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact(prediction: str, answer: str) -> float:
    """Return 1 if the normalized texts are equal, else 0."""
    return float(normalized(prediction) == normalized(answer))


def f1(prediction: str, answer: str, *, empty_matches: bool = True) -> float:
    """Return F1 of the normalized words, as bags.

    Args:
        empty_matches: two texts without words match (2.0); in 1.1 they do not.
    """
    found, wanted = normalized(prediction).split(), normalized(answer).split()
    if not found or not wanted:
        return float(empty_matches and found == wanted)
    common = (Counter(found) & Counter(wanted)).total()
    return 2.0 * common / (len(found) + len(wanted))


def question_scores(
    predictions: Sequence[str], answers: Sequence[Sequence[str]], *, unanswerable: bool
) -> tuple[Floats, Floats]:
    """Return exact match and F1 of each question, for the reference answer with the best value.

    Args:
        predictions: predicted texts; empty for "no answer".
        answers: reference answers of each question, at least one; with `unanswerable` none for
            unanswerable questions.
        unanswerable: use the rules of 2.0: answers without words are ignored, and if none is left
            the empty text is right.

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
    """Return the best mean score over thresholds of the "no answer" odds, and that threshold.

    Questions with odds above the threshold are left unanswered. Unlike `find_best_thresh` of
    evaluate-v2.0.py, questions with equal odds stay together, and a threshold that answers none is
    below all odds.

    Args:
        scores: float [n], scores of the best answers; 0 for unanswerable questions.
        odds: float [n], odds of "no answer".
        has_answer: bool [n], answerable questions.

    Returns:
        Mean score from 0 to 1, and threshold; the lowest on ties.
    """
    if not len(scores):
        return 0.0, 0.0
    order = np.argsort(odds, kind="stable")
    gains = np.where(has_answer, scores, -1.0)[order]
    totals = float((~has_answer).sum()) + np.concatenate([[0.0], np.cumsum(gains)])
    ranked = odds[order]
    together = np.append(
        ranked[:-1] == ranked[1:], False
    )  # equal to the next: no threshold between them
    totals[1:][together] = -np.inf
    best = int(np.argmax(totals))
    return float(totals[best] / len(scores)), float(ranked[best - 1] if best else ranked[0] - 1.0)
