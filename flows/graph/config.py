"""A run's config: one section a stage, from a YAML file or a preset's name, with `--set` on top.

Relative paths in a file are relative to that file; in a preset, `samples/…` is the sample that Cloze brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from flows.graph import stages
from pipeline.core import config as core_config
from pipeline.core.config import StageConfig, parse_config
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.execution import Execution

FLOWS = Path(__file__).resolve().parent.parent
PRESETS = FLOWS / "presets"
RUN = "run"  # the section of `Execution`
NAME = "name"
TOKENIZER = "tokenizer"  # instead of the vocab stage: a vocabulary that is there already


class RunConfig:
    """The resolved config of a DAG.

    Attributes:
        name: the run's name, and its directory's.
        sections: the config of each stage that runs, in order.
        execution: how they are run.
        tokenizer: path of a ready vocabulary; then there is no vocab stage.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        known = {*stages.TABLE, RUN, NAME, TOKENIZER}
        for key in values:
            if key not in known:
                raise UsageError(f"unknown config section {key!r}; {did_you_mean(str(key), known)}")
        self.name = str(values.get(NAME) or name)
        self.tokenizer: str | None = values.get(TOKENIZER)
        self.execution: Execution = parse_config(Execution, _section(values, RUN), RUN)
        self.sections: dict[str, StageConfig] = {}
        for stage_name in stages.TABLE:
            wanted = stage_name in values and values[stage_name] is not False
            if wanted and not (stage_name == "vocab" and self.tokenizer):
                model = stages.stage(stage_name).config
                self.sections[stage_name] = parse_config(model, _section(values, stage_name), stage_name)
        if not self.sections:
            raise UsageError(f"the config of run {self.name!r} names no stage; give it sections such as corpus and vocab")

    def dump(self) -> dict[str, Any]:
        """The whole config as YAML-able values, defaults filled in."""
        sections = {name: config.model_dump(mode="json") for name, config in self.sections.items()}
        extra = {TOKENIZER: self.tokenizer} if self.tokenizer else {}
        return {NAME: self.name, **extra, **sections, RUN: self.execution.model_dump(mode="json")}


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = values.get(name)
    if section is None or section is True:
        return {}
    if not isinstance(section, Mapping):
        raise UsageError(f"config section {name} ({section!r}) must be a mapping of keys to values")
    return section


def preset_names() -> list[str]:
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def samples_directory() -> Path:
    """Where the sample data lies: beside the packages in a checkout, inside `flows/` in an installed wheel."""
    for parent in (FLOWS, FLOWS.parent):
        if (parent / "samples").is_dir():
            return parent / "samples"
    raise UsageError("the sample data (samples/) is missing from this installation; use a checkout of the repository")


def load(reference: str, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a YAML file or a preset, apply `section.key=value` overrides, validate all of it.

    Raises:
        UsageError: no such file or preset, bad YAML, an unknown key, a value that does not fit.
    """
    if reference in preset_names():
        path, base = PRESETS / f"{reference}.yaml", samples_directory().parent
    elif Path(reference).is_file():
        path, base = Path(reference), Path(reference).resolve().parent
    else:
        hint = did_you_mean(reference, preset_names())
        raise UsageError(f"{reference!r} is neither a config file nor a preset; {hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid YAML ({' '.join(str(error).split())}); mend it") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold a mapping of sections, found {type(values).__name__}")
    resolve_paths(values, base)
    for override in overrides:
        apply_override(values, override)
    return RunConfig(values, path.stem)


def apply_override(values: dict[str, Any], override: str) -> None:
    """Set `section.key=value` in place; the value is read as YAML."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or (len(parts) < 2 and parts[0] not in (NAME, TOKENIZER)):
        raise UsageError(f"--set {override!r} must look like section.key=value, such as pretrain.steps=200")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--set {override!r} has a value that is not valid YAML; quote it") from error
    target = values
    for part in parts[:-1]:
        nested = target.setdefault(part, {})
        if nested is None or nested is True:
            nested = target[part] = {}
        if not isinstance(nested, dict):
            raise UsageError(f"--set {override!r}: {part} holds {nested!r}, not a section")
        target = nested
    target[parts[-1]] = value


def resolve_paths(values: dict[str, Any], base: Path) -> None:
    """Make the paths of a config absolute, in place: those in fields that the stages' configs declare as paths."""
    for name, section in values.items():
        if name in stages.TABLE and isinstance(section, Mapping):
            values[name] = core_config.resolve_paths(stages.stage(name).config, section, str(base))
    tokenizer = values.get(TOKENIZER)
    if isinstance(tokenizer, str) and "://" not in tokenizer:
        values[TOKENIZER] = str(base / tokenizer)
