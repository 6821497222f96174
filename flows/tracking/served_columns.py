"""Columns and parameters of a checkpoint in MLflow, by its verb's row."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import Any

TEXT = "text"  # input column of single texts
EXAMPLE = "The capital of the country is [MASK]."
LISTS = {"choices": "string", "labels": "string", "vector": "double"}  # columns of lists: items
VERBS = "cloze.model.use.verb"


def served_by(config: Mapping[str, Any]) -> Any | None:
    """Return the `TableColumns` of a checkpoint; None: it has none, as with multi-task heads."""
    name = resolve_name(f"{VERBS}:verb_of_heads")(config["heads"])
    columns = name and resolve_name(f"{VERBS}:PREDICTORS")[name].columns
    return columns(config) if columns else None


def why_not_served(config: Mapping[str, Any]) -> str | None:
    """Return why a checkpoint cannot be an MLflow model; None: it can."""
    if served_by(config) is not None:
        return None
    return (
        f"MLflow cannot ask a model with these heads: {', '.join(config['heads'])}; load it with "
        f"cloze.load"
    )
