"""Scores of labels that a model was not trained on: the softmax over them, text by text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cloze.labs.serving.classify import ZeroShot


@pytest.mark.parametrize("top_k", [None, 1, 2])
@pytest.mark.parametrize("texts", [["x"], ["x", "y", "z"]])
def test_each_text_has_its_own_scores_however_large_the_logits(
    texts: list[str], top_k: int | None
) -> None:
    logits = {"x": (1000.0, 1001.0, 999.0), "y": (-2000.0, -2000.0, -2003.0), "z": (0.0, 5.0, 9.0)}
    asked: list[tuple[str, str]] = []

    def entailment(given: list[str], hypotheses: list[str]) -> np.ndarray:
        asked.extend(zip(given, hypotheses, strict=True))
        found = [logits[text][int(label)] for text, label in zip(given, hypotheses, strict=True)]
        return np.array(found, np.float32)

    verb: Any = object.__new__(ZeroShot)
    verb._classifier = SimpleNamespace(entailment=entailment)
    verb._labels, verb._hypotheses, verb._top_k = ("a", "b", "c"), ["0", "1", "2"], top_k
    answers = verb.answer(texts)
    assert asked == [(text, label) for text in texts for label in "012"]
    for text, answer in zip(texts, answers, strict=True):
        shifted = np.array(logits[text]) - max(logits[text])
        scores = np.exp(shifted) / np.exp(shifted).sum()
        order = sorted(range(3), key=lambda n: (-scores[n], n))[:top_k]
        assert [one["label"] for one in answer["predictions"]] == ["abc"[n] for n in order]
        assert [one["score"] for one in answer["predictions"]] == pytest.approx(scores[order])
        assert (answer["label"], answer["score"]) == (
            answer["predictions"][0]["label"],
            answer["predictions"][0]["score"],
        )
