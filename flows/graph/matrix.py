"""Matrices: one section of a run's config, many nodes.

    finetune:
      matrix: {task: [sst2, mrpc], seed: [1, 2]}     finetune@sst2-1, finetune@sst2-2, finetune@mrpc-1, finetune@mrpc-2
      data: glue/{task}                              an axis' value in another field

    pretrain:
      matrix: {rate: {low: {learning_rate: 1e-4}, high: {learning_rate: 1e-3}}}        pretrain@low, pretrain@high

An axis of values sets the field of its name, if there is one; an axis of names stands for the fields below each. A node that reads one with
axes follows it instance by instance; where it has an axis of the same name itself, equal values belong together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from pipeline.core.errors import UsageError

WORD = re.compile(r"[A-Za-z0-9_.+-]+")  # what an instance's name may be made of


def combinations(matrix: Any, where: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """For each combination: its value by axis (of an axis of names, the name), and the fields that the names stand for.

    Args:
        matrix: as the config has it; None: one combination without axes.
        where: the section, for messages.

    Raises:
        UsageError: it is no mapping of axes to lists or mappings, an axis is empty or says a value twice, or a value can be no part of a name.
    """
    if matrix is None:
        matrix = {}
    if not isinstance(matrix, Mapping):
        raise UsageError(f"{where}.matrix ({matrix!r}) must map axes to lists of values, such as {{seed: [1, 2, 3]}}")
    axes: list[list[tuple[str, Any, Mapping[str, Any]]]] = []
    for axis, values in matrix.items():
        if isinstance(values, Mapping) and all(isinstance(below, Mapping) or below is None for below in values.values()):
            points = [(str(axis), name, below or {}) for name, below in values.items()]
        elif isinstance(values, Sequence) and not isinstance(values, str):
            points = [(str(axis), value, {}) for value in values]
        else:
            raise UsageError(f"{where}.matrix.{axis} ({values!r}) must be a list of values, or names with fields below each")
        words = [word(value, f"{where}.matrix.{axis}") for _, value, _ in points]
        if not points or len(set(words)) < len(words):
            raise UsageError(f"{where}.matrix.{axis} ({values!r}) must hold at least one value, and each once")
        axes.append(points)
    for chosen in product(*axes):
        fields: dict[str, Any] = {}
        for _, _, below in chosen:
            fields |= below
        yield {axis: value for axis, value, _ in chosen}, fields


def plain_axes(matrix: Any) -> set[str]:
    """The axes of values, which set fields."""
    return {axis for axis, values in (matrix or {}).items() if not isinstance(values, Mapping)}


def word(value: Any, where: str) -> str:
    """A value as a part of a node's name.

    Raises:
        UsageError: it cannot be one.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not WORD.fullmatch(text) or text.startswith((".", "-")):
        raise UsageError(
            f"{where} ({value!r}) cannot be part of a name; give names with fields below each: {{short: {{field: …}}}}"
        )
    return text


def replaced(value: Any, axes: Mapping[str, Any], told: Callable[[str], None] = lambda axis: None) -> Any:
    """`value` with `{axis}` in its strings replaced, at any depth. A string that is nothing else takes the value's type.

    Args:
        told: hears of each axis that was found.
    """
    if isinstance(value, str):
        for axis, found in axes.items():
            spoken = f"{{{axis}}}"
            if spoken in value:
                told(axis)
                if value == spoken:
                    return found
                value = value.replace(spoken, str(found))
        return value
    if isinstance(value, Mapping):
        return {key: replaced(item, axes, told) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [replaced(item, axes, told) for item in value]
    return value
