"""The stage static-vectors: corpus and vocabulary -> a vector per word. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloze.core.stages.stage import InputSpec, Stage, deferred
from cloze.model.static_vectors.config import StaticVectorsConfig


def headline(summary: Mapping[str, Any]) -> str:
    """Return the number of vectors, and the share of right analogies."""
    text = f"{summary['method']}: {summary['words']:,} vectors of {summary['size']} numbers"
    analogies = summary.get("metrics", {}).get("analogies")
    return text if analogies is None else f"{text}, {100 * analogies:.1f} % of analogies right"


# Files: `checkpoint`, a checkpoint of the family static; `vectors.bin`, word2vec's binary format;
# `analogies.json`, right and wrong analogies by section.
STAGE = Stage(
    name="static-vectors",
    version=1,
    config=StaticVectorsConfig,
    run=deferred("cloze.model.static_vectors.train:run"),
    inputs={
        "corpus": InputSpec(kinds=("corpus", "semdedup"), required=True),
        "vocab": InputSpec(kinds=("vocab",), required=True),
    },
    worker="cloze.model",
    outputs=("checkpoint",),
    headline=headline,
    comparison_metrics=("metrics",),
)
