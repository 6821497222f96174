"""Columns and parameters of a checkpoint in MLflow, by its heads, as `cloze.model.pyfunc` takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TEXT = "text"  # input column of single texts
EXAMPLE = "The capital of the country is [MASK]."
LISTS = {"choices": "string", "labels": "string", "vector": "double"}  # columns of lists: items


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Columns and parameters of `cloze.model.pyfunc` for a head.

    Attributes:
        inputs: names of text columns. A model of single texts has no input schema: MLflow's
            would refuse lists, or tables with further columns.
        outputs: `NAME:TYPE` of each column, with MLflow's types.
        params: integer parameters and their defaults.
    """

    inputs: tuple[str, ...] = (TEXT,)
    outputs: str
    params: Mapping[str, int] = field(default_factory=dict)


_LABELS = Served(outputs="label:string score:double")
# by head; the first one that the checkpoint has counts
SERVED = {
    "masked_lm": Served(
        outputs="text:long mask:long token:string score:double sequence:string",
        params={"top_k": 5},
    ),
    "lm": Served(
        outputs="text:string continuation:string tokens:long stopped:string",
        params={"tokens": 40},
    ),
    "seq2seq": Served(
        outputs="text:string continuation:string tokens:long stopped:string",
        params={"tokens": 40},
    ),
    "classifier": _LABELS,
    "pair_classifier": _LABELS,
    "choice": Served(inputs=("text", "choices"), outputs=_LABELS.outputs),
    "span": Served(
        inputs=("question", "passage"),
        outputs="question:long answer:string score:double start:long end:long",
        params={"top_k": 5},
    ),
    "token_classifier": Served(
        outputs="text:long entity:string type:string start:long end:long score:double"
    ),
    "embedding": Served(outputs="vector:double"),
}


def served_by(config: Mapping[str, Any]) -> Served | None:
    """Return a checkpoint's input and output in MLflow.

    None: not possible, as for multi-task heads.
    """
    heads, task = config["heads"], config.get("task") or {}
    spec = next((served for head, served in SERVED.items() if head in heads), None)
    if (heads.get("masked_lm") or {}).get("objectives") == ["clm"]:  # trained left to right only
        spec = SERVED["lm"]
    if spec is _LABELS and "labels" not in task:
        spec = Served(outputs="score:double")
    if task.get("problem_type") == "multi_label_classification":
        spec = Served(outputs=f"labels:string {_LABELS.outputs}")
    if spec is not None and task.get("pairs"):
        spec = replace(spec, inputs=(TEXT, "text_pair"))
    return spec


def why_not_served(config: Mapping[str, Any]) -> str | None:
    """Return why a checkpoint cannot be an MLflow model; None: it can."""
    if served_by(config) is not None:
        return None
    return (
        f"MLflow cannot ask a model with these heads: {', '.join(config['heads'])}; load it with "
        f"cloze.load"
    )
