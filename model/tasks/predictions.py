"""The prediction file: one example a line, in the order of the data, readable by eye and by any TSV reader."""

from __future__ import annotations

import csv
import io

import numpy as np
import numpy.typing as npt

from model.tasks.table import Examples
from pipeline.core import storage

FILE = "predictions.tsv"


def write_predictions(path: str, examples: Examples, probabilities: npt.NDArray[np.float32]) -> None:
    """Write index, text (and text_pair), label, prediction and score as TSV without quoting.

    Args:
        probabilities: [n, classes]; the score is that of the predicted class. `label` is empty without labels.
    """
    best = probabilities.argmax(axis=1)
    pairs = examples.text_pairs
    lines = ["\t".join(["index", "text", *(["text_pair"] if pairs is not None else []), "label", "prediction", "score"])]
    for i, choice in enumerate(best):
        texts = [examples.texts[i]] + ([pairs[i]] if pairs is not None else [])
        label = "" if examples.labels is None else examples.label_names[examples.labels[i]]
        row = [str(i), *map(_one_line, texts), label, examples.label_names[choice], f"{probabilities[i, choice]:.6f}"]
        lines.append("\t".join(row))
    storage.write_bytes(path, ("\n".join(lines) + "\n").encode("utf-8"))


def read_predictions(path: str) -> list[dict[str, str]]:
    """The rows of a prediction file by column."""
    text = storage.read_text(path)
    return list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))


def _one_line(text: str) -> str:
    """The text with its tabs and line breaks as spaces, so that a row stays a line."""
    return " ".join(text.replace("\t", " ").splitlines())
