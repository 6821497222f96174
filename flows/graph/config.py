"""A run's config: one section a stage, from a YAML file or a preset's name, with overrides on top.

Relative paths in a file are relative to that file; in a preset, `samples/…` is the sample that Cloze brings. Paths in
overrides are relative to where the command runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flows.graph import stages
from flows.graph.overrides import merge, read_yaml
from pipeline.core.config import StageConfig, parse_config, resolve_paths
from pipeline.core.errors import UsageError, did_you_mean
from pipeline.core.execution import Execution

FLOWS = Path(__file__).resolve().parent.parent
PRESETS = FLOWS / "presets"
RUN = "run"  # the section of `Execution`
NAME = "name"
TOKENIZER = "tokenizer"  # instead of the vocab stage: a vocabulary that is there already


class RunConfig:
    """The resolved config of a run.

    Attributes:
        name: the run's name, and its directory's.
        sections: the config of each stage that runs, in order.
        execution: how they are run.
        tokenizer: path of a ready vocabulary; then there is no vocab stage.
    """

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        _check_sections(values)
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


def _check_sections(values: Mapping[str, Any]) -> None:
    known = {*stages.TABLE, RUN, NAME, TOKENIZER}
    for key in values:
        if key not in known:
            raise UsageError(f"unknown config section {key!r}; {did_you_mean(str(key), known)}")


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


def load(reference: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Read a YAML file or a preset, lay the overrides over it, validate all of it.

    Args:
        overrides: nested, as `flows.graph.overrides` makes them: by section, then by key.

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
        values = read_yaml(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid YAML ({' '.join(str(error).split())}); mend it") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} must hold a mapping of sections, found {type(values).__name__}")
    return RunConfig(_with_overrides(_resolved(values, base), overrides or {}), path.stem)


def _resolved(values: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """The values with the paths in all sections made absolute; URLs and package lists stay as they are."""
    found = dict(values)
    for name in stages.TABLE:
        if isinstance(values.get(name), Mapping):
            found[name] = resolve_paths(stages.stage(name).config, values[name], str(base))
    tokenizer = values.get(TOKENIZER)
    if isinstance(tokenizer, str) and "://" not in tokenizer:
        found[TOKENIZER] = str(base / tokenizer)
    return found


def _with_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The values with overrides on top, section by section; overriding a section that is left out brings it in."""
    _check_sections(overrides)
    found = dict(values)
    for name, override in overrides.items():
        if not isinstance(override, Mapping):
            found[name] = override
            continue
        config = stages.stage(name).config if name in stages.TABLE else None
        found[name] = merge(_section(found, name), override, config, name)
    return found
