"""Nodes of a run's graph, sources of their inputs, and selection by names and patterns."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cloze.core.artifacts.checkpoints import STEPS, step_name
from cloze.core.config import StageConfig
from cloze.core.errors import UsageError, did_you_mean
from cloze.core.stages.execution import Execution
from cloze.flows.graph import stages

# of a section; an instance's label also has its axis values, which may have dots
LABEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
STEP_REFERENCE = re.compile(r"step-(\d+)")  # in a reference: `pretrain/step-8000`

_OPTIONS = re.compile(r"(--set '?)(options\b)")


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """Source of a node's input."""

    node: str | None = None  # node that builds the input; None: the input is not part of the run
    # path below the node's artifact, such as `checkpoints/step-00008000`; without a node, a
    # complete path
    path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One artifact of a run."""

    name: str  # `stage` or `stage@label`; for an instance `stage@label-value-value`
    stage: str
    section: str  # config section that defines the node; the instances of a matrix share it
    values: Mapping[str, Any]  # the node's matrix values by axis
    config: StageConfig
    execution: Execution
    # sources by role; for a stage that reads all nodes, by node name
    inputs: Mapping[str, InputSource]
    out: str = ""  # artifact directory given by a command; empty: in the run's directory

    @property
    def depends_on(self) -> tuple[str, ...]:
        return tuple(
            dict.fromkeys(origin.node for origin in self.inputs.values() if origin.node is not None)
        )

    @property
    def placement(self) -> dict[str, Any]:
        """The section, the matrix values, and the nodes that it reads by role."""
        inputs = {
            role: f"{source.node}/{source.path}" if source.path else source.node
            for role, source in self.inputs.items()
            if source.node is not None
        }
        return {"section": self.section, "values": dict(self.values), "inputs": inputs}


def stage_of(section: str) -> str | None:
    """Return the stage in a section's name, `pretrain` in `pretrain@512`; None if it is invalid."""
    name, separator, label = section.partition("@")
    return name if name in stages.TABLE and (not separator or LABEL.fullmatch(label)) else None


def resolve_subpath(part: str, reference: str) -> str:
    """Return the path below an artifact for `part`, the text after the node name in a reference.

    Raises UsageError: the path leads out of the artifact.
    """
    match = STEP_REFERENCE.fullmatch(part)
    if match:
        return f"{STEPS}/{step_name(int(match[1]))}"
    if part.startswith("/") or ".." in part.split("/"):
        raise UsageError(
            f"{reference!r} leads out of its node; name a kept checkpoint, such as pretrain/"
            f"step-8000"
        )
    return part


def select_nodes(nodes: Mapping[str, Node], patterns: Iterable[str], run: str) -> set[str]:
    """Return the nodes that match names or patterns such as `finetune@sst2-*`.

    The name of a section or stage selects all its instances.

    Raises UsageError: a name matches no node; the message suggests the nearest name.
    """
    selected: set[str] = set()
    for name in patterns:
        matches = {name} & nodes.keys()
        matches = matches or {key for key, node in nodes.items() if node.section == name}
        matches = matches or {
            key for key, node in nodes.items() if node.stage == name or fnmatchcase(key, name)
        }
        if not matches:
            known = {*nodes, *(node.section for node in nodes.values())}
            raise UsageError(f"{name!r} is no node of run {run!r}; {did_you_mean(name, known)}")
        selected |= matches
    return selected


def with_descendants(nodes: Mapping[str, Node], names: Collection[str]) -> set[str]:
    """Return the named nodes and all that depend on them. `nodes` must be in topological order."""
    selected = set(names)
    for name, node in nodes.items():
        if selected.intersection(node.depends_on):
            selected.add(name)
    return selected


def with_ancestors(nodes: Mapping[str, Node], names: Collection[str]) -> set[str]:
    """Return the named nodes and all that they depend on. `nodes` must be in topological order."""
    selected = set(names)
    for name in reversed(list(nodes)):
        if name in selected:
            selected.update(nodes[name].depends_on)
    return selected


def with_section(text: str, node: Node) -> str:
    """Return an error's text with task options as a run sets them: --set finetune.options=…"""
    return text if node.out else _OPTIONS.sub(rf"\1{node.section}.\2", text)
