"""Run configs: a YAML file or a preset with one section per node, and overrides on top.

Relative paths in a file are relative to that file. Those in presets and in overrides are relative
to the working directory; in a preset, `samples/…` is Cloze's sample data.

    extends   another config file, relative to this one, or a preset; sections here override its own
    sizes     overrides by name, such as those of a small machine; `size` names the ones that apply.
              Sections of a file count over the sizes of what it extends
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cloze.core import accounts
from cloze.core.config import parse_config, resolve_paths
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.places import runs_directory
from cloze.core.plugins import installed
from cloze.core.stages.execution import Execution
from cloze.core.stages.stage import Stage, split_name
from cloze.flows.data import DATA
from cloze.flows.graph import stages
from cloze.flows.graph.builder import GraphBuilder
from cloze.flows.graph.nodes import Node, stage_of
from cloze.flows.graph.overrides import has_named_points, merge, read_yaml
from cloze.flows.graph.sections import LONGEST_NAME, MATRIX, RUN, fold_place, mapping_at

PRESETS = Path(__file__).resolve().parent.parent / "presets"
NAME, PROJECT = "name", "project"
_RUN_NAME = re.compile(r"([^\W_][\w.-]*/)?[^\W_][\w.-]*")  # NAME, or USER/NAME
TOKENIZER = "tokenizer"  # path of an existing vocabulary, instead of the vocab stage
EXTENDS, SIZES, SIZE = "extends", "sizes", "size"


class RunConfig:
    """The resolved config of a run."""

    def __init__(self, values: Mapping[str, Any], name: str, *, is_there: bool = False) -> None:
        """Read the config of a run; `is_there`: the name is that of an existing directory."""
        _check_sections(values)
        named = values.get(NAME) or name
        if isinstance(named, bool) or not isinstance(named, str | int):  # 1.10 has become 1.1
            raise UsageError(f"{NAME} ({named!r}) is no text; quote it: {NAME}: '…'")
        self.name = str(named)
        is_valid = is_there or _RUN_NAME.fullmatch(self.name)
        if not is_valid or max(map(len, os.fsencode(self.name).split(b"/"))) > LONGEST_NAME:
            raise UsageError(
                f"name ({self.name!r}) must consist of letters, digits, '.', '_' and '-', begin "
                f"with a letter or a digit, and have at most {LONGEST_NAME} bytes; it may be "
                f"USER/NAME. Give the config a `name:`"
            )
        # content of the config file with overrides applied and paths absolute
        self.values = dict(values)
        self.project = accounts.project(values.get(PROJECT))
        # path of an existing vocabulary, which replaces the vocab node
        self.tokenizer: str | None = values.get(TOKENIZER)
        if not isinstance(self.tokenizer, str | None):
            raise UsageError(f"{TOKENIZER} ({self.tokenizer!r}) must be the path of a vocabulary")
        run = _section(values, RUN)
        self.execution: Execution = parse_config(Execution, run, RUN)
        sections = stage_sections(values)
        if not sections:
            raise UsageError(
                f"the config of run {self.name!r} names no stage; give it sections such as corpus "
                f"and vocab"
            )
        graph = GraphBuilder(sections, run, self.tokenizer)
        # nodes of the graph by name, in topological order
        self.nodes: dict[str, Node] = graph.nodes
        # reasons by name, for nodes that sections name but that are not built
        self.left_out: dict[str, str] = graph.left_out
        if self.left_out and all(
            stages.stage(node.stage).reads_all_nodes for node in self.nodes.values()
        ):
            raise UsageError(f"nothing of run {self.name!r} can be made: {self._name_left_out()}")

    @property
    def directory(self) -> Path:
        """Directory of the run's records, lock and links."""
        return runs_directory() / self.name

    def _name_left_out(self) -> str:
        name, reason = next(iter(self.left_out.items()))
        return (
            f"{name} and {len(self.left_out) - 1} more are left out ({reason}); name another place:"
            f" --set {name.partition('@')[0]}.data=DIRECTORY"
        )

    def check_scored(self) -> None:
        """Raise UsageError if what a stage collects would be empty, because nodes are left out."""
        present = {node.stage for node in self.nodes.values()}
        for node in self.nodes.values() if self.left_out else ():
            if empty := node.config.empty_without(present):
                raise UsageError(
                    f"no {empty} of run {self.name!r} can be filled: {self._name_left_out()}, or "
                    f"stop before: --until pretrain"
                )

    def dump(self) -> dict[str, Any]:
        """Return the complete config as YAML-compatible values by node, with defaults filled in."""
        nodes = {name: node.config.model_dump(mode="json") for name, node in self.nodes.items()}
        extra = {TOKENIZER: self.tokenizer} if self.tokenizer else {}
        extra |= {PROJECT: self.project} if self.values.get(PROJECT) else {}
        return {NAME: self.name, **extra, **nodes, RUN: self.execution.model_dump(mode="json")}


