"""Config overrides (`section.key=value`) and matrices: parsing, merging, expansion.

`parse` reads text, such as the values of `--set`; `nest` reads dotted keys, such as those of
Prefect's form. Both return nested mappings, which `merge` applies to config values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import yaml
from yaml.composer import ComposerError

from cloze.core.config import StageConfig
from cloze.core.errors import UsageError

WHOLE = ""  # key of a value that replaces the old one before the nested keys are set


# PyYAML's truth values, octal, binary and base-60 numbers, which YAML 1.2 has no more
_TEXT = re.compile(r"(?i)yes|no|on|off|[-+]?0[0-9_]+|[-+]?0b.*|.*:.*")


class _Loader(yaml.SafeLoader):
    """YAML loader that changes nothing silently.

    `no` is Norwegian, `010` ten, and `2024-01-01` the name of a run. No key stands twice.
    """

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_plain = kind is yaml.ScalarNode and implicit[0]
        is_text = is_plain and (tag.endswith(":timestamp") or _TEXT.fullmatch(value))
        return self.DEFAULT_SCALAR_TAG if is_text else tag

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):  # before merged keys (<<), which may stand again
            if key.value in (before.value for before in keys[:place]):
                raise ComposerError(None, None, f"{key.value!r} stands twice", key.start_mark)
        return node


def read_yaml(text: str, sections: bool = False) -> Any:
    """Return the values in `text`, all representable in JSON. Raises `yaml.YAMLError`.

    `sections`: refuse a section's key without a value, as of an unset variable in a template.
    """
    loader = _Loader(text)
    root = loader.get_single_node()
    values = None if root is None else loader.construct_document(root)
    for _, section in root.value if sections and isinstance(root, yaml.MappingNode) else ():
        for key, value in section.value if isinstance(section, yaml.MappingNode) else ():
            if value.tag.endswith(":null") and not value.value:
                raise ComposerError(
                    None, None, f"{key.value!r} has no value; give one, or null", key.start_mark
                )
    try:
        json.dumps(values)
    except (TypeError, ValueError) as error:
        raise yaml.YAMLError(f"it contains a value that JSON cannot express: {error}") from error
    return values


def parse(settings: Iterable[str], example: str, sections: bool = False) -> dict[str, Any]:
    """Parse `KEY=VALUE` strings into a nested mapping; values are YAML, and later ones win.

    Args:
        example: valid example, for the error message.
        sections: require a section in each key, such as `pretrain.steps`. Exceptions: `name`,
            `tokenizer`, `size`, and switching a section, as in `finetune=false`.

    Raises UsageError: no `=`, an empty key, or a value that is not valid YAML.
    """
    pairs = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals:
            raise UsageError(f"--set {setting!r} must look like {example}")
        _check_key(key, f"--set {setting!r}", example)
        if not text.strip():  # as of an unset variable of the shell
            raise UsageError(f"--set {setting!r} has no value; give one, or null for the default")
        try:
            value = read_yaml(text)
        except yaml.YAMLError as error:
            raise UsageError(
                f"--set {setting!r} has a value that is not valid YAML; quote it"
            ) from error
        if (
            sections
            and "." not in key
            and key not in ("name", "project", "tokenizer", "size")
            and not isinstance(value, bool)
        ):
            raise UsageError(f"--set {setting!r} must look like {example}")
        pairs.append((key, value))
    return unfold(pairs)


def nest(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides with dotted and nested keys as one nested mapping; dotted keys win."""
    plain = {key: value for key, value in overrides.items() if "." not in key}
    dotted = [(key, value) for key, value in overrides.items() if "." in key]
    for key, _ in dotted:
        _check_key(key, f"the override {key!r}", "section.key")
    return unfold(dotted, json.loads(json.dumps(plain)))


def _check_key(key: str, named: str, example: str) -> None:
    if not all(key.split(".")):
        raise UsageError(f"{named} must look like {example}")


def unfold(pairs: Iterable[tuple[str, Any]], onto: dict[str, Any] | None = None) -> dict[str, Any]:
    """Turn values by dotted key into nested ones: `pretrain.steps` -> `{"pretrain": {"steps": …}}`.

    Nested keys are merged. The key `WHOLE` has the value that first replaces the complete field: a
    mapping that was set as a value, or a plain value whose keys were set afterwards.

    `pairs`: (dotted key, value); `onto`: nested values that the pairs are added to, in place.
    """
    nested: dict[str, Any] = {} if onto is None else onto
    for key, value in pairs:
        *parents, leaf = key.split(".")
        target = nested
        for parent in parents:
            child = target.setdefault(parent, {})
            if not isinstance(child, dict):
                child = target[parent] = {WHOLE: child}
            target = child
        target[leaf] = {WHOLE: value} if isinstance(value, Mapping) else value
    return nested


