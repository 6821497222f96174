"""Suites of BabyLM in formats of their own: what follows a context is compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloze.core.errors import DataError
from cloze.model.tasks.formats.contrasts import Contrast, read_contrasts
from cloze.model.use.scorer import SentenceScorer
from cloze.model.use.scoring import mean_accuracy
from tests.model.use.test_score import directory as directory
from tests.model.use.test_score import scored
from tests.parity.pretrained import write_pretrained

SUITE = {  # BabyLM's formats: sentences, and the text of each that is compared
    "social.jsonl": (
        {
            "Domain": "social-relations",
            "Context1": "the cat sat.",
            "Context2": "the dog sat.",
            "Target1": "cats ran",
            "Target2": "dogs ran",
        },
        [("the cat sat. cats ran", "cats ran"), ("the cat sat. dogs ran", "dogs ran")],
        "social-relations",
    ),
    "regular.jsonl": (
        {
            "numops": 2,
            "input_prefix": "the cat sat on ",
            "options": ["the mat.", "a dog.", "a cat."],
        },
        [
            ("the cat sat on the mat.", "the mat."),
            ("the cat sat on a dog.", "a dog."),
            ("the cat sat on a cat.", "a cat."),
        ],
        "regular_2_ops",
    ),
    "comps_base.jsonl": (
        {
            "prefix_acceptable": "the cat",
            "prefix_unacceptable": "the mat",
            "property_phrase": "walked.",
        },
        [("the cat walked.", "walked."), ("the mat walked.", "walked.")],
        "comps_base",
    ),
}


@pytest.mark.parametrize("name", sorted(SUITE))
def test_other_formats_compare_what_follows_a_context(
    name: str, directory: str, tmp_path: Path
) -> None:
    row, expected, phenomenon = SUITE[name]
    (tmp_path / name).write_text(json.dumps(row) + "\n")
    _, (judged,), metrics = scored(directory, tmp_path / "out", data=str(tmp_path / name))
    scores = []
    for (_, compared), whole in zip(
        expected, SentenceScorer(directory).scored([text for text, _ in expected]), strict=True
    ):
        count = len(SentenceScorer(directory).pieces.encode_batch([compared])[0])
        assert 0 < count < len(whole.pieces)
        scores.append(float(whole.log_probabilities[-count:].sum()))
    wrong = judged["bad"] if isinstance(judged["bad"], list) else [judged["bad"]]
    assert [judged["good"], *wrong] == pytest.approx(scores, abs=1e-5)
    assert judged["correct"] == float(scores[0] == max(scores))
    assert judged["UID"] == phenomenon
    assert metrics["metrics"]["chance"] == pytest.approx(1 / len(expected))


@pytest.mark.parametrize("name", sorted(SUITE))
def test_the_compared_text_begins_behind_its_context(name: str, tmp_path: Path) -> None:
    row, expected, _ = SUITE[name]
    (tmp_path / name).write_text(json.dumps(row) + "\n")
    (found,) = read_contrasts(str(tmp_path))
    space = " " if name == "social.jsonl" else ""  # EWoK's counts
    compared = [text[start:] for text, start in zip(found.sentences, found.starts, strict=True)]
    assert compared == [space + text for _, text in expected]


def test_a_space_before_ewok_s_target_counts_where_it_is_a_token(tmp_path: Path) -> None:
    path = write_pretrained(tmp_path / "bytes", "roberta", "byte_level")
    row = {**SUITE["social.jsonl"][0], "Target1": "xyz"}
    (tmp_path / "social.jsonl").write_text(json.dumps(row) + "\n")
    _, (judged,), _ = scored(path, tmp_path / "out", data=str(tmp_path / "social.jsonl"))
    (whole,) = SentenceScorer(path).scored(["the cat sat. xyz"])
    assert [*whole.pieces[-4:]] == ["Ġ", "x", "y", "z"]
    assert judged["good"] == pytest.approx(float(whole.log_probabilities[-4:].sum()), abs=1e-5)


@pytest.mark.parametrize("options", ["a dog", '"a dog"', '{"a": 1}', "[1, 2]", "[" * 100_000, 7])
def test_options_of_entity_tracking_are_a_list(options: Any, tmp_path: Path) -> None:
    row = {"numops": 1, "input_prefix": "a ", "options": options}
    (tmp_path / "regular.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match=r"line 1: options \(.*\) is no list of texts in JSON"):
        read_contrasts(str(tmp_path))
    row["options"] = json.dumps(["a dog", "a cat"])
    (tmp_path / "regular.jsonl").write_text(json.dumps(row) + "\n")
    assert read_contrasts(str(tmp_path))[0].sentences == ("a a dog", "a a cat")


def test_entity_tracking_counts_files_and_operations_equally(tmp_path: Path) -> None:
    rows = [(f"{name}_{ops}_ops", name) for name, ops in [("a", 0), ("a", 0), ("a", 1), ("b", 0)]]
    contrasts = [
        Contrast(("x", "y"), (0, 0), name, phenomenon, "", {}, "") for phenomenon, name in rows
    ]
    assert mean_accuracy(contrasts, np.array([1.0, 1.0, 0.0, 1.0])) == pytest.approx(0.75)
    (tmp_path / "regular.jsonl").write_text(
        json.dumps({"numops": 1, "input_prefix": "a ", "options": ["b"]}) + "\n"
    )
    with pytest.raises(DataError, match=r"line 1: options has fewer than two texts"):
        read_contrasts(str(tmp_path))