def _check_sections(values: Mapping[str, Any]) -> None:
    known = {*stages.TABLE, RUN, NAME, PROJECT, TOKENIZER, SIZE}
    for key in values:
        if key not in known and stage_of(str(key)) is None:
            stage, separator, label = str(key).partition("@")
            if separator and stage in stages.TABLE:
                raise UsageError(
                    f"config section {key!r} has a label ({label!r}) that is no word; use letters, "
                    f"digits, '_' and '-'"
                )
            raise UsageError(f"unknown config section {key!r}; {did_you_mean(stage, known)}")


def stage_sections(values: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the sections of stages, without those that are switched off."""
    return {
        key: fold_place(_section(values, key), key)
        for key, value in values.items()
        if stage_of(key) and value is not False and not (key == "vocab" and values.get(TOKENIZER))
    }


def _section(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return {} if values.get(name) is True else mapping_at(values, name, "config section ")


def preset_paths() -> dict[str, Path]:
    """Return the presets by name: Cloze's own, and those of plug-ins."""
    paths = [path for folder in reversed(_preset_folders()) for path in folder.glob("*.yaml")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def _preset_folders() -> list[Path]:
    plugins = [one.directory / one.plugin.presets for one in installed() if one.plugin.presets]
    return [folder.resolve() for folder in (PRESETS, *plugins)]


def preset_names() -> list[str]:
    return list(preset_paths())


def samples_directory() -> Path:
    return (DATA / "samples").resolve()


def load(reference: str, overrides: Mapping[str, Any] | None = None) -> RunConfig:
    """Return the config that `read` reads.

    Raises UsageError: as `read`, or an unknown key, or an invalid value.
    """
    return RunConfig(read(reference, overrides), Path(reference).stem)


def read(
    reference: str,
    overrides: Mapping[str, Any] | None = None,
    more: Mapping[str, Path] | None = None,
) -> dict[str, Any]:
    """Return the values of a YAML file or a preset, with absolute paths and overrides applied.

    Args:
        reference: path of a YAML file, or name of a preset.
        overrides: nested by section and key, as `cloze.flows.graph.overrides` returns them.
        more: additional named files, treated like presets.

    Raises UsageError: no such file or preset, or invalid YAML.
    """
    path = _find(reference, Path(), {**preset_paths(), **(more or {})})
    overrides = dict(overrides or {})
    values = _with_size(_read_file(path), overrides.pop(SIZE, None), reference)
    return _with_overrides(values, overrides)


def _find(reference: str, directory: Path, presets: Mapping[str, Path]) -> Path:
    """Return the path of a preset, or of a file relative to `directory`."""
    path = presets.get(reference, directory / reference)
    if reference not in presets and path.is_dir():
        raise UsageError(f"{path} is a directory; name a config file, or a preset such as demo")
    if reference not in presets and not path.exists():  # /dev/stdin is no plain file
        beside = (str(Path(reference).with_name(name.name)) for name in path.parent.glob("*.y*ml"))
        near = did_you_mean(
            reference, [*presets, *beside], "give a YAML file, or a preset such as demo"
        )
        raise UsageError(f"{str(path)!r} is neither a config file nor a preset; {near}")
    return path


def _read_file(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[Any, dict[str, Any]]]:
    """Return a YAML file's sections after those that it extends, with absolute paths.

    Sections of a size have its name beside them, others None. Those of a preset's sizes come last.

    `above`: files that extend this one.
    """
    if path.resolve() in above:
        raise UsageError(f"{path} extends itself; name another file in {EXTENDS}")
    try:
        values = read_yaml(path.read_text(encoding="utf-8"), sections=True) or {}
    except OSError as error:
        raise UsageError(f"{path} is not readable ({error.strerror}); name another file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not in UTF-8 ({error}); save it in that encoding") from error
    except yaml.YAMLError as error:
        raise UsageError(
            f"{path} is not valid YAML ({' '.join(str(error).split())}); correct the syntax there"
        ) from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} must contain a mapping of sections, not {type(values).__name__}")
    base = path.resolve().parent
    ours = (PRESETS.parent.resolve(), *_preset_folders())  # the night's suite is one, too
    is_preset = any(folder in (base, *base.parents) for folder in ours)
    if is_preset:
        base, values = Path.cwd(), _with_samples(values)
    extended = values.pop(EXTENDS, None)
    sizes = mapping_at(values, SIZES, "")
    values.pop(SIZES, None)
    named = [(None, values), *((name, mapping_at(sizes, name, f"{SIZES}.")) for name in sizes)]
    parts = [(name, _resolved(part, base)) for name, part in named]
    if extended is not None:
        if not isinstance(extended, str):
            raise UsageError(f"{EXTENDS} ({extended!r}) must be one config file or preset")
        below = _find(extended, path.parent, preset_paths())
        parts = [*_read_file(below, (*above, path.resolve())), *parts]
    return sorted(parts, key=lambda part: part[0] is not None) if is_preset else parts


def _with_samples(value: Any) -> Any:
    """Make the paths of the sample data absolute, at any depth."""
    if isinstance(value, dict):
        return {key: _with_samples(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_samples(item) for item in value]
    is_sample = isinstance(value, str) and value.startswith("samples/")
    return str(samples_directory().parent / value) if is_sample else value


def _with_size(
    parts: Sequence[tuple[Any, dict[str, Any]]], size: str | None, reference: str
) -> dict[str, Any]:
    """Return the values with the overrides of a size, by default of the one that they name.

    Raises UsageError: the config has no such size.
    """
    sizes = {name for name, _ in parts if name is not None}
    if size is None:
        size = next((part[SIZE] for _, part in reversed(parts) if SIZE in part), None)
    if size is not None and size not in sizes:
        raise UsageError(f"{reference} has no size {size!r}; {did_you_mean(str(size), sizes)}")
    (_, values), *more = parts
    for name, part in more:
        if name in (None, size):
            values = _with_overrides(values, part)
    return {key: value for key, value in values.items() if key != SIZE}


def _resolved(values: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Make the paths in all sections absolute; URLs, package lists and node names stay."""
    resolved = dict(values)
    for name, section in values.items():
        stage = stage_of(str(name))
        if stage is not None and isinstance(section, Mapping):
            folded = fold_place(section, str(name))
            resolved[name] = _resolved_section(folded, stages.stage(stage), str(base))
    tokenizer = values.get(TOKENIZER)
    if isinstance(tokenizer, str) and "://" not in tokenizer:
        resolved[TOKENIZER] = str(base / os.path.expanduser(tokenizer))
    return resolved


def _resolved_section(section: Mapping[str, Any], stage: Stage, base: str) -> dict[str, Any]:
    fields = {key: value for key, value in section.items() if key in stage.config.model_fields}
    resolved = {**section, **resolve_paths(stage.config, fields, base)}
    for role in stage.inputs.keys() & section.keys():
        reference = section[role]
        resolved[role] = (
            [_resolve_named_reference(item, base) for item in reference]
            if isinstance(reference, list)
            else _resolved_reference(reference, base)
        )
    matrix = section.get(MATRIX)
    if isinstance(matrix, Mapping):
        resolved[MATRIX] = {
            axis: {
                name: fields and _resolved_section(fields, stage, base)
                for name, fields in points.items()
            }
            if has_named_points(points)
            else points
            for axis, points in matrix.items()
        }
    return resolved


def _resolved_reference(reference: Any, base: str) -> Any:
    """Make the path of an input absolute; node names and URLs stay."""
    if not isinstance(reference, str) or "/" not in reference or "://" in reference:
        return reference
    if stage_of(reference.partition("/")[0]) is not None:
        return reference
    return os.path.normpath(os.path.join(base, os.path.expanduser(reference)))


def _resolve_named_reference(reference: Any, base: str) -> Any:
    """Make the path in `NAME=PATH` or `PATH` absolute, for a role with several inputs."""
    if not isinstance(reference, str):
        return reference
    name, path = split_name(reference)
    return f"{name}=" * bool(name) + str(_resolved_reference(path, base))


def _with_overrides(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Apply overrides section by section; an override of an absent section adds the section."""
    _check_sections(overrides)
    merged = dict(values)
    for name, override in overrides.items():
        if not isinstance(override, Mapping):
            # a section without keys, or one that is switched on, keeps those it stands over
            is_kept = override in (None, True) and isinstance(merged.get(name), Mapping)
            merged[name] = merged[name] if is_kept else override
            continue
        if merged.get(name) is False:
            raise UsageError(_switched_off(merged, name, ".".join([name, *override][:2])))
        stage = stage_of(name)
        merged[name] = merge(
            _section(merged, name),
            fold_place(override, name) if stage else override,
            stages.stage(stage).config if stage else None,
            name,
        )
    return merged


def _switched_off(values: Mapping[str, Any], name: str, key: str) -> str:
    """Return the sentence on a key of a section that is switched off."""
    origins = (
        f"; {reader} starts from {reader}.checkpoint ({section['checkpoint']})"
        for reader, section in values.items()
        if isinstance(section, Mapping) and isinstance(section.get("checkpoint"), str)
    )
    return (
        f"{key} is set, but {name} is switched off here ({name}: false){next(origins, '')}; leave "
        f"{key} out"
    )
