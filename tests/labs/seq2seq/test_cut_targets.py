"""Texts that are to be written are cut at their own length, and each cut is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloze.labs.seq2seq.text_to_text_task import TextTargets
from cloze.model.tasks.table import load_task
from cloze.pipeline import tokenizer
from tests.tiny_models import write_tokenizer


@pytest.mark.parametrize(
    ("length", "longest", "truncated"),
    [(4, 16, 1), (3, 16, 2), (5, 16, 0), (4, 4, 3), (5, 4, 2)],
)
def test_sources_and_targets_that_are_cut_are_counted(
    tmp_path: Path, length: int, longest: int, truncated: int
) -> None:
    pieces = tokenizer.load(write_tokenizer(tmp_path))
    task: Any = load_task("text-to-text", {"target_length": length})
    targets = ["the cat", "the cat in", "the cat in the"]
    sources = ["the cat", "the cat in paris", "the cat in the paris"]
    examples = TextTargets(texts=sources, text_pairs=None, targets=targets)
    samples = task.encode(examples, pieces, longest)
    own = pieces.encode_batch(targets)
    assert [ids.tolist() for ids in samples.labels] == [
        [*ids[: length - 1], pieces.special.sep] for ids in own
    ]
    assert samples.truncated == truncated
    none = task.encode(
        TextTargets(texts=sources, text_pairs=None, targets=None),
        pieces, 16,
    )  # fmt: skip
    assert (none.labels, none.truncated) == (None, 0)
