"""Config values that are set by key, `section.key=value`, read once: at the border they become nested mappings.

`parse` is for text, such as what `--set` is given; `nest` for values by dotted key, such as Prefect's form holds.
Behind it everything takes the mapping, and `merge` lays it over a config's values.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from pipeline.core.config import StageConfig
from pipeline.core.errors import UsageError

WHOLE = ""  # the key of what replaces a value before single keys of it are set


class _Loader(yaml.SafeLoader):
    """YAML without its dates: `2024-01-01` is the name of a run more often than a day, and JSON has no days."""


_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for letter, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """The values in `text`; all that comes out can be written as JSON. Raises `yaml.YAMLError`."""
    values = yaml.load(text, _Loader)
    try:
        json.dumps(values)
    except (TypeError, ValueError) as error:
        raise yaml.YAMLError(f"it holds what JSON cannot: {error}") from error
    return values


def parse(settings: Iterable[str], example: str, sections: bool = False) -> dict[str, Any]:
    """`KEY=VALUE` strings as a nested mapping; values are YAML, later ones win.

    Args:
        example: of what is wanted, for the message.
        sections: whether a key needs a section before it, such as `pretrain.steps`; alone stand only `name` and `tokenizer`, and
            a section that is left out or brought in: `finetune=false`.

    Raises:
        UsageError: no `=`, an empty key, or a value that is not YAML.
    """
    pairs = []
    for setting in settings:
        key, equals, text = setting.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise UsageError(f"--set {setting!r} must look like {example}")
        try:
            value = read_yaml(text)
        except yaml.YAMLError as error:
            raise UsageError(f"--set {setting!r} has a value that is not valid YAML; quote it") from error
        if sections and "." not in key and key not in ("name", "tokenizer") and not isinstance(value, bool):
            raise UsageError(f"--set {setting!r} must look like {example}")
        pairs.append((key, value))
    return unfold(pairs)


def nest(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Overrides of which some have dotted keys and some are nested already, all nested; dotted keys win."""
    plain = {key: value for key, value in overrides.items() if "." not in key}
    return unfold(((key, value) for key, value in overrides.items() if "." in key), json.loads(json.dumps(plain)))


def unfold(pairs: Iterable[tuple[str, Any]], onto: dict[str, Any] | None = None) -> dict[str, Any]:
    """Values by dotted key as a nested mapping: `("pretrain.steps", 200)` -> `{"pretrain": {"steps": 200}}`.

    A key of a mapping is laid over what is there. Under the key `WHOLE` stands what replaces all of it first: a mapping that
    was set as a value, or a plain value of which single keys were set afterwards.

    Args:
        onto: nested values that these are added to, in place.
    """
    found: dict[str, Any] = {} if onto is None else onto
    for key, value in pairs:
        *parents, last = key.split(".")
        target = found
        for parent in parents:
            below = target.setdefault(parent, {})
            if not isinstance(below, dict):
                below = target[parent] = {WHOLE: below}
            target = below
        target[last] = {WHOLE: value} if isinstance(value, Mapping) else value
    return found


def merge(values: Any, overrides: Mapping[str, Any], config: type[StageConfig] | None, where: str) -> dict[str, Any]:
    """`values` with `overrides` on top, mappings key by key.

    Where an override reaches into a field that holds a plain value, such as `model.hidden_dropout` into `model: bert-mini`,
    the config class says what mapping the value stands for (`StageConfig.expand`). An override of a field takes back what `values` say of
    its alternatives (`StageConfig.alternatives`): a budget takes the place of a preset's steps.

    Args:
        config: the class that `values` are of; None: a mapping without one.
        where: the section, for messages.

    Raises:
        UsageError: an override reaches into a value that stands for no mapping.
    """
    merged = dict(values)
    for group in config.alternatives if config is not None else ():
        if any(overrides.get(name) is not None for name in group):
            merged = {name: value for name, value in merged.items() if name not in group}
    for key, override in overrides.items():
        if not isinstance(override, Mapping):
            merged[key] = override
            continue
        now = override.get(WHOLE, merged.get(key))
        rest = {name: value for name, value in override.items() if name != WHOLE}
        if rest and now not in (None, True) and not isinstance(now, Mapping):
            expanded = config.expand(key, now) if config is not None else None
            if expanded is None:
                raise UsageError(
                    f"--set {where}.{key}.{next(iter(rest))} reaches into {where}.{key}, which holds {now!r}, not a mapping; set the whole of it"
                )
            now = expanded
        merged[key] = merge({} if now in (None, True) else now, rest, None, f"{where}.{key}")
    return merged
