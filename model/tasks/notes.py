"""Sentences of a stage's last line about what its scores leave out or rest on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloze.model.tasks.task import Split

MANY = 0.1  # share of dev's examples in train above which a score says little about other text
# Inputs of an example, by attribute of `Examples`.
INPUTS = ("texts", "text_pairs", "contexts", "endings", "words", "questions")


def split_notes(name: str, split: Split) -> list[str]:
    """Return notes about a split: no labels, dropped examples, answers that no output can give."""
    examples, notes = split.examples, []
    if not examples.labelled:
        notes.append(f"{name} has no labels: {len(examples):,} predicted, none scored")
    if examples.dropped:
        notes.append(f"{name}: {_listed(examples.dropped)} dropped")
    if lost := {reason: count for reason, count in split.samples.dropped_counts.items() if count}:
        notes.append(f"{name} has answers that no output can give: {_listed(lost)}")
    return notes


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in counts.items())


def repeats(train: Split, dev: Split) -> list[str]:
    """Return a note if more than `MANY` of dev's inputs are also in train, with any answer."""
    known, own = set(_inputs(train.examples)), list(_inputs(dev.examples))
    count, total = sum(key in known for key in own), len(train.examples)
    note = f"{count:,} of {len(own):,} dev examples are also among the {total:,} of train"
    return [note] if count > MANY * len(own) else []


def _inputs(examples: Any) -> Iterator[int]:
    """Iterate over the hashes of the examples' inputs."""
    if parts := getattr(examples, "parts", None):  # of several tasks
        for name, part in parts.items():
            yield from (hash((name, key)) for key in _inputs(part))
        return
    columns = [values for name in INPUTS if (values := getattr(examples, name, None))]
    if places := getattr(examples, "passage_of", ()):
        columns.append([examples.passages[place] for place in places])
    if hasattr(examples, "queries"):
        columns = [[(examples.queries[q], examples.passages[p]) for q, p in examples.pairs]]
    yield from (hash(str(row)) for row in zip(*columns, strict=True))