def merge(
    values: Any, overrides: Mapping[str, Any], config: type[StageConfig] | None, where: str
) -> dict[str, Any]:
    """Return `values` with `overrides` applied, mappings key by key.

    An override inside a shorthand, such as `model.hidden_dropout` with `model: bert-mini`, first
    expands the shorthand (`StageConfig.expand_shorthand`). An override of a field removes its
    alternatives (`StageConfig.mutually_exclusive`): a budget replaces a preset's steps.

    `config`: config class of the values; None: a plain mapping.

    Raises UsageError: an override sets a key of a value that is no mapping and has no expansion.
    """
    merged = dict(values)
    for group in config.mutually_exclusive if config is not None else ():
        chosen = {name for name in group if overrides.get(name) is not None}
        if chosen:  # which itself may be merged below: a model's values
            merged = {name: merged[name] for name in merged if name not in {*group} - chosen}
    for key, override in overrides.items():
        if not isinstance(override, Mapping):
            merged[key] = override
            continue
        current = override.get(WHOLE, merged.get(key))
        nested = {name: value for name, value in override.items() if name != WHOLE}
        if nested and current not in (None, True) and not isinstance(current, Mapping):
            expanded = config.expand_shorthand(key, current) if config is not None else None
            if expanded is None:
                raise UsageError(
                    f"{where}.{key}.{next(iter(nested))} reaches into {where}.{key}, which "
                    f"is {current!r}, not a mapping; set all of it"
                )
            current = expanded
        merged[key] = merge(
            current if isinstance(current, Mapping) else {}, nested, None, f"{where}.{key}"
        )
    return merged


# Matrices: one section of a run's config makes many nodes.

WORD = re.compile(r"[A-Za-z0-9_.+-]+")  # valid characters of an instance's name


def combinations(
    matrix: Any, where: str
) -> Iterator[tuple[dict[str, Any], list[Mapping[str, Any]]]]:
    """Yield (value or name by axis, fields that each name sets) for each combination of a matrix.

    `matrix`: axes with values, or with names that set fields; None: one combination, no axes.

    Raises:
        UsageError: an axis is no list or mapping, is empty or repeats a value; or a value cannot be
            part of a name.
    """
    if matrix is None:
        matrix = {}
    if not isinstance(matrix, Mapping):
        raise UsageError(
            f"{where}.matrix ({matrix!r}) must map axes to lists of values, such as {{seed: [1, 2, "
            f"3]}}"
        )
    axes: list[list[tuple[str, Any, Mapping[str, Any]]]] = []
    for axis, values in matrix.items():
        if has_named_points(values):
            points = [
                (str(axis), name, fields or {})
                for name, fields in values.items()
                if fields is not False
            ]
        elif isinstance(values, Sequence) and not isinstance(values, str):
            points = [(str(axis), value, {}) for value in values]
        else:
            raise UsageError(
                f"{where}.matrix.{axis} ({values!r}) must be a list of values, or names with "
                f"fields below each"
            )
        slugs = [slug(value, f"{where}.matrix.{axis}") for _, value, _ in points]
        if not points or len(set(map(_as_number, slugs))) < len(slugs):
            raise UsageError(
                f"{where}.matrix.{axis} ({values!r}) must list at least one value, and each once"
            )
        axes.append(points)
    for combination in product(*axes):
        fields = [point_fields for _, _, point_fields in combination if point_fields]
        yield {axis: value for axis, value, _ in combination}, fields


def _as_number(text: str) -> float | str:
    """Return the number that a text is, so that 1e-4 and 0.0001 are the same value."""
    try:
        return float(text)
    except ValueError:
        return text


def has_named_points(values: Any) -> bool:
    """Return whether an axis has names with fields, or without any, below each.

    A name that is false is left out, so that overrides can remove it.
    """
    return isinstance(values, Mapping) and all(
        isinstance(fields, Mapping) or fields in (None, False) for fields in values.values()
    )


def plain_axes(matrix: Any) -> set[str]:
    """Return the axes whose values set fields directly."""
    return {axis for axis, values in (matrix or {}).items() if not isinstance(values, Mapping)}


def slug(value: Any, where: str) -> str:
    """Return a value as a part of a node's name.

    Raises UsageError: the value has other characters than letters, digits and `_.+-`.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not WORD.fullmatch(text) or text.startswith((".", "-")):
        raise UsageError(
            f"{where} ({value!r}) cannot be part of a name; give names with fields below each: "
            f"{{short: {{field: …}}}}"
        )
    return text


def substitute_axes(value: Any, axes: Mapping[str, Any]) -> Any:
    """Replace `{axis}` in all strings of `value`, at any depth.

    A string that consists of `{axis}` only becomes the axis value, with its type.
    """
    if isinstance(value, str):
        for axis, axis_value in axes.items():
            if value == f"{{{axis}}}":
                return axis_value
            value = value.replace(f"{{{axis}}}", str(axis_value))
        return value
    if isinstance(value, Mapping):
        return {key: substitute_axes(item, axes) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [substitute_axes(item, axes) for item in value]
    return value
